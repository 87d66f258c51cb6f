"""Networks with segments in strips compute the same, in less memory, with as much extra work as stated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from downset.errors import UnsupportedError
from downset.graph.cost import macs, row_form
from downset.orders.plan import plan_order
from downset.rewrites.row_strips import choose_row_strips, row_segments, row_strips
from tests.spatial import execute, spatial_graphs
from zoo import graph as zoo


def _same(graph, other):
    random = np.random.default_rng(1)
    given_values = [random.standard_normal(graph.tensors[t].shape).astype(np.float32) for t in graph.inputs]
    one = execute(graph, dict(zip(graph.inputs, given_values, strict=True)))
    two = execute(other, dict(zip(other.inputs, given_values, strict=True)))
    for first, second in zip(graph.outputs, other.outputs, strict=True):
        torch.testing.assert_close(two[second], one[first], rtol=1e-4, atol=1e-4)


@given(spatial_graphs(), st.data())
@settings(max_examples=60)
def test_any_segment_in_strips_computes_the_same(graph, data):
    segments = row_segments(graph, row_form(graph))
    assume(segments)
    first, stop = data.draw(st.sampled_from(segments))
    count = data.draw(st.integers(2, 4))
    try:
        striped = row_strips(graph, first, stop, count)
    except UnsupportedError as error:
        assert "rows" in str(error)
        return
    assert sum(op.kind == "Concat" for op in striped.ops) >= 1 + sum(op.kind == "Concat" for op in graph.ops[stop:])
    _same(graph, striped)


def test_mobilenet_needs_less_memory():
    graph = zoo("mobilenet_v2", image=64)
    chosen = choose_row_strips(graph, max_recompute=0.1)
    extra = sum(segment.extra_macs for segment in chosen.segments)
    assert macs(chosen.graph) == macs(graph) + extra
    assert 0 < extra <= macs(graph) * 0.1
    planned = plan_order(chosen.graph)
    assert planned.peak_bytes <= chosen.segments[-1].peak_bytes < chosen.peak_bytes_before
    assert chosen.peak_bytes_before == plan_order(graph).peak_bytes
    _same(graph, chosen.graph)


def test_nothing_is_recomputed_for_nothing():
    """Without any allowance only segments without halo can be split; here there are none that help."""
    graph = zoo("squeezenet1_0", weights=False, image=64)
    chosen = choose_row_strips(graph, max_recompute=0.0)
    assert all(segment.extra_macs <= 0 for segment in chosen.segments)


def test_too_few_rows():
    graph = zoo("vgg16", weights=False, image=32, classifier=False)
    first, stop = row_segments(graph, row_form(graph))[0]
    with pytest.raises(UnsupportedError, match="has 32 rows: not enough for 33 strips"):
        row_strips(graph, first, stop, 33)
