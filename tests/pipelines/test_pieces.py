"""Chains of pieces against a count that knows nothing of states: levels of vertices, every assignment tried."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset import native
from downset.budget import Budget
from downset.errors import InfeasibleError, LimitReached, UsageError
from downset.graph.cost import segment_macs
from downset.graph.row_form import equal_strips
from downset.lattice import bits
from downset.pipelines.pieces import _native_search, piece_problem, pieces
from experiments.pico.algorithm_1 import divided_pieces, partition_graph_into_pieces
from tests.effort import cases
from tests.spatial import spatial_graphs
from zoo import graph as zoo

pytestmark = pytest.mark.native


def _assignments(problem):
    """All ways to number vertices with levels so that every edge spans 0 or 1 and no level is skipped."""
    count = len(problem.vertices)
    for levels in product(range(count), repeat=count):
        edges = ((u, v) for v in range(count) for u in bits(problem.predecessors[v]))
        if set(levels) == set(range(max(levels) + 1)) and all(0 <= levels[v] - levels[u] <= 1 for u, v in edges):
            yield levels


def _is_chain(problem, chain):
    level = {v: number for number, piece in enumerate(chain) for v in piece}
    edges = ((u, v) for v in level for u in bits(problem.predecessors[v]))
    return sorted(level) == list(range(len(problem.vertices))) and all(0 <= level[v] - level[u] <= 1 for u, v in edges)


def _longest(problem, members):
    found = {}
    for v in members:
        found[v] = problem.layers[v] + max((found[u] for u in bits(problem.predecessors[v]) if u in found), default=0)
    return max(found.values())


def _cost(problem, members, strips):
    """Redundant work operator by operator, from the segment arithmetic alone."""
    form = problem.form
    ops = sorted(op for v in members for op in problem.vertices[v])
    made = {tensor for op in ops for tensor in form.ops[op].outputs}
    outside = {item.tensor for op in set(range(len(form.ops))) - set(ops) for item in form.ops[op].inputs}
    read = {item.tensor for op in form.ops for item in op.inputs}
    sinks = [tensor for tensor in made if tensor in outside or tensor in form.outputs or tensor not in read]
    total = 0
    for op in ops:
        # One operator's share: the whole segment less the segment in which that operator costs nothing.
        spent = -_alone(form, ops, op, {t: (0, form.rows[t]) for t in sinks})
        for strip in range(strips):
            spent += _alone(form, ops, op, {t: equal_strips(form.rows[t], strips)[strip] for t in sinks})
        total += max(spent, 0)
    return total


def _alone(form, ops, op, wanted):
    from dataclasses import replace

    silent = replace(
        form, ops=tuple(replace(o, macs_per_row=o.macs_per_row * (i == op)) for i, o in enumerate(form.ops))
    )
    return segment_macs(silent, ops, wanted)


def _best(problem, strips, diameter):
    best = None
    for levels in _assignments(problem):
        groups = [[v for v, at in enumerate(levels) if at == level] for level in range(max(levels) + 1)]
        if all(_longest(problem, group) <= diameter for group in groups):
            costs = [_cost(problem, group, strips) for group in groups]
            option = (max(costs), sum(costs), -len(groups))
            best = option if best is None else min(best, option)
    return best


@given(spatial_graphs(most_ops=5), st.integers(2, 3), st.integers(1, 3))
@settings(max_examples=cases(60))
def test_pieces_equal_brute_force(graph, strips, diameter):
    problem = piece_problem(graph)
    if len(problem.vertices) > 5:
        return
    expected = _best(problem, strips, diameter)
    for plan in (partition_graph_into_pieces, pieces):
        if expected is None:
            with pytest.raises(InfeasibleError):
                plan(problem, strips=strips, diameter=diameter)
        else:
            found = plan(problem, strips=strips, diameter=diameter)
            assert _is_chain(problem, found.pieces)
            assert (found.max_macs, sum(found.costs), -len(found.pieces)) == expected
            assert found.proven and found.refined


@given(spatial_graphs(most_ops=10), st.sampled_from(["sum", "first"]))
@settings(max_examples=cases(60))
def test_native_equals_the_recursion(graph, ties):
    problem = piece_problem(graph)
    try:
        slow = partition_graph_into_pieces(problem, diameter=2, ties=ties)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            pieces(problem, diameter=2, ties=ties)
        return
    fast = pieces(problem, diameter=2, ties=ties)
    assert (fast.max_macs, len(fast.pieces), fast.proven) == (slow.max_macs, len(slow.pieces), True)
    assert ties == "first" or sum(fast.costs) == sum(slow.costs)


@pytest.mark.parametrize(
    ("name", "ties", "layers", "count"),
    [
        ("vgg16", "sum", 19, 19),
        ("squeezenet1_0", "sum", 30, 30),
        ("resnet34", "first", 38, 21),
        ("mobilenet_v3_large", "sum", 71, 31),
        ("inception_v3", "sum", 108, 30),
    ],
)
def test_counts_of_table_4(name, ties, layers, count):
    problem = piece_problem(zoo(name, weights=False))
    found = pieces(problem, ties=ties)
    assert (problem.layer_count, len(found.pieces), found.proven) == (layers, count, True)


@pytest.mark.parametrize(("name", "parts"), [("resnet34", 2), ("resnet34", 8), ("inception_v3", 4)])
def test_divided_pieces_are_a_chain(name, parts):
    problem = piece_problem(zoo(name, weights=False))
    divided, whole = divided_pieces(problem, parts=parts), pieces(problem)
    assert _is_chain(problem, divided.pieces)
    assert all(_longest(problem, piece) <= 5 for piece in divided.pieces)
    assert divided.max_macs >= whole.max_macs


def test_the_first_chain_found_is_a_chain():
    """Without time to settle ties, the search's own chain is returned."""
    problem = piece_problem(zoo("inception_v3", weights=False))
    search = _native_search(problem, 2, 5, 1_000_000)
    assert search.within(10**12, 10.0)[0] is native.compiled.Outcome.SOLVED
    assert _is_chain(problem, search.pieces())
    assert max(search.costs()) <= 10**12


def test_limits_end_the_searches():
    problem = piece_problem(zoo("inception_v3", weights=False))
    with pytest.raises(LimitReached, match="more than 10 "):
        partition_graph_into_pieces(problem, state_limit=10)
    with pytest.raises(LimitReached, match="no chain of pieces within 0 s"):
        pieces(problem, clock=Budget(0.0).start())
    with pytest.raises(InfeasibleError, match="diameter 1"):
        pieces(problem, diameter=1)
    with pytest.raises(UsageError, match="a diameter of 1; given 2 and 0"):
        pieces(problem, diameter=0)
