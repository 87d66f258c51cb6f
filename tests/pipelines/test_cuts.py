"""Cuts that may be any downset: what they carry, counted tensor by tensor, and the order that carries least."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from unittest.mock import patch

import pytest
from hypothesis import given, settings

from downset.clusters.toml_file import load_cluster
from downset.errors import InfeasibleError
from downset.graph.core import Op
from downset.lattice import bits
from downset.pipelines import network
from downset.pipelines.cuts import refined_cuts, thinned
from downset.pipelines.network import block_units, pipeline_chain, priced_chain
from downset.pipelines.pieces import piece_problem, pieces
from downset.pipelines.plan import plan_pipeline
from tests.effort import cases
from tests.spatial import Builder, spatial_graphs
from zoo import graph as zoo


def _carried(graph, problem, cut):
    ops = {op for v in bits(cut) for op in problem.vertices[v]}
    there = set(graph.inputs) | {t for op in ops for t in graph.ops[op].outputs}
    later = {t for op in set(range(len(graph.ops))) - ops for t in graph.ops[op].inputs} | set(graph.outputs)
    return sum(graph.tensors[t].nbytes for t in there & later)


@given(spatial_graphs(most_ops=6))
@settings(max_examples=cases(60))
def test_carried_bytes_and_the_least_order(graph):
    problem = piece_problem(graph)
    count = len(problem.vertices)
    if count > 6:
        return
    chain = refined_cuts(problem)
    assert chain.exact
    assert list(chain.carried) == [_carried(graph, problem, cut) for cut in chain.cuts]
    best = None
    for order in permutations(range(count)):
        cut, total = 0, 0
        for v in order:
            if problem.predecessors[v] & ~cut:
                break
            cut |= 1 << v
            total += _carried(graph, problem, cut)
        else:
            best = total if best is None else min(best, total)
    assert sum(chain.carried[1:]) == best


@given(spatial_graphs(most_ops=10))
@settings(max_examples=cases(40))
def test_units_are_joined_where_they_are_too_many_to_price(graph):
    fine = pipeline_chain(graph)
    for most in (1, 2, 4, len(fine.units)):
        with patch.object(network, "_MOST_UNITS", most):
            joined = priced_chain(graph, fine)
        assert len(joined.units) <= most
        assert sorted(op for unit in joined.units for op in unit) == list(range(len(graph.ops)))
        known = {_before(fine.units, cut) for cut in fine.baseline_cuts}
        cuts = [_before(joined.units, cut) for cut in range(len(joined.units) + 1)]
        assert {cuts[cut] for cut in joined.baseline_cuts} <= known
        assert (joined is fine) == (len(fine.units) <= most)


def _before(units, cut):
    return frozenset(op for unit in units[:cut] for op in unit)


@given(spatial_graphs(most_ops=10))
@settings(max_examples=cases(40))
def test_cuts_of_the_chain_of_pieces_stay(graph):
    problem = piece_problem(graph)
    try:
        of_pieces = pieces(problem)
    except InfeasibleError:
        return
    for limit in (50_000, 1):  # proven, and greedy
        chain = refined_cuts(problem, of_pieces.pieces, state_limit=limit)
        before, expected = 0, {0}
        for piece in of_pieces.pieces:
            before |= sum(1 << v for v in piece)
            expected.add(before)
        assert {cut for cut, kept in zip(chain.cuts, chain.of_pieces, strict=True) if kept} == expected
        assert all(cut & ~after == 0 for cut, after in zip(chain.cuts[:-1], chain.cuts[1:], strict=True))
        assert sorted(op for unit in chain.units(problem) for op in unit) == list(range(len(graph.ops)))
        few = thinned(problem, chain, 2)
        assert expected <= set(few.cuts) <= set(chain.cuts)
        assert len(few.cuts) <= len(expected) + 2


@pytest.mark.parametrize("topology", ["leader", "direct"])
def test_a_network_without_a_chain_of_pieces_is_refined_and_never_slower_than_in_blocks(topology):
    """A U-Net: its skips leave no chain of pieces, and all of it lies between two cuts of a single tensor."""
    graph, cluster = zoo("unet", weights=False, image=64, levels=3), load_cluster("pico_1mac")
    cluster = replace(cluster, network=replace(cluster.network, bytes_per_s=1e9))
    with pytest.raises(InfeasibleError):
        pieces(piece_problem(graph, halos_required=False))
    blocks, chain = block_units(graph), pipeline_chain(graph)
    assert len(chain.units) > 3 * len(blocks)
    cuts = {_before(chain.units, cut) for cut in range(len(chain.units) + 1)}
    assert cuts >= {_before(blocks, cut) for cut in range(len(blocks) + 1)}
    assert {_before(chain.units, cut) for cut in chain.baseline_cuts} == {
        _before(blocks, cut) for cut in range(len(blocks) + 1)
    }
    fine, lumped = (
        plan_pipeline(graph, cluster, units=units, topology=topology, work_limit=200_000) for units in (None, blocks)
    )
    assert fine.period_s < 0.95 * lumped.period_s and len(fine.stages) > len(lumped.stages)


def test_a_relayed_tensor_is_charged():
    """first is read by second and, past third, by the sum: a cut behind second carries both."""
    build = Builder(last=False, seed=0)
    given = build.tensor((2, 8, 4))
    first, second, third = (build.tensor((2, 8, 4)) for _ in range(3))
    for number, (read, made) in enumerate(((given, first), (first, second), (second, third))):
        weights = build.weights(2, 2, 1, 1)
        build.ops.append(Op(f"conv{number}", "Conv", (read, weights), (made,), {}))
    build.op("Add", [first, third], (2, 8, 4))
    problem = piece_problem(build.graph((given,)))
    assert [carried // 256 for carried in refined_cuts(problem).carried] == [1, 1, 2, 2, 1]
    assert len(refined_cuts(piece_problem(zoo("inception_v3", weights=False))).cuts) == 120
