"""Networks with segments in strips compute the same, whichever rows are kept and whichever recomputed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from downset.errors import UnsupportedError, UsageError
from downset.graph.core import ABSENT
from downset.graph.cost import macs, row_form
from downset.partial.rewrite import InStrips, in_strips
from downset.partial.segments import computed_whole, find_segment, find_segments
from downset.partial.strip_program import MOST_JOINED, most_strips
from tests.effort import cases
from tests.partial.drawn_parts import drawn_parts
from tests.spatial import Builder, execute, spatial_graphs
from zoo import graph as zoo


def same(graph, other):
    random = np.random.default_rng(1)
    given_values = [random.standard_normal(graph.tensors[t].shape).astype(np.float32) for t in graph.inputs]
    one = execute(graph, dict(zip(graph.inputs, given_values, strict=True)))
    two = execute(other, dict(zip(other.inputs, given_values, strict=True)))
    for first, second in zip(graph.outputs, other.outputs, strict=True):
        torch.testing.assert_close(two[second], one[first], rtol=1e-4, atol=1e-4)


@given(spatial_graphs(), st.data())
@settings(max_examples=cases(80))
def test_any_segments_in_strips_compute_the_same(graph, data):
    form = row_form(graph)
    parts = drawn_parts(data, graph, form, crossing=data.draw(st.integers(1, 3)), strips=7)
    joined = data.draw(st.booleans())
    try:
        striped = in_strips(graph, parts, joined=joined)
    except UnsupportedError as error:
        assert "padding alone" in str(error)
        return
    assert [striped.tensors[t].name for t in striped.outputs] == [graph.tensors[t].name for t in graph.outputs]
    makers = {striped.tensors[tensor].name: op for op in striped.ops for tensor in op.outputs if tensor != ABSENT}
    for part in parts if joined else ():
        result = max(find_segment(graph, part.first, part.stop).results, key=lambda tensor: form.rows[tensor])
        assert part.strips == 1 or part.even or makers[graph.tensors[result].name].kind == "Concat"
    same(graph, striped)


@given(spatial_graphs(), st.data())
@settings(max_examples=cases(40))
def test_kept_rows_are_computed_once(graph, data):
    """Nothing recomputed: no operator makes more rows than in the network."""
    form = row_form(graph)
    found = list(find_segments(graph, form))
    assume(found)
    segment = data.draw(st.sampled_from(found))
    even = data.draw(st.booleans())
    strips = data.draw(st.integers(1, most_strips(form, segment, even=even)))
    try:
        striped = in_strips(graph, [InStrips(segment.first, segment.stop, strips, even=even)])
    except UnsupportedError:
        return
    assert macs(striped) <= macs(graph)


@pytest.mark.parametrize("kind", ["flipped", "pooled"])
def test_what_is_read_whole_is_there_before_any_row_is_made_of_it(kind):
    """A flipped slice of one row and a global pool read all rows of a convolution with halos of its own. Strips that
    advance evenly come to their first row."""
    build = Builder(False, 0)
    first = build.tensor((2, 6, 3))
    x = build.op("Conv", [first, build.weights(2, 2, 3, 3)], (2, 6, 3), strides=[1, 1], pads=[1] * 4)
    if kind == "flipped":
        parts = [build.constant(np.array([value], np.int64)) for value in (3, 2, 2, -1)]
        x = build.op("Slice", [x, *parts], (2, 1, 3))
    else:
        x = build.op("GlobalAveragePool", [x], (2, 1, 1))
    graph = build.graph((first,))
    for strips in range(1, 7):
        striped = in_strips(graph, [InStrips(0, 2, strips, even=True)])
        assert sum(op.kind == "Conv" for op in striped.ops) <= 2 * strips
        same(graph, striped)


def test_many_strips_are_joined_a_few_at_a_time():
    graph = zoo("mobilenet_v2", image=64)
    form = row_form(graph)
    segment = max(
        (s for s in find_segments(graph, form) if s.first == 0 and form.rows[s.results[0]] >= 16), key=lambda s: s.stop
    )
    striped = in_strips(graph, [InStrips(segment.first, segment.stop, 16)])
    assert max(len(op.inputs) for op in striped.ops if op.kind == "Concat") == MOST_JOINED
    assert macs(striped) == macs(graph)
    same(graph, striped)


def test_a_result_in_pieces_is_read_in_pieces():
    """The second segment reads the strips of the first, which no concatenation joins; its strips are other ones."""
    graph = zoo("mobilenet_v2", image=64)
    first, second = find_segment(graph, 0, 5), find_segment(graph, 5, 10)
    between = graph.tensors[first.results[0]].name
    for strips in ((16, 8), (7, 5), (3, 16)):
        parts = [InStrips(one.first, one.stop, n) for one, n in zip((first, second), strips, strict=True)]
        striped, whole = in_strips(graph, parts, joined=False), in_strips(graph, parts)
        assert between in {tensor.name for tensor in whole.tensors}
        assert between not in {
            striped.tensors[tensor].name for op in striped.ops for tensor in (*op.inputs, *op.outputs)
        }
        assert macs(striped) == macs(graph)
        same(graph, striped)


def test_what_cannot_be_cut_is_refused_in_one_line():
    graph = zoo("vgg16", weights=False, image=32, classifier=False)
    form = row_form(graph)
    segment = next(find_segments(graph, form))
    rows = form.rows[segment.results[0]]
    with pytest.raises(UnsupportedError, match=f"has {rows} rows: not enough for {rows + 1} strips"):
        in_strips(graph, [InStrips(segment.first, segment.stop, rows + 1)])
    with pytest.raises(UsageError, match="overlap"):
        in_strips(graph, [InStrips(0, 3, 2), InStrips(2, 4, 2)])


def test_operators_that_mix_rows_are_named():
    graph = zoo("mobilenet_v2", weights=False, image=64)
    whole = computed_whole(graph, row_form(graph, halos_required=False))
    kinds = {graph.ops[index].kind for index in whole}
    assert kinds & {"GlobalAveragePool", "ReduceMean", "Flatten", "Gemm"} or not whole
    for segment in find_segments(graph, row_form(graph, halos_required=False)):
        assert not set(whole) & set(segment.operators)
        assert all(tensor != ABSENT for tensor in segment.inputs)
