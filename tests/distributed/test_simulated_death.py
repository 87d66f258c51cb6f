"""Dead devices in the simulator: what needs them stops, whether they compute anything or not."""

from __future__ import annotations

import pytest

from downset.clusters.model import Cluster, Device, Network
from downset.distributed.plan_run import run_plan
from downset.distributed.simulated_run import Conditions
from downset.distributed.simulator import Disturbance, simulate
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft, Tile
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.problem import chain_problem
from downset.reports.pipeline_sentences import stage_rows
from downset.results.task_times import ends_of

LINKS = Network("links", 10.0)
SHARED = Network("shared", 10.0)
OVERLAPPING = Network("shared", 10.0, overlap=True)


def drafted(layers, network, *drafts, comm="resources"):
    """A plan of these stages for devices a, b, c and d of equal speed."""
    cluster = Cluster(tuple(Device(name, 100.0) for name in "abcd"), network)

    def method(problem, cluster, **options):
        return FoundPipeline(drafts, 0.0)

    return plan_pipeline(chain_problem(layers, rows=8, row_bytes=1), cluster, method=method, comm=comm)


def stage(leader, start, stop, *tiles):
    return StageDraft(leader, (Split(start, stop, tuple(Tile(*tile) for tile in tiles)),))


def pooling(network, comm="resources"):
    """Device a computes 8 s, b only pools what a made and hands it to c."""
    layers = [(100, 3, 1, 1), (0, 3, 1, 1), (100, 1, 1, 1)]
    stages = (stage(0, 0, 1, (0, 0, 8)), stage(1, 1, 2, (1, 0, 8)), stage(2, 2, 3, (2, 0, 8)))
    return drafted(layers, network, *stages, comm=comm)


@pytest.mark.parametrize("comm", ["resources", "paper"])
@pytest.mark.parametrize("network", [LINKS, SHARED, OVERLAPPING])
def test_a_dead_device_that_only_pools_stops_the_pipeline(network, comm):
    plan = pooling(network, comm)
    alive = simulate(plan, frames=30)
    assert alive.completed == 30
    assert alive.stalled_at_s is None
    dead = simulate(plan, frames=30, disturbances=[Disturbance(1, 100.0)])
    assert dead.stalled_at_s is not None
    assert 100.0 <= dead.stalled_at_s <= 100.0 + plan.latency_s
    # frames that were past it still leave
    assert 100.0 / plan.period_s - 4 < dead.completed < 100.0 / plan.period_s + 2
    assert dead.seconds <= 100.0 + 8.0 + plan.latency_s


@pytest.mark.parametrize("network", [LINKS, SHARED, OVERLAPPING])
def test_a_dead_leader_without_a_strip_stops_the_pipeline(network):
    plan = drafted([(100, 3, 1, 1)], network, stage(1, 0, 1, (0, 0, 4), (2, 4, 8)))
    assert stage_rows(plan, plan.stages[0]) == ["b*: none a: 0-4 c: 4-8"]
    dead = simulate(plan, frames=50, disturbances=[Disturbance(1, 50.0)])
    assert dead.stalled_at_s is not None
    assert dead.completed < 50
    assert dead.stalled_at_s >= 50.0
    stillborn = simulate(plan, frames=50, disturbances=[Disturbance(1, 0.0)])
    assert (stillborn.completed, stillborn.stalled_at_s) == (0, 0.0)


def test_a_transfer_stops_when_its_device_dies():
    plan = drafted([(100, 1, 1, 1)], LINKS, stage(1, 0, 1, (0, 0, 8)))
    sent = plan.tasks[0].transfer.nbytes
    assert sent / 10.0 == pytest.approx(0.8)
    dead = simulate(plan, frames=3, disturbances=[Disturbance(1, 0.5)])
    assert (dead.completed, dead.stalled_at_s) == (0, 0.5)


def test_a_dead_transfer_leaves_the_shared_network_to_others():
    """The first stage's leader dies half way through a message: frames that are past it still need the network."""
    stages = (stage(1, 0, 1, (0, 0, 8)), stage(2, 1, 2, (2, 0, 8)), stage(3, 2, 3, (3, 0, 8)))
    plan = drafted([(100, 1, 1, 1)] * 3, SHARED, *stages)
    ran = {}

    def observe(frame, task, begin, end):
        ran[frame, task] = (begin, end)

    calm = Conditions(4, jitter=0.0, seed=0, disturbances=())
    run_plan(plan, calm, frames=9, observe=observe)
    (handed,) = [k for k, task in enumerate(plan.tasks) if task.transfer and (task.transfer.target == 2)]
    dies_s = sum(ran[4, handed]) / 2
    needs = [k for k, task in enumerate(plan.tasks) if 1 in ends_of(task)]
    past = [frame for frame in range(9) if max(ran[frame, k][1] for k in needs) <= dies_s]
    under_way = [frame for frame in past if max(ran[frame, k][1] for k in range(len(plan.tasks))) > dies_s]
    assert under_way
    dead = simulate(plan, frames=9, disturbances=[Disturbance(1, dies_s)])
    assert (dead.completed, dead.stalled_at_s) == (len(past), pytest.approx(dies_s))


def test_a_device_that_comes_back_goes_on_where_it_stopped():
    plan = drafted([(100, 1, 1, 1)], LINKS, stage(1, 0, 1, (0, 0, 8)))
    alone = simulate(plan, frames=1)
    away = [Disturbance(1, 0.5), Disturbance(1, 10.5, 1.0)]
    assert simulate(plan, frames=1, disturbances=away).seconds == pytest.approx(alone.seconds + 10.0)
    twice = [Disturbance(1, 0.5), Disturbance(1, 0.6), Disturbance(1, 10.5, 1.0)]
    back = simulate(plan, frames=1, disturbances=twice)
    assert (back.seconds, back.stalled_at_s) == (pytest.approx(alone.seconds + 10.0), None)
