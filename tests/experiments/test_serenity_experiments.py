"""What SERENITY's figures are computed with, against plain enumeration."""

import random
from collections import Counter
from itertools import permutations
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from downset.arenas.plan import plan_arena
from downset.memory.liveness import lifetimes, order_problem, peak_bytes, profile
from downset.orders.plan import plan_order
from downset.orders.planners import ORDERS
from experiments.serenity.figure3 import orders_by_peak, walked_peaks
from experiments.serenity.figure8 import curve
from experiments.serenity.figure11 import gain
from experiments.serenity.figure12 import arena_over_time, drawing
from experiments.serenity.subjects import CELLS_OF_THE_PAPER, ROUNDED, by_nodes, rewritten, without_concats
from experiments.serenity.swiftnet import part
from tests.plain_graphs import random_graph
from tests.strategies import graphs, plain_graphs
from zoo import graph
from zoo.randwire_cifar import watts_strogatz

exhaustive = ORDERS["exhaustive"]


def is_topological(predecessors, steps):
    done = set()
    for operator in steps:
        if not done.issuperset(predecessors[operator]):
            return False
        done.add(operator)
    return True


@given(graph=plain_graphs(most_ops=6))
@settings(max_examples=25)
def test_every_order_is_counted_once_under_its_peak(graph):
    problem = order_problem(graph, "live")
    orders = permutations(range(len(graph.ops)))
    lawful = (steps for steps in orders if is_topological(problem.predecessors, steps))
    assert orders_by_peak(problem) == Counter(peak_bytes(problem, steps) for steps in lawful)


def test_random_walks_see_only_peaks_that_orders_have():
    problem = order_problem(random_graph(random.Random(3), 9), "live")
    counted, walked = orders_by_peak(problem), walked_peaks(problem, 200)
    assert sum(walked.values()) == 200
    assert len(walked) > 1
    assert walked.keys() <= counted.keys()


def zero_copy(graph, problem):
    """The concatenations that somebody reads and that allocate nothing."""
    read = {tensor for op in graph.ops for tensor in op.inputs}
    return {
        index
        for index, op in enumerate(graph.ops)
        if op.kind == "Concat"
        and op.outputs[0] in read
        and not any(index in storage.producers for storage in problem.storages)
    }


@given(graph=graphs())
def test_leaving_out_zero_copy_concatenations_changes_no_optimum(graph):
    problem = order_problem(graph, "serenity")
    smaller = without_concats(graph, problem)
    assert len(smaller.predecessors) == len(graph.ops) - len(zero_copy(graph, problem))
    assert exhaustive(smaller).bound == exhaustive(problem).bound


@given(graph=graphs())
def test_operators_still_wait_for_each_other_through_a_left_out_concatenation(graph):
    problem = order_problem(graph, "serenity")
    free = zero_copy(graph, problem)
    kept = [index for index in range(len(graph.ops)) if index not in free]
    for position, before in enumerate(without_concats(graph, problem).predecessors):
        waited, frontier = set(), list(problem.predecessors[kept[position]])
        while frontier:
            earlier = frontier.pop()
            if earlier in free:
                frontier += problem.predecessors[earlier]
            else:
                waited.add(earlier)
        assert {kept[earlier] for earlier in before} == waited


def test_the_arena_over_time_ends_where_the_plan_does_and_holds_what_is_live():
    cell = graph("swiftnet_cell_a", weights=False, fused=True)
    order = plan_order(cell, memory=ROUNDED["live"])
    records = lifetimes(cell, order.steps, ROUNDED["live"]).records
    extents = arena_over_time(records, len(order.steps))
    assert max(extents) == plan_arena(records, method="greedy_in_order").arena_bytes
    live = profile(order_problem(cell, ROUNDED["live"]), order.steps)
    assert all(extent >= nbytes for extent, nbytes in zip(extents, live, strict=True))
    assert extents[0] < max(extents)


def test_the_drawing_has_a_line_for_every_row():
    parts = ("with the allocator", "without the allocator")
    rows = [{"part": part, "what": "order", "bytes": 300_000, "over_time": [100, 300_000, 7]} for part in parts]
    lines = ElementTree.fromstring(drawing(rows)).findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.get("points").split()) for line in lines] == [6, 6]


def test_randwire_by_nodes_keeps_its_wiring():
    network = graph("randwire_cifar10", weights=False)
    inside = [at for at, op in enumerate(network.ops) if op.name.startswith("s1/")]
    stage = part(network, inside[0], inside[-1])
    nodes = by_nodes(stage)
    assert len(nodes.ops) == 33  # and the mean behind the 32
    assert nodes.inputs == stage.inputs
    assert nodes.outputs == stage.outputs
    earlier = watts_strogatz_of_stage(1)
    predecessors = nodes.predecessors()
    for node, sources in enumerate(earlier):
        assert set(predecessors[node]) == set(sources)


def watts_strogatz_of_stage(stage):
    drawn = random.Random(0)
    return [watts_strogatz(32, 4, 0.75, drawn) for _ in range(stage + 1)][-1]


@pytest.mark.parametrize(
    ("before", "after", "said"), [(0, 0, "fits"), (10, 0, "gone"), (10, 4, "2.50x"), (10, 20, "0.50x")]
)
def test_what_figure_11_says_of_traffic(before, after, said):
    assert gain(before, after) == said


def test_darts_cell_is_cut_where_rewriting_helps():
    """From 8 tensors of a state to 5: the concatenation's parts are each let go once their convolution is added."""
    cell = CELLS_OF_THE_PAPER["DARTS normal cell"]()
    state = cell.tensors[cell.outputs[0]].nbytes
    peaks = [plan_order(subject, memory="serenity").peak_bytes for subject in (cell, rewritten(cell, "serenity"))]
    assert peaks == [8 * state, 5 * state]
    assert [
        sum(name.startswith(start) for name in CELLS_OF_THE_PAPER)
        for start in ("DARTS", "SwiftNet", "RandWire CIFAR-10 ", "RandWire CIFAR-100 ")
    ] == [1, 3, 2, 3]


@given(graph=plain_graphs(most_ops=9))
@settings(max_examples=25)
def test_a_larger_budget_explores_no_fewer_schedules_and_none_below_the_least_peak_finds_one(graph):
    problem = order_problem(graph, "live")
    least = exhaustive(problem).bound
    peaks, states = zip(*((row["peak"], row["states"]) for row in curve(problem, 5)), strict=True)
    assert peaks[0] is None
    assert set(peaks[1:]) == {least}
    assert list(states) == sorted(states)
