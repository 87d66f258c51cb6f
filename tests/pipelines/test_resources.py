"""Laws of plans by resources, on random networks and every kind of cluster."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest

from downset.clusters.model import Cluster, Device, Network
from downset.distributed.simulator import simulate
from downset.errors import InvalidPlan, LoadError, UsageError
from downset.formats.plan_json import decode_plan, encode_plan
from downset.pipelines.check import verify_without_graph
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft, Tile
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.planners import PIPELINERS
from downset.pipelines.problem import chain_problem
from downset.pipelines.single import single_draft
from downset.pipelines.tasks import timed_tasks
from downset.reports.pipeline_sentences import device_loads
from tests.oracles_schedule import settled_period
from tests.pipeline_generators import KINDS, random_chain, random_cluster, random_graph

METHODS = [name for name in PIPELINERS if name not in ("exhaustive", "blocks")]


def instances(count, kind):
    for seed in range(count):
        random = Random(f"resources/{kind}/{seed}")
        problem = random_chain(random, rows=9) if seed % 2 else random_graph(random, units=4, rows=8)
        cluster = random_cluster(random, kind, devices=4)
        duplex = random.choice(["half", "full"])
        yield random, problem, replace(cluster, network=replace(cluster.network, duplex=duplex))


def settles_at(plan):
    """The period of a run of the plan's orders, turn by turn, in exact fractions."""
    timed, _ = timed_tasks(plan.cluster, plan)
    exact = [replace(task, seconds=Fraction(task.seconds), delay_s=Fraction(task.delay_s)) for task in timed]
    orders = [order.turns for order in plan.schedule.orders]
    return float(settled_period(exact, orders, plan.schedule.window, frames=80 + 8 * plan.schedule.window))


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_settles_at_its_period_and_no_load_is_above(kind):
    for _, problem, cluster in instances(6, kind):
        for method in METHODS:
            plan = plan_pipeline(problem, cluster, method=method)
            verify_without_graph(plan)
            assert settles_at(plan) == pytest.approx(plan.period_s, rel=1e-9)
            assert plan.evidence.bound <= plan.schedule.load_bound_s <= plan.period_s * (1 + 1e-12)
            if cluster.network.kind == "links":
                for load in device_loads(plan):
                    together = (load.computing, load.sending + load.receiving)
                    if not cluster.network.overlap:
                        assert sum(together) <= plan.period_s * (1 + 1e-9)
                    elif cluster.network.duplex == "half":
                        assert max(together) <= plan.period_s * (1 + 1e-9)
                    else:
                        assert max(load.computing, load.sending, load.receiving) <= plan.period_s * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_leaders_meet_their_load_bound(kind):
    for _, problem, cluster in instances(20, kind):
        plan = plan_pipeline(problem, cluster, method="pico")
        assert plan.period_s == pytest.approx(plan.schedule.load_bound_s, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_larger_window_and_full_duplex_never_lengthen_a_period(kind):
    for _, problem, cluster in instances(5, kind):
        for method in ("layerwise", "coedge", "pico"):
            windows = [plan_pipeline(problem, cluster, method=method, window=w) for w in (1, 2, 3, 6, None)]
            periods = [plan.period_s for plan in windows]
            assert all(plan.schedule.window <= w for plan, w in zip(windows, (1, 2, 3, 6), strict=False))
            assert all(later <= one * (1 + 1e-9) for one, later in pairwise(periods))
            loads = [
                plan_pipeline(
                    problem, replace(cluster, network=replace(cluster.network, duplex=duplex)), method=method
                ).schedule.load_bound_s
                for duplex in ("half", "full")
            ]
            assert loads[1] <= loads[0] * (1 + 1e-9)


def drafted(problem, cluster, *drafts, **options):
    def method(problem, cluster, **_):
        return FoundPipeline(drafts, 0.0)

    return plan_pipeline(problem, cluster, method=method, **options)


def test_two_blocks_on_two_devices_need_two_frames_inside():
    """The example of docs/pipelines.md: loads of 4 s, a period of 6 s with one frame inside."""
    problem = chain_problem([(10, 1, 1, 1), (10, 1, 1, 1)], rows=4, row_bytes=1)
    cluster = Cluster((Device("A", 10.0), Device("B", 10.0)), Network("links", 1e12, overlap=True))
    splits = [Split(0, 1, (Tile(0, 0, 3), Tile(1, 3, 4))), Split(1, 2, (Tile(0, 0, 1), Tile(1, 1, 4)))]
    one, more = (drafted(problem, cluster, StageDraft(0, tuple(splits)), window=window) for window in (1, None))
    assert one.period_s == pytest.approx(6.0, rel=1e-9)
    assert more.period_s == pytest.approx(4.0, rel=1e-9)
    assert more.schedule.window > 1


def test_sender_and_receiver_both_pay_a_hand_over():
    problem = chain_problem([(10, 1, 1, 5), (10, 1, 1, 5)], rows=4, row_bytes=5)
    cluster = Cluster((Device("A", 10.0), Device("B", 10.0)), Network("links", 10.0))
    stages = [StageDraft(k, (Split(k, k + 1, (Tile(k, 0, 4),)),)) for k in (0, 1)]
    plan = drafted(problem, cluster, *stages)
    assert plan.period_s == pytest.approx(4.0 + 2.0)  # 40 MACs, and 20 bytes, on either side
    assert plan.latency_s == pytest.approx(4.0 + 2.0 + 4.0)
    assert drafted(problem, cluster, *stages, comm="paper").period_s == pytest.approx(4.0)
    loads = device_loads(plan)
    assert (loads[0].sending, loads[0].receiving) == (loads[1].receiving, loads[1].sending) == (2.0, 0.0)


@pytest.mark.parametrize("kind", ["links", "shared"])
def test_a_message_that_occupies_the_network_for_a_part_of_its_time(kind):
    """The example of docs/pipelines.md: two messages of 5 s a frame, each of which occupies the network for 1 s. The
    period is what is occupied, the latency what a frame takes."""
    problem = chain_problem([(1, 1, 1, 5), (1, 1, 1, 5), (1, 1, 1, 5)], rows=2, row_bytes=5)
    devices = tuple(Device(name, 1.0) for name in "ABC")
    slow = Network(kind, 10.0, 4.0, True)
    part = replace(slow, occupied_bytes_per_s=20.0, occupied_latency_s=0.5)
    stages = [StageDraft(k, (Split(k, k + 1, (Tile(k, 0, 2),)),)) for k in range(3)]
    whole, plan = (drafted(problem, Cluster(devices, network), *stages) for network in (slow, part))
    assert whole.period_s == pytest.approx(10.0)  # of the medium, or of B's radio
    assert plan.period_s == pytest.approx(2.0)  # of each device's 2 MACs, and of 1 s for each message
    assert whole.latency_s == plan.latency_s == pytest.approx(3 * 2.0 + 2 * 5.0)
    assert plan.schedule.window == 8
    found = simulate(plan, frames=200)
    assert found.sustained_period_s == pytest.approx(2.0, rel=1e-6)
    for wrong in (slow, replace(part, occupied_latency_s=4.0), replace(part, occupied_bytes_per_s=None)):
        with pytest.raises(InvalidPlan):
            verify_without_graph(replace(plan, cluster=Cluster(devices, wrong)))
    assert device_loads(plan)[1].sending == device_loads(plan)[1].receiving == pytest.approx(1.0)
    said = json.loads(encode_plan(plan))
    said["cluster"]["network"]["occupied_bytes_per_s"] = 9.0
    with pytest.raises(LoadError, match="longer than it takes"):
        decode_plan(json.dumps(said).encode())


def test_source_and_sink_pay_and_outside_moves_nothing():
    problem = chain_problem([(10, 1, 1, 5)], rows=4, row_bytes=5)
    devices = (Device("A", 10.0), Device("B", 5.0), Device("C", 1.0))
    cluster = Cluster(devices, Network("links", 10.0))
    stage = StageDraft(0, (Split(0, 1, (Tile(0, 0, 4),)),))
    free = drafted(problem, cluster, stage)
    assert (free.entry, free.exit, free.source, free.sink) == (0, 0, "outside", "outside")
    assert free.period_s == pytest.approx(4.0)
    paid = drafted(problem, cluster, stage, source="C", sink="B")
    assert (paid.entry, paid.exit, paid.source, paid.sink) == (2, 1, "C", "B")
    assert paid.period_s == pytest.approx(2.0 + 4.0 + 2.0)
    assert drafted(problem, cluster, stage, source="A", sink="A").period_s == pytest.approx(4.0)
    for options, says in (
        ({"source": "D"}, "A, B, C"),
        ({"window": 0}, "at least 1"),
        ({"topology": "ring"}, "leader, direct"),
        ({"topology": "direct", "comm": "paper"}, "has no direct"),
        ({"comm": "paper", "window": 2}, "paper"),
    ):
        with pytest.raises(UsageError, match=says):
            plan_pipeline(problem, cluster, **options)


def test_single_is_the_device_that_does_a_frame_fastest():
    """Against every device tried: what the frame's way there and back costs is counted."""
    others = 0
    for seed in range(40):
        random = Random(f"single/{seed}")
        problem, cluster = random_chain(random, rows=6), random_cluster(random, random.choice(KINDS), devices=3)
        names = [device.name for device in cluster.devices]
        ends = {"source": random.choice(names), "sink": random.choice(names)}
        every = [drafted(problem, cluster, single_draft(problem, device), **ends) for device in range(len(names))]
        found = plan_pipeline(problem, cluster, method="single", **ends)
        assert found.period_s == pytest.approx(min(plan.period_s for plan in every))
        others += found.stages[0].leader != 0
    assert others > 5  # the fastest device comes first


def test_bytes_and_kinds_are_charged_where_a_device_says_so():
    problem = chain_problem([(0, 1, 1, 5), (10, 1, 1, 5)], rows=4, row_bytes=5)
    problem = replace(problem, ops=(problem.ops[0], replace(problem.ops[1], kind="Conv")))
    network = Network("links", 10.0)

    def period(device):
        return plan_pipeline(problem, Cluster((device,), network), method="single").period_s

    assert period(Device("A", 10.0)) == pytest.approx((20 + 20) / 10 + 40 / 10)
    assert period(Device("A", 10.0, bytes_per_s=40.0)) == pytest.approx((20 + 20) / 40 + 40 / 10)
    assert period(Device("A", 10.0, alpha_of={"Conv": 2.0})) == pytest.approx((20 + 20) / 10 + 2 * 40 / 10)
    assert period(Device("A", 10.0, alpha_of={"Gemm": 2.0})) == period(Device("A", 10.0))
