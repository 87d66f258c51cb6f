"""What SERENITY's figures are computed with, against plain enumeration."""

import random
from collections import Counter
from itertools import permutations

from hypothesis import given

from downset.lattice import bits
from downset.liveness import order_problem, peak_bytes
from downset.orders.exhaustive import exhaustive
from experiments.serenity.figure3 import orders_by_peak, walked_peaks
from experiments.serenity.subjects import without_concats
from tests.plain_graphs import random_graph
from tests.strategies import graphs


def is_topological(predecessors, steps):
    done = 0
    for operator in steps:
        if predecessors[operator] & ~done:
            return False
        done |= 1 << operator
    return True


def test_every_order_is_counted_once_under_its_peak():
    for seed in range(12):
        problem = order_problem(random_graph(random.Random(seed), 6), "live")
        lawful = (steps for steps in permutations(range(6)) if is_topological(problem.predecessors, steps))
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
        and not any(storage.producers >> index & 1 for storage in problem.storages)
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
    for position, mask in enumerate(without_concats(graph, problem).predecessors):
        waited, frontier = set(), list(bits(problem.predecessors[kept[position]]))
        while frontier:
            earlier = frontier.pop()
            if earlier in free:
                frontier += bits(problem.predecessors[earlier])
            else:
                waited.add(earlier)
        assert {kept[earlier] for earlier in bits(mask)} == waited
