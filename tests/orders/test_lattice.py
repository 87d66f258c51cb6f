"""The lattice against set-based definitions on small random graphs."""

import math
from itertools import accumulate, combinations
from random import Random

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset import lattice
from downset.errors import LimitReached
from downset.graph.width import width
from tests.strategies import precedences


@st.composite
def masks(draw):
    """Precedences relabelled: the index order says nothing."""
    forward = draw(precedences())
    count = len(forward)
    label = draw(st.permutations(range(count)))
    relabelled = [0] * count
    for operator, before in enumerate(forward):
        relabelled[label[operator]] = sum(1 << label[earlier] for earlier in lattice.bits(before))
    return relabelled


def closed(predecessors, chosen):
    return all(earlier in chosen for operator in chosen for earlier in lattice.bits(predecessors[operator]))


def all_downsets(predecessors):
    everything = range(len(predecessors))
    return {
        sum(1 << operator for operator in chosen)
        for size in range(len(predecessors) + 1)
        for chosen in combinations(everything, size)
        if closed(predecessors, set(chosen))
    }


@given(masks())
def test_downsets_are_the_closed_sets_each_once_by_size(predecessors):
    found = list(lattice.downsets(predecessors))
    assert len(found) == len(set(found))
    assert set(found) == all_downsets(predecessors)
    assert [mask.bit_count() for mask in found] == sorted(mask.bit_count() for mask in found)
    assert lattice.count_downsets(predecessors) == len(found)


@given(masks())
def test_ready_is_what_keeps_a_downset_closed(predecessors):
    for downset in all_downsets(predecessors):
        expected = [
            operator
            for operator in range(len(predecessors))
            if not downset >> operator & 1 and closed(predecessors, set(lattice.bits(downset | 1 << operator)))
        ]
        assert list(lattice.ready(predecessors, downset)) == expected


@given(masks())
def test_closures_and_reduction_agree_with_networkx(predecessors):
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(predecessors)))
    graph.add_edges_from((e, v) for v, before in enumerate(predecessors) for e in lattice.bits(before))
    above, below = lattice.ancestors(predecessors), lattice.descendants(predecessors)
    for operator in graph:
        assert set(lattice.bits(above[operator])) == networkx.ancestors(graph, operator)
        assert set(lattice.bits(below[operator])) == networkx.descendants(graph, operator)
    reduced = networkx.transitive_reduction(graph)
    assert {(e, v) for v, m in enumerate(lattice.reduction(predecessors)) for e in lattice.bits(m)} == set(
        reduced.edges
    )


@given(precedences())
def test_width_is_the_largest_set_of_unordered_operators(predecessors):
    below = lattice.descendants(predecessors)
    largest = 0
    for size in range(len(predecessors) + 1):
        for chosen in combinations(range(len(predecessors)), size):
            if all(not below[a] >> b & 1 and not below[b] >> a & 1 for a, b in combinations(chosen, 2)):
                largest = size
    assert width(lattice.lists(predecessors)) == largest


@given(precedences())
def test_parts_are_cut_behind_every_operator_that_is_comparable_with_all_others(predecessors):
    above, below = lattice.ancestors(predecessors), lattice.descendants(predecessors)
    everything = (1 << len(predecessors)) - 1
    ends = [v + 1 for v in range(len(predecessors)) if above[v] | below[v] | 1 << v == everything]
    parts = lattice.divided(lattice.lists(predecessors))
    assert [0, *accumulate(map(len, parts))] == sorted({0, len(predecessors), *ends})
    assert lattice.count_downsets(predecessors) == 1 + sum(
        lattice.count_downsets(lattice.masks(part)) - 1 for part in parts
    )
    assert width(lattice.lists(predecessors)) == max((width(part) for part in parts), default=0)


@given(masks())
def test_lists_and_masks_are_the_same_sets(predecessors):
    assert lattice.masks(lattice.lists(predecessors)) == tuple(predecessors)
    assert lattice.masks(lattice.successor_lists(lattice.lists(predecessors))) == lattice.successors(predecessors)


@given(st.integers(0, 10_000), st.integers(2, 120), st.integers(1, 40))
def test_width_of_larger_graphs_agrees_with_a_matching_of_the_closure(seed, count, window):
    random = Random(seed)
    predecessors = [
        tuple(sorted(random.sample(range(max(0, v - window), v), min(v, window, random.randint(0, 3)))))
        for v in range(count)
    ]
    closure = networkx.Graph()
    for v, above in enumerate(lattice.ancestors(lattice.masks(predecessors))):
        closure.add_node(("entry", v))
        closure.add_edges_from((("entry", v), ("exit", earlier)) for earlier in lattice.bits(above))
    entries = {node for node in closure if node[0] == "entry"}
    matched = networkx.bipartite.maximum_matching(closure, entries)
    assert width(predecessors) == count - len(matched) // 2


@given(masks())
def test_topological_order_takes_the_lowest_ready_operator(predecessors):
    downset = 0
    for operator in lattice.topological(predecessors):
        assert operator == next(lattice.ready(predecessors, downset))
        downset |= 1 << operator
    assert downset == (1 << len(predecessors)) - 1


def test_a_cycle_is_refused():
    with pytest.raises(ValueError, match="cycle"):
        lattice.topological([0b10, 0b01])


@given(masks(), st.integers(0, 10))
def test_downsets_are_counted_exactly_up_to_a_limit(predecessors, below):
    count = len(all_downsets(predecessors))
    assert lattice.count_downsets(predecessors, limit=count) == count
    with pytest.raises(LimitReached, match=f"more than {max(count - 1 - below, 0)} downsets"):
        lattice.count_downsets(predecessors, limit=max(count - 1 - below, 0))


def test_counting_stops_at_its_limit():
    with pytest.raises(LimitReached):
        lattice.count_downsets([0] * 20, limit=1000)
    with pytest.raises(LimitReached):  # the second level alone has 50 million
        lattice.count_downsets([0] * 10_000, limit=1000)


@pytest.mark.parametrize("count", [1, 5, 12])
def test_the_estimate_is_exact_where_every_walk_weighs_the_same(count):
    independent = [()] * count
    chain = [(), *((operator,) for operator in range(count - 1))]
    assert lattice.estimate_downsets(independent, samples=3) == 2**count
    assert lattice.estimate_downsets(chain, samples=3) == count + 1


def test_the_estimate_passes_the_largest_float():
    independent = lattice.estimate_downsets([()] * 1500, samples=2)
    assert abs(math.log2(independent) - 1500) < 1e-6


def test_the_estimate_comes_close_on_an_irregular_graph():
    predecessors = [0, 0, 1, 1, 2, 12, 4, 96, 16, 0, 512, 1536, 8, 256]
    exact = lattice.count_downsets(predecessors)
    assert 0.7 * exact < lattice.estimate_downsets(lattice.lists(predecessors), samples=2000) < 1.4 * exact
