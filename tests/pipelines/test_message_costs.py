"""What messages, frames and results take of processors: prices worked by hand in all four codes that price a plan, and
laws against the naive oracle of loads."""

from dataclasses import replace
from random import Random

import pytest

from downset import load, plan_pipeline, simulate
from downset.clusters.model import Cluster, Device, Link, MessageCosts, Network, ProcessorCost
from downset.distributed.serving.planning import slowed
from downset.errors import InvalidPlan
from downset.pipelines.check import verify_pipeline, verify_without_graph
from downset.pipelines.exact import message_guides
from downset.pipelines.tasks import timed_tasks
from downset.results.pipelines import Block, PipelineStage, Strip, Task, Transfer
from downset.results.task_times import plan_seconds
from tests.distributed.plans_of_tasks import plan_of
from tests.models import branchy_model
from tests.oracles_loads import Loads
from tests.pipeline_generators import random_messages, random_setting

COSTS = MessageCosts(
    ProcessorCost(0.5, 0.01), ProcessorCost(0.25, 0.02), ProcessorCost(1.0, 0.1), ProcessorCost(2.0, 0.2)
)
OVERLAPPING = ("overlapping links", "overlapping pairs", "shared")


def hand_plan(network):
    """Device a computes 3 s and 1 s, b computes 2 s. Two messages of 10 and 20 bytes go from a to b, and the frame of
    40 bytes comes to a, from where its result of 5 bytes goes."""
    devices = (Device("a", 1.0, messages=COSTS), Device("b", 1.0, messages=COSTS))
    strips = (Strip(0, 0, 1, 3, 0, 0, 0, 0), Strip(0, 1, 2, 1, 0, 0, 0, 0), Strip(1, 2, 3, 2, 0, 0, 0, 0))
    tasks = (
        Task(0, 0, 0, strip=0),
        Task(0, 0, 0, transfer=Transfer(0, 1, (), 10), after=(0,)),
        Task(0, 0, 0, strip=1),
        Task(0, 0, 0, transfer=Transfer(0, 1, (), 20), after=(2,)),
        Task(0, 0, 1, strip=2, after=(1, 3)),
    )
    stage = PipelineStage((0,), 0, (0, 1), (Block(0, 1, (0,), 0, 3, "leader", strips),), 6, 0)
    return replace(
        plan_of([], (), 1),
        cluster=Cluster(devices, network),
        stages=(stage,),
        tasks=tasks,
        frame_bytes=40,
        result_bytes=5,
    )


@pytest.mark.parametrize(
    ("network", "a", "b"),
    [
        # of a: two sends 0.6 + 0.7, the frame 1 + 4, the result 2 + 1; of b: two receipts 0.45 + 0.65
        (Network("links", 10.0, overlap=True), 9.3, 1.1),
        (Network("shared", 10.0, overlap=True), 9.3, 1.1),
        # a message has both ends to itself anyway; frames and results are charged
        (Network("links", 10.0), 8.0, 0.0),
    ],
)
def test_prices_worked_by_hand(network, a, b):
    plan = hand_plan(network)
    wanted = [3 + a * 3 / 4, 1.0, 1 + a / 4, 2.0, 2 + b]
    for found in (
        plan_seconds(plan),
        [task.seconds for task in timed_tasks(plan.cluster, plan)[0]],
    ):
        assert found == pytest.approx(wanted)
    free = replace(plan, cluster=Cluster(tuple(replace(one, messages=None) for one in plan.cluster.devices), network))
    assert plan_seconds(free) == pytest.approx([3, 1, 1, 2, 2])
    slow = plan_seconds(replace(plan, cluster=slowed(plan.cluster, {"a": 2.0})))
    assert (slow[0], slow[4]) == pytest.approx((2 * wanted[0], wanted[4]))


@pytest.mark.parametrize(
    ("network", "others"),
    [
        # c hears of both messages, of the frame and of the result; b of the frame and of the result
        (Network("links", 10.0, overlap=True), (0.0, 2 * 0.5, 4 * 0.5)),
        (Network("shared", 10.0, overlap=True), (0.0, 2 * 0.5, 4 * 0.5)),
        (Network("links", 10.0), (0.0, 2 * 0.5, 2 * 0.5)),
    ],
)
def test_devices_pay_for_the_messages_of_others(network, others):
    """c computes 4 s in two strips of 3 s and 1 s, and has no part in a message."""
    plan, costs = hand_plan(network), MessageCosts(others_s=0.5)
    strips = (*plan.stages[0].blocks[0].strips, Strip(2, 3, 4, 3, 0, 0, 0, 0), Strip(2, 4, 5, 1, 0, 0, 0, 0))
    stage = replace(plan.stages[0], blocks=(replace(plan.stages[0].blocks[0], strips=strips),))
    plan = replace(
        plan,
        stages=(stage,),
        tasks=(*plan.tasks, Task(0, 0, 2, strip=3), Task(0, 0, 2, strip=4)),
        cluster=Cluster(tuple(Device(name, 1.0, messages=costs) for name in "abc"), network),
    )
    a, b, c = others
    wanted = [3 + a, 1.0, 1.0, 2.0, 2 + b, 3 + c * 3 / 4, 1 + c / 4]
    for found in (
        plan_seconds(plan),
        [task.seconds for task in timed_tasks(plan.cluster, plan)[0]],
    ):
        assert found == pytest.approx(wanted)
    slow = plan_seconds(replace(plan, cluster=slowed(plan.cluster, {"c": 2.0})))
    assert slow == pytest.approx([*wanted[:5], 2 * wanted[5], 2 * wanted[6]])


def settings(count, kinds=OVERLAPPING, *, rows=4, layers=2):
    for kind in kinds:
        for seed in range(count):
            random = Random(f"messages/{kind}/{seed}")
            problem, cluster, source, sink = random_setting(random, kind, rows=rows, layers=layers)
            members = tuple(replace(device, messages=random_messages(random)) for device in cluster.devices)
            yield random, problem, replace(cluster, devices=members), source, sink


def named(cluster, device):
    return None if device is None else cluster.devices[device].name


def test_exact_is_between_its_bound_and_what_it_plans_against_every_plan():
    """No plan of one block a stage is below the bound, and none that is found is below the least of all of them."""
    charged = 0
    for _, problem, cluster, source, sink in settings(4):
        least, _ = Loads(problem, cluster, source, sink).least()
        free = Cluster(tuple(replace(one, messages=None) for one in cluster.devices), cluster.network)
        plan = plan_pipeline(problem, cluster, source=named(cluster, source), sink=named(cluster, sink))
        verify_without_graph(plan)
        assert plan.evidence.bound <= least * (1 + 1e-9) or plan.period_s < least
        if plan.evidence.proven:
            assert plan.period_s <= least * (1 + 1e-9)
        if all(len(stage.blocks) == 1 and stage.blocks[0].rule == "leader" for stage in plan.stages):
            assert plan.period_s >= least * (1 - 1e-9) or any(s.columns for s in plan.stages[0].blocks[0].strips)
        cheaper = plan_pipeline(problem, free, source=named(cluster, source), sink=named(cluster, sink))
        assert cheaper.period_s <= plan.period_s * (1 + 1e-9)
        charged += cheaper.period_s < plan.period_s
    assert charged > 4


def test_every_method_pays_and_a_simulation_keeps_the_period():
    for _, problem, cluster, source, sink in settings(2, rows=6):
        for method in ("single", "pico", "coedge", "early_fused"):
            plan = plan_pipeline(
                problem, cluster, method=method, source=named(cluster, source), sink=named(cluster, sink)
            )
            verify_without_graph(plan)
            if plan.period_s:
                assert simulate(plan, frames=40).sustained_period_s == pytest.approx(plan.period_s, rel=0.01)
        plan = plan_pipeline(problem, cluster, method="single")
        device = plan.cluster.devices[plan.entry]
        if device.messages is None:
            continue
        free = replace(plan.cluster, devices=tuple(replace(one, messages=None) for one in plan.cluster.devices))
        charge = device.messages.frame.of(plan.frame_bytes) + device.messages.result.of(plan.result_bytes)
        alone = plan_seconds(replace(plan, cluster=free))
        assert plan.period_s == pytest.approx(sum(alone) + charge)


def test_costs_of_nothing_change_nothing():
    for _, problem, cluster, *_ in settings(4, rows=5):
        free, zero = (
            replace(cluster, devices=tuple(replace(one, messages=costs) for one in cluster.devices))
            for costs in (None, MessageCosts())
        )
        one, two = (plan_pipeline(problem, c, method="pico") for c in (free, zero))
        assert (one.stages, one.tasks, one.schedule, one.period_s) == (
            two.stages,
            two.tasks,
            two.schedule,
            two.period_s,
        )


def test_guides_are_of_costs_where_messages_and_computing_overlap():
    devices = (Device("a", 1.0, messages=COSTS), Device("b", 1.0), Device("c", 1.0, messages=COSTS))
    network = Network("shared", 10.0, overlap=True)
    processors, turns = message_guides(Cluster(devices, network))
    assert turns.network == replace(network, overlap=False)
    assert processors.network.links[0] == Link((0, 1), pytest.approx(4 / 0.03), pytest.approx(0.75 / 4))
    assert message_guides(Cluster(devices, replace(network, overlap=False))) == ()
    assert message_guides(Cluster((Device("a", 1.0),), network)) == ()


def test_bytes_of_frames_are_those_of_the_model(tmp_path):
    graph = load(branchy_model(tmp_path / "m.onnx"))
    devices = tuple(Device(name, 1e9, messages=COSTS) for name in "ab")
    plan = plan_pipeline(graph, Cluster(devices, Network("links", 1e6, overlap=True)), method="single")
    verify_pipeline(graph, plan)
    assert plan.frame_bytes == sum(graph.tensors[tensor].nbytes for tensor in graph.inputs)
    assert plan.result_bytes == sum(graph.tensors[tensor].nbytes for tensor in graph.outputs)
    for wrong in ({"frame_bytes": 7}, {"result_bytes": 0}, {"frame_bytes": -1}):
        with pytest.raises(InvalidPlan):
            verify_pipeline(graph, replace(plan, **wrong))
