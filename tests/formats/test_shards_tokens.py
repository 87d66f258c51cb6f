"""Attention in strips of tokens on several devices: stitched, they make what the whole makes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.formats.reading import load
from downset.formats.shards.write import export_shards, write_shards
from downset.graph.cost import longest_axis
from downset.pipelines.check import verify_pipeline
from downset.pipelines.plan import plan_pipeline
from tests.effort import cases
from tests.fitting.test_open_axes import step, transformer
from tests.formats.test_shards import QUICK, _run
from tests.formats.test_shards_random import _blocks
from tests.token_networks import token_networks


def _loaded(model, folder):
    """The network, values of its inputs, and the results of ONNX Runtime."""
    onnx.save(model, folder / "whole.onnx")
    graph = load(folder / "whole.onnx")
    random = np.random.default_rng(0)
    values = [random.standard_normal(graph.tensors[t].shape).astype(np.float32) for t in graph.inputs]
    session = onnxruntime.InferenceSession(str(folder / "whole.onnx"), providers=["CPUExecutionProvider"])
    named = {graph.tensors[t].name: value for t, value in zip(graph.inputs, values, strict=True)}
    return graph, values, session.run([graph.tensors[t].name for t in graph.outputs], named)


def _compare(folder, graph, values, results):
    found, _ = _run(folder, graph, values, optimised=False)
    for one, other in zip(found, results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@given(token_networks(), st.integers(0, 10**6))
@settings(max_examples=cases(30), deadline=None)
def test_stitched_strips_of_tokens_equal_the_whole(model, seed):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph, values, results = _loaded(model, folder)
        write_shards(folder / "shards", graph, _blocks(graph, 0, np.random.default_rng(seed)))
        _compare(folder / "shards", graph, values, results)


@pytest.mark.parametrize("method", ["exact", "layerwise"])
@given(model=token_networks())
@settings(max_examples=8, deadline=None)
def test_plans_over_tokens_equal_the_whole(method, model):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph, values, results = _loaded(model, folder)
        plan = plan_pipeline(graph, QUICK, method=method, time_limit_s=1)
        assert {block.axis for stage in plan.stages for block in stage.blocks} == {longest_axis(graph)}
        verify_pipeline(graph, plan)
        export_shards(folder / "shards", graph, plan)
        _compare(folder / "shards", graph, values, results)


@pytest.mark.parametrize("build", [transformer, step])
@pytest.mark.parametrize("seed", range(cases(3)))
def test_plans_of_networks_that_compute_sizes_equal_the_whole(build, seed, tmp_path):
    """Sizes that an exporter computes are constants at the sizes that are planned: they hold no device together."""
    path, shapes = build(tmp_path / "whole.onnx", seed)
    graph = load(path, shapes=shapes, folded=True)
    assert not [op.kind for op in graph.ops if op.kind in ("Shape", "Gather")]
    random = np.random.default_rng(seed)
    values = [random.standard_normal(graph.tensors[t].shape).astype(np.float32) for t in graph.inputs]
    named = {graph.tensors[t].name: value for t, value in zip(graph.inputs, values, strict=True)}
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    results = session.run([graph.tensors[t].name for t in graph.outputs], named)
    plan = plan_pipeline(graph, QUICK, time_limit_s=1)
    verify_pipeline(graph, plan)
    unfolded = plan_pipeline(load(path, shapes=shapes), QUICK, time_limit_s=1)
    assert plan.evidence.value <= unfolded.evidence.value * (1 + 1e-9)
    assert build is step or plan.evidence.value < unfolded.evidence.value
    export_shards(tmp_path / "shards", graph, plan)
    _compare(tmp_path / "shards", graph, values, results)
