"""Laws of pipeline plans: of every method, of exact ones, of the simulator."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import jsonschema
import pytest

from downset.clusters.model import Cluster, Device, Network
from downset.clusters.toml_file import load_cluster
from downset.distributed.simulator import Disturbance, simulate
from downset.errors import InfeasibleError, InvalidPlan, LimitReached, LoadError, UsageError
from downset.formats.plan_json import decode_plan, encode_plan, pipeline_schema
from downset.pipelines import network
from downset.pipelines.accounting import Accounting
from downset.pipelines.check import verify_pipeline, verify_stages_cover
from downset.pipelines.device_order import sub_cluster
from downset.pipelines.network import block_units, pipeline_chain, pipeline_units, split_problem
from downset.pipelines.paper_timing import period_and_latency, stages_of
from downset.pipelines.pieces import pieces
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.planners import PIPELINERS
from downset.pipelines.prices import PricedChain
from downset.pipelines.problem import chain_problem
from tests.effort import LONG, cases, untimed
from tests.pipeline_generators import KINDS, faster, random_chain, random_cluster, random_graph
from tests.pipelines.oracles.loads import least_load
from tests.pipelines.oracles.rounds import least_rounds
from tests.pipelines.searches import by_rounds
from zoo import graph

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "schemas" / "pipeline.schema.json"


def instances(count, *, kinds=KINDS):
    for seed in range(count):
        for kind in kinds:
            random = Random(f"law/{kind}/{seed}")
            problem = random_chain(random, rows=12) if seed % 2 else random_graph(random, units=4, rows=10)
            yield random, problem, random_cluster(random, kind, devices=4), random.choice(["paper", "resources"])


@pytest.mark.parametrize("method", PIPELINERS)
def test_every_method_covers_the_network_and_exact_is_never_worse(method):
    for _, problem, cluster, comm in instances(8):
        plan = plan_pipeline(problem, cluster, method=method, comm=comm)  # verify_stages_cover runs inside
        exact = plan_pipeline(problem, cluster, comm=comm)
        assert exact.period_s <= plan.period_s * (1 + 1e-9)
        assert plan.evidence.bound <= plan.period_s
        if exact.evidence.proven:
            assert exact.evidence.bound == exact.period_s


def in_the_space_of_exhaustive(plan):
    """One block a stage, strips from the fastest device down, with a leader. (Those of `pico` and `single` are balanced
    as in Algorithm 3.)"""
    speeds = [device.speed for device in plan.cluster.devices]
    for stage in plan.stages:
        members = [speeds[strip.device] for strip in stage.blocks[0].strips]
        if len(stage.blocks) > 1 or stage.blocks[0].rule != "leader" or members != sorted(members, reverse=True):
            return False
    return True


@pytest.mark.parametrize("comm", ["resources", "paper"])
def test_exhaustive_is_the_best_of_its_space(comm):
    compared = better = 0
    for kind in KINDS:
        for seed in range(cases(60)):
            random = Random(f"every/{kind}/{seed}")
            problem = random_chain(random, rows=9) if seed % 2 else random_graph(random, units=3, rows=8)
            cluster = random_cluster(random, kind, devices=3)
            best = plan_pipeline(problem, cluster, method="exhaustive", comm=comm, time_limit_s=60.0)
            assert not best.stopped
            for method in ("pico", "single"):
                other = plan_pipeline(problem, cluster, method=method, comm=comm)
                if in_the_space_of_exhaustive(other):
                    assert best.period_s <= other.period_s * (1 + 1e-9), (kind, seed, method)
                    compared += 1
                    better += best.period_s < other.period_s * (1 - 1e-9)
    assert compared > cases(60) * len(KINDS)
    assert better


def test_what_is_called_proven_is_the_least():
    """All of `exact`, baselines and bounds too, against the whole search in Python; strides pass rows over."""
    proven, count = 0, cases(250)
    for kind in KINDS:
        for seed in range(count):
            random = Random(f"proof/{kind}/{seed}")
            problem = random_chain(random, layers=4, rows=7) if seed % 3 else random_graph(random, units=3, rows=6)
            cluster = random_cluster(random, kind)
            network = cluster.network
            network = faster(network, random.choice([1.0, 1e3 / network.bytes_per_s]))
            cluster, comm = Cluster(cluster.devices, network), random.choice(["paper", "resources"])
            plan = plan_pipeline(problem, cluster, comm=comm)
            if comm == "paper":
                least = least_rounds(problem, cluster, comm=comm)
            else:
                least = least_load(problem, cluster, Accounting())
            if plan.evidence.proven:
                assert plan.period_s <= least * (1 + 1e-7), (kind, seed)
            assert plan.evidence.bound <= min(plan.period_s, least) * (1 + 1e-7), (kind, seed)
            proven += plan.evidence.proven
    assert proven > 0.55 * count * len(KINDS)


def test_another_device_never_raises_the_period():
    for random, problem, cluster, _ in instances(12):
        comm = "paper"  # what the search is whole for
        more = Cluster((*cluster.devices, Device("extra", random.choice([1.0, 20.0, 50.0]))), cluster.network)
        period = plan_pipeline(problem, cluster, comm=comm).period_s
        assert plan_pipeline(problem, more, comm=comm).period_s <= period * (1 + 1e-9)


def test_the_order_of_devices_changes_nothing():
    for random, problem, cluster, comm in instances(cases(75)):
        order = list(range(len(cluster.devices)))
        random.shuffle(order)
        found, shuffled = (plan_pipeline(problem, c, comm=comm) for c in (cluster, sub_cluster(cluster, order)))
        assert shuffled.period_s == pytest.approx(found.period_s, rel=1e-9)
        assert shuffled.evidence.bound == pytest.approx(found.evidence.bound, rel=1e-9)


@pytest.mark.parametrize("kind", ["links", "pairs", "overlapping links", "shared"])
def test_the_simulator_agrees_with_the_analytic_period(kind):
    for _, problem, cluster, _ in instances(10, kinds=(kind,)):
        comm = "paper"
        for method in ("exact", "pico", "coedge", "optimal_fused"):
            plan = plan_pipeline(problem, cluster, method=method, comm=comm)
            found = simulate(plan, frames=400)
            assert found.completed == 400
            assert found.period_s == pytest.approx(plan.period_s, rel=0.01)
            paced = simulate(plan, frames=20, arrival_s=plan.latency_s * 1.01)
            assert paced.latency_s[0] == pytest.approx(plan.latency_s, rel=1e-9)


def test_a_shared_network_without_overlap_is_bounded_by_the_analytic_period():
    for _, problem, cluster, _ in instances(10, kinds=("shared without overlap",)):
        plan = plan_pipeline(problem, cluster, comm="paper")
        assert simulate(plan, frames=100).period_s >= plan.period_s * (1 - 1e-9)


def two_stages():
    problem = chain_problem([(100, 1, 1, 1), (100, 1, 1, 1)], rows=10, row_bytes=1)
    network = Network("links", 1e9)
    devices = tuple(Device(name, 100.0, power_busy_w=5.0, power_idle_w=1.0) for name in "ab")
    return plan_pipeline(problem, Cluster(devices, network), comm="paper")


def test_disturbed_devices_slow_or_stop_the_pipeline():
    plan = two_stages()
    assert plan.period_s == pytest.approx(10.0, rel=1e-3)
    slow = simulate(plan, frames=40, disturbances=[Disturbance(1, 0.0, 3.0)])
    assert slow.period_s == pytest.approx(30.0, rel=0.01)
    dead = simulate(plan, frames=40, disturbances=[Disturbance(0, 105.0)])
    assert dead.stalled_at_s is not None
    assert 9 <= dead.completed <= 11
    late = simulate(plan, frames=10, disturbances=[Disturbance(0, 5.0, 2.0)])  # changes in the middle of a frame
    assert late.seconds == pytest.approx(5 + 2 * 95 + 10, rel=0.06)
    noisy = [simulate(plan, frames=200, jitter=0.3, seed=seed).period_s for seed in (1, 1, 2)]
    assert noisy[0] == noisy[1] != noisy[2]
    assert noisy[0] > plan.period_s  # two stages that wait for each other
    calm = simulate(plan, frames=100)
    assert calm.utilisation == pytest.approx((1.0, 1.0), abs=0.02)
    assert calm.energy_j == pytest.approx(2 * 5.0 * 10.0, rel=0.02)
    with pytest.raises(UsageError):
        simulate(plan, frames=0)
    with pytest.raises(UsageError):
        simulate(plan, disturbances=[Disturbance(7, 1.0)])


def test_limits_that_cannot_be_met_name_what_would_do():
    problem = chain_problem([(100, 3, 1, 5)] * 4, rows=8, row_bytes=5)
    cluster = Cluster(tuple(Device(f"d{k}", 100.0) for k in range(3)), Network("links", 10.0))
    whole_s = 4 * 8 * 100 / 300
    for limit, error, says in (
        (0.5, InfeasibleError, rf"all devices together compute a frame in {whole_s:.6g} s; the least found is"),
        (whole_s * 0.999, InfeasibleError, "all devices together"),
        (whole_s * 1.001, LimitReached, "was found; the least found is"),
    ):
        with pytest.raises(error, match=says) as caught:
            plan_pipeline(problem, cluster, max_latency_s=limit)
    least = float(str(caught.value).split("the least found is ")[1].split()[0])
    assert plan_pipeline(problem, cluster, max_latency_s=least * 1.001).latency_s <= least * 1.001
    with pytest.raises(LimitReached):
        plan_pipeline(problem, cluster, max_latency_s=least * 0.99)
    free = plan_pipeline(problem, cluster)
    held = plan_pipeline(problem, cluster, max_latency_s=(least + free.latency_s) / 2)
    assert held.period_s >= free.period_s
    with pytest.raises(UsageError, match="exact"):
        plan_pipeline(problem, cluster, method="best")
    with pytest.raises(UsageError, match="paper"):
        plan_pipeline(problem, cluster, comm="none")


def test_memory_limits_shape_the_plan():
    network = graph("squeezenet1_0", image=32)
    roomy = load_cluster("pico_1mac")
    free = plan_pipeline(network, roomy, **untimed(20_000))
    most = max(held.total_bytes for held in free.memory)
    tight = replace(roomy, devices=tuple(replace(d, memory_bytes=int(most * 0.8)) for d in roomy.devices))
    held = plan_pipeline(network, tight, **untimed(20_000))
    verify_pipeline(network, held)
    assert max(device.total_bytes for device in held.memory) <= most * 0.8
    assert held.period_s >= free.period_s
    tiny = replace(roomy, devices=tuple(replace(d, memory_bytes=1000) for d in roomy.devices))
    with pytest.raises(InfeasibleError, match="memory"):
        plan_pipeline(network, tiny)
    with pytest.raises(
        InfeasibleError, match=r"2,052,000 bytes of weights, more .*; [\d,]+ bytes on each .* are enough"
    ):
        plan_pipeline(network, tiny, method="pico")
    with pytest.raises(LimitReached, match=r"would need .* and no plan that fits was found"):
        plan_pipeline(network, tight, method="layerwise", **untimed(300))


NETWORKS = {
    "yolov2": {"image": 128},
    "inception_v3": {"image": 139},
    "mobilenet_v3_large": {"image": 96},
    "resnet34": {"image": 96},
    "squeezenet1_0": {"image": 96},
}


@pytest.mark.parametrize("name", NETWORKS if LONG else ["inception_v3", "squeezenet1_0"])
def test_plans_of_real_networks_verify_and_round_trip(name):
    network = graph(name, weights=False, **NETWORKS[name])
    for cluster, method in (("pico_1mac_cell", "exact"), ("pico_1mac", "early_fused"), ("pico_1mac", "exact")):
        plan = plan_pipeline(network, load_cluster(cluster), method=method, time_limit_s=0.5)
        verify_pipeline(network, plan)
    assert decode_plan(encode_plan(plan)) == plan
    jsonschema.validate(json.loads(encode_plan(plan)), json.loads(SCHEMA.read_text()))


def test_a_longer_limit_searches_the_plans_of_a_shorter_one(monkeypatch):
    """Where pieces take longer than a chain gets, the chain is that of blocks under every limit."""

    def slow(problem, *, clock):
        if clock.left_s() < 20.0:
            raise LimitReached("too slow")
        return pieces(problem, clock=clock)

    net = graph("squeezenet1_0", weights=False, image=96)
    monkeypatch.setattr(network, "pieces", slow)
    short, long = (
        plan_pipeline(net, load_cluster("rpi_8"), method="pico", time_limit_s=seconds) for seconds in (10.0, 100.0)
    )
    assert [stage.ops for stage in short.stages] == [stage.ops for stage in long.stages]
    chain_s = []
    monkeypatch.setattr(
        network, "pieces", lambda problem, *, clock: chain_s.append(clock.budget.seconds) or pieces(problem)
    )
    for limit_s in (10.0, 20.0, 1e6):
        plan_pipeline(net, load_cluster("rpi_8"), method="pico", time_limit_s=limit_s)
    assert chain_s == pytest.approx([chain_s[-1]] * 3, rel=1e-3)


@pytest.mark.parametrize("name", ["inception_v3", "resnet34"])
def test_the_refined_chain_has_the_cuts_of_pieces_and_of_blocks(name):
    network = graph(name, weights=False)
    chain = pipeline_chain(network)
    cuts = set(downsets(chain.units))
    assert {downsets(chain.units)[place] for place in chain.baseline_cuts} == set(downsets(pipeline_units(network)))
    assert set(downsets(block_units(network))) <= cuts
    cluster = load_cluster("rpi_8")
    periods = [
        plan_pipeline(split_problem(network, units), cluster, method=method, comm="paper").period_s
        for units, method in (
            (chain.units, "exact"),
            (block_units(network), "blocks"),
            (pipeline_units(network), "pico"),
        )
    ]
    assert periods[0] <= min(periods[1:]) * (1 + 1e-9)


def downsets(units):
    masks = [0]
    for unit in units:
        masks.append(masks[-1] | sum(1 << op for op in unit))
    return masks


def test_the_schema_file_is_the_schema():
    assert json.loads(SCHEMA.read_text()) == json.loads(json.dumps(pipeline_schema()))
    with pytest.raises(LoadError, match=r"cluster|kind"):
        decode_plan(b'{"kind": "pipeline", "schema": 3, "cluster": {}}')
    for older in (1, 2):
        with pytest.raises(LoadError, match=rf"schema {older}.*make the plan again$"):
            decode_plan(b'{"kind": "pipeline", "schema": %d, "cluster": {}}' % older)


def test_broken_plans_are_named():
    network = graph("squeezenet1_0", image=64, weights=False)
    plan = plan_pipeline(network, load_cluster("pico_1mac"), method="blocks")
    verify_pipeline(network, plan)
    first, *others = plan.stages
    block = first.blocks[0]
    strip = block.strips[0]

    def with_strip(**changes):
        changed = replace(block, strips=(replace(strip, **changes), *block.strips[1:]))
        return replace(plan, stages=(replace(first, blocks=(changed,)), *others))

    def with_task(number, **changes):
        tasks = list(plan.tasks)
        tasks[number] = replace(tasks[number], **changes)
        return replace(plan, tasks=tuple(tasks))

    sends = next(n for n, task in enumerate(plan.tasks) if task.transfer is not None and task.after)
    transfer = plan.tasks[sends].transfer
    rows = transfer.rows[0]
    schedule, orders = plan.schedule, plan.schedule.orders
    several = next(n for n, order in enumerate(orders) if len(order.turns) > 2)

    def with_order(turns):
        changed = replace(orders[several], turns=turns)
        return replace(plan, schedule=replace(schedule, orders=(*orders[:several], changed, *orders[several + 1 :])))

    turns = orders[several].turns
    broken = [
        (replace(plan, stages=plan.stages[1:]), "before one it needs|no stage"),
        (replace(plan, stages=(first, *others[::-1])), "before one it needs"),
        (with_strip(stop=strip.stop - 1), "cover"),
        (with_strip(macs=strip.macs + 1), "MACs"),
        (with_strip(moved_bytes=strip.moved_bytes + 1), "moved bytes"),
        (with_strip(in_bytes=strip.in_bytes + 1), "bytes in"),
        (with_strip(out_bytes=strip.out_bytes + 1), "bytes out"),
        (replace(plan, stages=(replace(first, devices=others[0].devices), *others)), "in stages"),
        (replace(plan, tasks=plan.tasks[:-1]), "no task"),
        (with_task(sends, after=()), "does not have from the tasks before it"),
        (with_task(sends, after=(sends,)), "not all before it"),
        (with_task(sends, transfer=replace(transfer, nbytes=transfer.nbytes - 1)), "its rows are"),
        (with_task(sends, transfer=replace(transfer, rows=(replace(rows, stop=10**6),))), "does not have"),
        (with_order(turns[1:]), "each of its tasks once"),
        (with_order((*turns, turns[0])), "each of its tasks once"),
        (with_order(tuple(replace(turn, behind=turn.behind + 9 * k) for k, turn in enumerate(turns))), "deadlock|take"),
        (replace(plan, schedule=replace(schedule, orders=orders[1:])), "no order of"),
        (replace(plan, schedule=replace(schedule, window=0)), "at least one frame"),
        (replace(plan, schedule=replace(schedule, load_bound_s=0.0)), "load bound"),
        (replace(plan, schedule=None), "no schedule"),
        (replace(plan, exit=plan.entry), "result"),
        (replace(plan, latency_s=plan.latency_s / 2), "latency"),
        (replace(plan, period_s=plan.period_s / 2), "period"),
        (replace(plan, period_s=plan.period_s * 2), "period"),
        (replace(plan, evidence=replace(plan.evidence, bound=plan.period_s * 2)), "bound"),
    ]
    for bad, says in broken:
        with pytest.raises(InvalidPlan, match=says):
            verify_pipeline(network, bad)


def test_stages_must_cover_the_chain():
    plan = two_stages()
    problem = PricedChain(chain_problem([(100, 1, 1, 1), (100, 1, 1, 1)], rows=10, row_bytes=1))
    verify_stages_cover(problem, plan.stages)
    for stages in (plan.stages[:1], plan.stages[1:], plan.stages * 2):
        if len(plan.stages) > 1 or stages != plan.stages:
            with pytest.raises(InvalidPlan):
                verify_stages_cover(problem, stages)


def test_several_fused_blocks_in_a_stage_can_be_best():
    """Deep kernels make fusing expensive; on quick links a stage of two devices scatters again instead."""
    problem = PricedChain(chain_problem([(100, 9, 1, 1), (100, 9, 1, 1), (100, 9, 1, 1)], rows=24, row_bytes=1))
    cluster = Cluster((Device("a", 100.0), Device("b", 100.0)), Network("links", 1e6))
    several, one = (by_rounds(problem, cluster, "paper", several=both) for both in (True, False))
    assert several.period_s < one.period_s * 0.95
    assert max(len(stage.splits) for stage in several.stages) > 1
    assert all(len(stage.splits) == 1 for stage in one.stages)
    stages = stages_of(problem, cluster, several.stages, comm="paper")
    assert period_and_latency(cluster, stages)[0] == pytest.approx(several.period_s, rel=1e-9)
