"""Random networks that ONNX Runtime accepts, in random strips of either axis: stitched, they make what the whole makes.

Nothing is left out: every network loads with ONNX Runtime's shapes, and every strip of it can be exported.
"""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from downset.formats.reading import load
from downset.formats.shards.write import ShardBlock, export_shards, write_shards
from downset.graph.cost import longest_axis, row_form
from downset.pipelines.check import verify_pipeline
from downset.pipelines.plan import plan_pipeline
from tests.effort import cases
from tests.formats.test_shards import QUICK, _run

pytest.importorskip("onnxruntime")

from tests.runtime_networks import random_network

SEEDS = st.integers(0, 10**6)


def _blocks(graph, axis, random):
    """Up to three blocks of up to three strips, some of them empty."""
    form, count = row_form(graph, axis=axis, halos_required=False), len(graph.ops)
    blocks = []
    for number, (first, stop) in enumerate(pairwise(sorted({0, count, *random.integers(0, count + 1, 2).tolist()}))):
        later = {t for op in graph.ops[stop:] for t in op.inputs} | {*graph.outputs}
        made = [t for op in graph.ops[first:stop] for t in op.outputs]
        inside = {t for op in graph.ops[first:stop] for t in op.inputs}
        rows = min((form.rows[t] for t in made if form.rows[t] > 1 and (t in later or t not in inside)), default=1)
        cuts = [0, *sorted(random.integers(0, rows + 1, random.integers(0, 3)).tolist()), rows]
        strips = tuple((f"d{place}", *span) for place, span in enumerate(pairwise(cuts)))
        blocks.append(ShardBlock(number, 0, tuple(range(first, stop)), rows, strips, axis))
    return blocks


def _loaded(seed, folder):
    """The network as it is loaded, and the value of every tensor, whose shapes it has."""
    model, values = random_network(seed)
    onnx.save(model, folder / "whole.onnx")
    graph = load(folder / "whole.onnx")
    found = {tensor.name: tensor.shape for tensor in graph.tensors if tensor.name in values}
    assert found == {name: value.shape for name, value in values.items()}
    return graph, values


def _compare(folder, graph, values):
    with np.errstate(invalid="ignore"):  # not a number stands for what no shard made
        found, _ = _run(folder, graph, [values[graph.tensors[t].name] for t in graph.inputs], optimised=False)
    for tensor, value in zip(graph.outputs, found, strict=True):
        np.testing.assert_allclose(value, values[graph.tensors[tensor].name], rtol=1e-3, atol=1e-4)


@given(SEEDS, st.sampled_from([0, 1]))
@settings(max_examples=cases(120), deadline=None)
def test_stitched_strips_equal_the_whole(seed, axis):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph, values = _loaded(seed, folder)
        write_shards(folder / "shards", graph, _blocks(graph, axis, np.random.default_rng(seed)))
        _compare(folder / "shards", graph, values)


@given(SEEDS, st.sampled_from(["exact", "pico", "coedge", "layerwise"]))
@example(136, "exact")  # a Split by rows into parts of unequal height
@example(136, "layerwise")
@settings(max_examples=25, deadline=None)
def test_stitched_plans_equal_the_whole(seed, method):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph, values = _loaded(seed, folder)
        plan = plan_pipeline(graph, QUICK, method=method, time_limit_s=1)
        assert {block.axis for stage in plan.stages for block in stage.blocks} == {longest_axis(graph)}
        verify_pipeline(graph, plan)
        export_shards(folder / "shards", graph, plan)
        _compare(folder / "shards", graph, values)
