"""Computing a segment strip by strip and stitching equals computing it whole."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.graph.core import Graph
from downset.graph.cost import row_form, segment_macs, whole_macs
from downset.graph.edit import Edit
from downset.graph.halos import spatial_axis
from downset.graph.row_form import needed
from downset.rewrites.strips import StripOps
from tests.effort import cases
from tests.spatial import execute, spatial_graphs
from tests.strategies import orders_of


def _fractions(draw):
    cuts = sorted(draw(st.lists(st.integers(0, 12), max_size=4)))
    return [0, *cuts, 12]


def _strip(graph, form, ops, wanted, values, axis):
    """A graph of the strip alone, given exactly the rows that `needed` names, and what it computes."""
    edit = Edit(graph)
    made = {tensor for index in ops for tensor in graph.ops[index].outputs}
    held, given = {}, {}
    for tensor, (start, stop) in needed(form, ops, wanted).items():
        if tensor not in made:
            dimension = spatial_axis(graph, tensor, axis)
            shape = list(graph.tensors[tensor].shape)
            shape[dimension] = stop - start
            held[tensor] = (edit.add_tensor(f"{tensor}/given", shape, graph.tensors[tensor]), (start, stop))
            given[held[tensor][0]] = values[tensor].narrow(dimension, start, stop - start).contiguous().numpy()
    strip = StripOps(graph, form, edit.add_tensor, suffix="/s", slices=held)
    found = strip.segment(ops, wanted)
    part = Graph("strip", tuple(edit.tensors), tuple(strip.ops), tuple(given), tuple(found.values()), edit.constants)
    results = execute(part.check(), given)
    return {tensor: results[index] for tensor, index in found.items()}


@given(st.data())
@settings(max_examples=cases(100))
def test_stitched_strips_equal_the_whole(data):
    graph = data.draw(spatial_graphs())
    axis = data.draw(st.sampled_from([0, 0, 1]))
    form = row_form(graph, axis=axis)
    random = np.random.default_rng(3)
    first = graph.inputs[0]
    values = execute(graph, {first: random.standard_normal(graph.tensors[first].shape).astype(np.float32)})
    order = data.draw(orders_of(graph.predecessors()))
    low, high = sorted(data.draw(st.integers(0, len(order))) for _ in range(2))
    ops = set(order[low:high])
    later = {tensor for index in set(range(len(order))) - ops for tensor in graph.ops[index].inputs}
    made = [tensor for index in sorted(ops) for tensor in graph.ops[index].outputs]
    sinks = [tensor for tensor in made if tensor in later or tensor in graph.outputs]
    cuts = _fractions(data.draw)
    parts = {tensor: [] for tensor in sinks}
    for begin, end in pairwise(cuts):
        wanted = {t: (begin * form.rows[t] // 12, end * form.rows[t] // 12) for t in sinks}
        for tensor, value in _strip(graph, form, ops, wanted, values, axis).items():
            parts[tensor].append(value)
    for tensor in sinks:
        stitched = torch.cat(parts[tensor], dim=spatial_axis(graph, tensor, axis))
        torch.testing.assert_close(stitched, values[tensor], rtol=1e-4, atol=1e-4)


@given(spatial_graphs(layouts=(False,)))
@settings(max_examples=cases(50))
def test_macs_of_a_strip_are_what_its_operators_spend(graph):
    """The formula against a count over the strip's own operators, which are shorter convolutions."""
    form = row_form(graph)
    outputs = {tensor: (form.rows[tensor] // 3, form.rows[tensor]) for tensor in graph.outputs}
    edit = Edit(graph)
    strip = StripOps(graph, form, edit.add_tensor, suffix="/s")
    found = strip.segment(range(len(graph.ops)), outputs)
    part = Graph("s", tuple(edit.tensors), tuple(strip.ops), graph.inputs, tuple(found.values()), edit.constants)
    assert segment_macs(form, range(len(graph.ops)), outputs) == whole_macs(row_form(part), range(len(strip.ops)))
