"""Every element-wise kind that the table names can be merged behind convolutions and moved before a concatenation."""

import numpy as np
import pytest

from downset.graph.kinds import KINDS
from downset.rewrites.concat.partition import concat_partition, partition_sites
from downset.rewrites.merge.convolutions import merge_convs
from downset.rewrites.merge.separable import merge_separables
from tests.rewrites.test_merge import Build, evaluate, given_inputs
from tests.rewrites.test_rewrite import Builder, outputs_of

UNARY = sorted(name for name, row in KINDS.items() if row.unary and row.executed)
TRUTHS = {"IsInf", "IsNaN", "Not"}
"""They make truth values, which no convolution reads."""
BINARY = sorted(name for name, row in KINDS.items() if row.broadcasts and row.executed and name != "Where")


def agree(ours, before):
    """Up to rounding: vectorised functions round differently at the end of a row."""
    for one, other in zip(ours, before, strict=True):
        largest = np.abs(other, where=np.isfinite(other), out=np.zeros(other.shape)).max()
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=1e-4, atol=1e-5 * max(largest, 1.0))


def count(graph, kind):
    return sum(op.kind == kind for op in graph.ops)


@pytest.mark.parametrize("kind", UNARY)
def test_equal_ones_behind_merged_convolutions_become_one(kind):
    build = Build(0, (1, 2, 5, 5))
    ends = [build.same(kind, build.conv(build.x, out, (3, 3), (1, 1, 1, 1))) for out in (2, 3)]
    graph = build.graph(*ends)
    merged = merge_convs(graph, (0, 2))
    assert (count(merged, "Conv"), count(merged, kind)) == (1, 1)
    inputs = given_inputs(graph)
    agree(evaluate(merged, inputs), evaluate(graph, inputs))


@pytest.mark.parametrize("kind", sorted(set(UNARY) - TRUTHS))
def test_equal_ones_before_merged_separable_convolutions_become_one(kind):
    build = Build(0, (1, 2, 5, 5))
    y = build.tensor((1, 2, 5, 5))
    ends = []
    for source in (build.x, y):
        depthwise = build.conv(build.same(kind, source), 2, (3, 3), (1, 1, 1, 1), group=2)
        ends.append(build.conv(depthwise, 3, (1, 1), (0, 0, 0, 0)))
    graph = build.graph(*ends, inputs=[build.x, y])
    merged = merge_separables(graph, (2, 5))
    assert (count(merged, "Conv"), count(merged, kind)) == (2, 1)
    inputs = given_inputs(graph)
    agree(evaluate(merged, inputs), evaluate(graph, inputs))


def moved(kind, operands):
    """(before, after): a concatenation of two parts, the kind, a convolution."""
    build = Builder(0, "NCHW")
    x = build.image(3)
    whole = build.concat([build.conv(x, 2), build.conv(x, 4)])
    result = build.op(kind, [whole, *operands(build)], build.image(6))
    graph = build.graph([x], [build.conv(result, 4)])
    assert partition_sites(graph) == (2,)
    return graph, concat_partition(graph, (2,))


@pytest.mark.parametrize("kind", UNARY)
def test_a_concatenation_moves_behind_unary_kinds(kind):
    before, after = moved(kind, lambda build: [])
    assert count(after, "Concat") == 0
    assert sum(op.kind == kind and "/part" in op.name for op in after.ops) == 2
    agree(outputs_of(after), outputs_of(before))


@pytest.mark.parametrize("kind", BINARY)
def test_a_concatenation_moves_behind_kinds_of_two_operands(kind):
    before, after = moved(kind, lambda build: [build.weights(6, 1, 1)])
    assert count(after, "Concat") == 0
    assert sum(op.kind == kind and "/part" in op.name for op in after.ops) == 2
    agree(outputs_of(after), outputs_of(before))
