"""Laws of simulations: of every method's plans, of prices, of arrivals, deaths and jitter."""

from dataclasses import replace
from random import Random

import pytest

from downset.clusters.model import Cluster, Device, Link, Network
from downset.distributed.simulator import Disturbance, simulate
from downset.errors import InvalidPlan, UsageError
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.planners import PIPELINERS
from downset.pipelines.problem import chain_problem
from downset.results.pipelines import Block, PipelineStage, Resource, Strip, Task, Transfer
from downset.results.task_times import plan_seconds, resources_of
from tests.distributed.plans_of_tasks import plan_of
from tests.pipeline_generators import KINDS, random_chain, random_cluster, random_graph


def varied(random, kind):
    """A cluster whose devices differ in all that the model of time knows."""
    cluster = random_cluster(random, kind, devices=4)
    devices = tuple(
        replace(
            device,
            alpha=random.choice([1.0, 1.0, 1.7]),
            bytes_per_s=random.choice([None, None, 4.0, 60.0]),
            duplex=random.choice([None, None, "full", "half"]),
            power_busy_w=5.0,
            power_idle_w=1.0,
        )
        for device in cluster.devices
    )
    return Cluster(devices, replace(cluster.network, duplex=random.choice(["half", "half", "full"])))


def instances(count):
    for seed in range(count):
        for kind in KINDS:
            random = Random(f"simulated/{kind}/{seed}")
            problem = random_chain(random, rows=12) if seed % 2 else random_graph(random, units=4, rows=10)
            yield random, problem, varied(random, kind)


@pytest.mark.parametrize("method", PIPELINERS)
def test_saturated_runs_have_the_period_of_plans_of_every_method(method):
    several = 0
    for random, problem, cluster in instances(6):
        ends = {}
        if random.random() < 0.3:
            ends = {"source": random.choice(cluster.devices).name, "sink": random.choice(cluster.devices).name}
        plan = plan_pipeline(problem, cluster, method=method, window=random.choice([None, None, 1, 2]), **ends)
        found = simulate(plan, frames=150)
        assert found.completed == 150
        assert found.period_s == found.sustained_period_s == pytest.approx(plan.period_s, rel=0.01)
        assert found.arrival_s == pytest.approx(plan.period_s / 0.95, rel=0.01)
        assert found.latency_s[0] <= found.latency_s[-1] <= (plan.schedule.window + 2) * found.arrival_s * (1 + 1e-9)
        shares = zip(found.utilisation, found.sending, found.receiving, strict=True)
        if not cluster.network.overlap:
            assert max(map(sum, shares)) <= 1 + 1e-9
        several += len(plan.tasks) > 1
    assert several > 5 or method == "single"


def test_frames_far_apart_take_no_longer_than_the_window_lasts():
    """Among frames that take no time a frame is never later than in a full stream."""
    for random, problem, cluster in instances(8):
        plan = plan_pipeline(problem, cluster, method=random.choice(["exact", "pico", "coedge", "layerwise"]))
        gap_s = 3 * plan.schedule.window * plan.period_s
        found = simulate(plan, frames=5, arrival_s=gap_s)
        assert found.latency_s[-1] <= plan.schedule.window * plan.period_s * (1 + 1e-9)
        assert found.latency_s[0] >= plan.period_s * (1 - 1e-9) or plan.schedule.window > 1
        assert found.period_s == pytest.approx(gap_s, rel=0.01)


def test_jitter_never_deadlocks_and_stays_the_same_for_a_seed():
    for random, problem, cluster in instances(4):
        plan = plan_pipeline(problem, cluster, method=random.choice(["exact", "pico", "coedge", "layerwise"]))
        for jitter in (0.1, 1.0, 10.0):
            found = [simulate(plan, frames=30, jitter=jitter, seed=4) for _ in range(2)]
            assert found[0] == found[1]
            assert found[0].completed == 30


def hand_plan(network, *, devices=None):
    """A computation of 12 MACs on a, of which 4 by kind Conv, and 6 moved bytes; then 20 bytes from a to b."""
    known = devices or (
        Device("a", 4.0, alpha=2.0, alpha_of={"Conv": 3.0}),
        Device("b", 8.0, alpha=1.0, bytes_per_s=3.0),
    )
    strips = (Strip(0, 0, 1, 12, 3, 6, 0, 0, macs_of={"Conv": 4}), Strip(1, 0, 1, 12, 0, 6, 0, 0, macs_of={"Conv": 4}))
    tasks = (
        Task(0, 0, 0, strip=0),
        Task(0, 0, 1, strip=1),
        Task(0, 0, 0, transfer=Transfer(0, 1, (), 20), after=(0,)),
    )
    stage = PipelineStage((0,), 0, (0, 1), (Block(0, 1, (0,), 0, 1, "leader", strips),), 24, 3)
    return replace(plan_of([], (), 1), cluster=Cluster(known, network), stages=(stage,), tasks=tasks)


def test_prices_worked_by_hand():
    """a: (8 * 2 + 4 * 3) / 4 + 6 * 2 / 4; b: (8 + 4) / 8 + 6 / 3; 20 bytes at 5 and 0.5 s, a pair at 10 and 0.25 s."""
    plan = hand_plan(Network("links", 5.0, 0.5))
    assert plan_seconds(plan) == [7 + 3, 1.5 + 2, 4.5]
    pair = hand_plan(Network("links", 5.0, 0.5, links=(Link((0, 1), 10.0, 0.25),)))
    assert plan_seconds(pair)[2] == 2.25
    paper = replace(plan, comm="paper")
    assert plan_seconds(paper) == [6.0, 1.5, 4.5]


@pytest.mark.parametrize(
    ("network", "duplex", "computes", "sends"),
    [
        (Network("links", 1.0), None, {"device 0"}, {"device 0", "device 1"}),
        (Network("links", 1.0, duplex="full"), None, {"device 0"}, {"device 0", "device 1"}),
        (Network("links", 1.0, overlap=True), None, {"processor 0"}, {"radio 0", "radio 1"}),
        (Network("links", 1.0, overlap=True, duplex="full"), None, {"processor 0"}, {"send 0", "receive 1"}),
        (Network("links", 1.0, overlap=True), "full", {"processor 0"}, {"radio 0", "receive 1"}),
        (Network("shared", 1.0), None, {"device 0"}, {"device 0", "device 1", "medium -1"}),
        (Network("shared", 1.0, overlap=True, duplex="full"), None, {"processor 0"}, {"medium -1"}),
    ],
)
def test_what_tasks_occupy(network, duplex, computes, sends):
    plan = hand_plan(network, devices=(Device("a", 1.0), Device("b", 1.0, duplex=duplex)))

    def named(task):
        return {f"{resource.kind} {resource.device}" for resource in resources_of(plan.cluster, task)}

    assert named(plan.tasks[0]) == computes
    assert named(plan.tasks[2]) == sends
    assert isinstance(resources_of(plan.cluster, plan.tasks[0])[0], Resource)


def test_a_cluster_that_is_not_the_planned_one_gives_another_period():
    """Times are priced from MACs and the cluster: nothing is taken from what the plan says of its period."""
    plan = two_stages()
    slow = replace(plan.cluster, devices=(replace(plan.cluster.devices[0], alpha=4.0), *plan.cluster.devices[1:]))
    assert simulate(replace(plan, cluster=slow), frames=60).period_s == pytest.approx(4 * plan.period_s, rel=0.01)


def two_stages(comm="resources"):
    """Two devices, 10 s each a frame, transfers of no account."""
    problem = chain_problem([(100, 1, 1, 1), (100, 1, 1, 1)], rows=10, row_bytes=1)
    devices = tuple(Device(name, 100.0, power_busy_w=5.0, power_idle_w=1.0) for name in "ab")
    return plan_pipeline(problem, Cluster(devices, Network("links", 1e9)), comm=comm)


@pytest.mark.parametrize("comm", ["resources", "paper"])
def test_frames_that_come_too_fast_are_said_to_and_queue(comm):
    plan = two_stages(comm)
    fast = simulate(plan, frames=101, arrival_s=plan.period_s / 2)
    assert fast.falls_behind
    assert fast.period_s == pytest.approx(plan.period_s, rel=0.01)
    assert 45 <= fast.last_waiting <= fast.most_waiting <= 51
    assert fast.latency_s[-1] > 45 * plan.period_s
    calm = simulate(plan, frames=101, arrival_s=plan.period_s * 1.05)
    assert not calm.falls_behind
    assert calm.most_waiting <= 1
    assert calm.latency_s[-1] <= 1.1 * plan.latency_s
    assert calm.period_s == pytest.approx(1.05 * plan.period_s, rel=0.01)
    assert calm.sustained_period_s == pytest.approx(plan.period_s, rel=0.01)


@pytest.mark.parametrize("comm", ["resources", "paper"])
def test_latencies_without_arrivals_are_those_at_a_rate_that_is_sustained(comm):
    """With a frame always waiting they would grow with what waits inside."""
    plan = two_stages(comm)
    found = simulate(plan, frames=200)
    assert found.arrival_s == pytest.approx(plan.period_s / 0.95, rel=0.01)
    assert found.latency_s == pytest.approx((plan.latency_s,) * 4, rel=0.11)
    assert found.utilisation == pytest.approx((1.0, 1.0), abs=0.02)
    assert found.energy_j == pytest.approx(2 * 5.0 * 10.0, rel=0.02)


@pytest.mark.parametrize("comm", ["resources", "paper"])
def test_after_a_death_there_is_what_was_completed_and_no_period_of_few_frames(comm):
    """Frames that were past the dead device leave close together: no period is made of them."""
    plan = two_stages(comm)
    told = 0
    for seed in range(20):
        for periods in (0.0, 1.5, 3.2, 6.4, 60.0):
            dies_s = periods * plan.period_s
            found = simulate(plan, frames=100, jitter=0.5, seed=seed, disturbances=[Disturbance(1, dies_s)])
            assert found.completed <= 1.3 * periods + 8
            assert found.completed < 100
            assert found.stalled_at_s >= dies_s
            assert found.period_s is None or found.period_s > 0.6 * plan.period_s
            assert found.sustained_period_s > 0.8 * plan.period_s
            told += found.period_s is not None
    assert told >= 15


def test_a_death_among_many_frames_leaves_the_period_before_it():
    plan = two_stages()
    found = simulate(plan, frames=400, disturbances=[Disturbance(0, 100.5 * plan.period_s)])
    assert 99 <= found.completed <= 101
    assert found.period_s == pytest.approx(plan.period_s, rel=0.01)
    assert found.stalled_at_s == pytest.approx(100.5 * plan.period_s)


def test_a_slow_device_slows_the_pipeline_from_then_on():
    plan = two_stages()
    assert simulate(plan, frames=60, disturbances=[Disturbance(1, 0.0, 3.0)]).period_s == pytest.approx(30.0, rel=0.01)
    late = simulate(plan, frames=10, disturbances=[Disturbance(0, 5.0, 2.0)])  # in the middle of a frame
    assert late.seconds == pytest.approx(5 + 2 * 95 + 10, rel=0.06)


def test_arguments_without_sense_are_refused():
    plan = two_stages()
    for wrong in ({"frames": 0}, {"jitter": -1.0}, {"arrival_s": 0.0}, {"disturbances": [Disturbance(7, 1.0)]}):
        with pytest.raises(UsageError):
            simulate(plan, **wrong)
    with pytest.raises(InvalidPlan):
        simulate(replace(plan, schedule=replace(plan.schedule, orders=plan.schedule.orders[:1])))
