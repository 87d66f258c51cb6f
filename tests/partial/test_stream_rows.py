"""The rows that a stream keeps are rows of the next windows, and what it computes is counted by hand."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from downset.errors import UsageError
from downset.formats.reading import load
from downset.graph.halos import spatial_axis
from downset.partial.stream_rows import moving_input, stream_rows
from downset.partial.streams import stream_of
from tests.effort import cases
from tests.equivalence.stream_cases import onnx_case


def inside(path, names, value):
    """Tensors of the network in a run of ONNX Runtime without optimisation."""
    model = onnx.load(path)
    for name in names:
        if name not in {one.name for one in model.graph.output}:
            model.graph.output.add().name = name
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return dict(zip(names, session.run(names, {session.get_inputs()[0].name: value}), strict=True))


@pytest.mark.parametrize("seed", range(5 + cases(40)))
def test_rows_that_are_kept_are_those_of_the_window_some_calls_later(seed, tmp_path):
    case = onnx_case(seed, tmp_path)
    if case.refused:
        pytest.skip(case.refused)
    graph, record = load(case.window), case.record
    moving = moving_input(graph, graph.inputs[0], record.axis)
    kept = stream_rows(moving, case.hop).kept
    shape, names = list(graph.tensors[graph.inputs[0]].shape), [graph.tensors[tensor].name for tensor in kept]
    for hops in {one.hops for one in kept.values()}:
        shape[record.axis] = record.window + hops * case.hop
        rows = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        windows = [
            np.ascontiguousarray(rows.take(range(start, start + record.window), record.axis))
            for start in (0, hops * case.hop)
        ]
        before, after = (inside(case.window, names, window) for window in windows)
        for tensor, one in kept.items():
            if one.hops == hops and tensor != graph.inputs[0]:
                axis, name = spatial_axis(moving.graph, tensor, moving.form.axis), graph.tensors[tensor].name
                earlier = before[name].take(range(one.first + one.shift, one.stop + one.shift), axis)
                now = after[name].take(range(one.first, one.stop), axis)
                assert now.size and np.allclose(now, earlier, rtol=1e-4, atol=1e-4), (name, one)


def chain(path, *, rows=16, pads=0):
    """Two convolutions of three rows and one output of all that is left: 2 channels, 4 columns."""
    random = np.random.default_rng(0)
    left = rows if pads else rows - 4
    weights = {"a": (2, 2, 3, 1), "b": (2, 2, 3, 1), "c": (3, 2, left, 4)}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["y"], pads=[pads, 0, pads, 0]),
        helper.make_node("Conv", ["y", "b"], ["z"], pads=[pads, 0, pads, 0]),
        helper.make_node("Conv", ["z", "c"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, rows, 4])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 3, 1, 1])],
        [numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), n) for n, shape in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return load(path)


def test_a_call_computes_the_new_rows_alone(tmp_path):
    graph = chain(tmp_path / "chain.onnx")
    rows = stream_rows(moving_input(graph, graph.inputs[0], 2), 2)
    dense = 3 * 2 * 12 * 4
    assert rows.window_macs == 2 * 4 * 2 * 3 * (14 + 12) + dense
    assert rows.macs == 2 * 4 * 2 * 3 * (2 + 2) + dense
    assert rows.kept_bytes == 4 * 2 * 4 * (2 + 2 + 10)  # two halos, and all rows that the dense layer has seen
    assert [graph.ops[index].name for index in rows.breaks] == [graph.ops[2].name]
    assert not rows.pads


def test_operators_that_pad_along_time_are_named(tmp_path):
    graph = chain(tmp_path / "chain.onnx", pads=1)
    rows = stream_rows(moving_input(graph, graph.inputs[0], 2), 2)
    assert set(rows.pads) == {0, 1}
    dense, left = 3 * 2 * 16 * 4, (1 + 2 + 1) + (2 + 2 + 2)  # rows at both edges, and new ones
    assert rows.macs <= 2 * 4 * 2 * 3 * left + dense


def test_the_warm_up_ends_with_the_hop_that_fills_the_window(tmp_path):
    graph = chain(tmp_path / "chain.onnx")
    for hop, first in ((1, 15), (2, 7), (5, 3), (15, 1)):
        record = stream_of(stream_rows(moving_input(graph, graph.inputs[0], 2), hop), "states").record
        assert record.first_exact == first
        assert (record.first_exact + 1) * hop >= 16 > record.first_exact * hop


@pytest.mark.parametrize("hop", [0, -1, 16, 99])
def test_a_hop_that_is_no_part_of_the_window_is_refused(hop, tmp_path):
    graph = chain(tmp_path / "chain.onnx")
    with pytest.raises(UsageError, match=f"a hop of {hop} rows"):
        stream_rows(moving_input(graph, graph.inputs[0], 2), hop)
