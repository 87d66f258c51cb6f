"""experiments/ort/streams.py: every node in one stream, behind what it reads; ONNX Runtime takes the file as it is."""

import json

import numpy as np
import onnx

from downset.formats.reading import load
from downset.runtimes import ort
from experiments.ort.streams import config_of, session, streams
from tests.networks import branchy


def test_streams_hold_every_node_once_and_onnx_runtime_computes_the_same_by_them(tmp_path):
    path = tmp_path / "m.onnx"
    ort.optimise_offline(branchy(tmp_path / "given.onnx"), path)
    model = onnx.load(str(path))
    for at, node in enumerate(model.graph.node):
        node.name = f"n{at}"
    onnx.save(model, str(path))
    graph = load(path)
    lanes = streams(graph, 2)
    assert len(lanes) == 2
    assert sorted(name for lane in lanes for name in lane) == sorted(op.name for op in graph.ops)
    made_by = {tensor: op.name for op in graph.ops for tensor in op.outputs}
    for op in graph.ops:
        (lane,) = (lane for lane in lanes if op.name in lane)
        before = {made_by[tensor] for tensor in op.inputs if tensor in made_by} & set(lane)
        assert before <= set(lane[: lane.index(op.name)])
    config = tmp_path / "streams.json"
    config.write_text(json.dumps(config_of(lanes)))
    feeds = {
        graph.tensors[tensor].name: np.random.default_rng(0).standard_normal(graph.tensors[tensor].shape, np.float32)
        for tensor in graph.inputs
    }
    expected = session(path, 1).run(None, feeds)
    for ours, theirs in zip(session(path, 1, lanes=3, config=config).run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
