"""Attention in ONNX Runtime: its scores are computed in strips without being asked for, where processes take less."""

from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from downset.fitting.fit import fit
from downset.fitting.job import FitOptions
from downset.fitting.other_sizes import not_run_at
from downset.formats.onnx.write import export_onnx
from downset.formats.reading import load, open_sizes
from downset.partial.rewrite import InStrips, in_strips

TOKENS, WIDTH = 1024, 32


def attention(path):
    """softmax(q k) v over all tokens, with the batch open: one matrix of 4 MB is the peak."""
    random = np.random.default_rng(0)
    weights = {
        name: random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5 for name in ("wq", "wk", "wv")
    }
    nodes = [helper.make_node("MatMul", ["x", f"w{each}"], [each]) for each in "qkv"]
    nodes += [
        helper.make_node("Transpose", ["k"], ["flipped"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "flipped"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "v"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", TOKENS, WIDTH]) for name in "xy")
    made = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "attention", [x], [y], made)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def run(path, settings, x):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, settings)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


@pytest.mark.own_processes("measures")
def test_attention_ships_in_strips_without_being_asked_for(tmp_path):
    model, output = tmp_path / "attention.onnx", tmp_path / "fitted.onnx"
    attention(model)
    result = fit(model, output=output, time_limit_s=4.0, slower=1.5)
    assert result.shipped.startswith("strips"), result.notes
    assert result.measured.after < 0.5 * TOKENS**2 * 4, "the arena holds no whole matrix"
    assert result.process.shipped.growth.peak_bytes < result.process.by_hand.growth.peak_bytes
    assert open_sizes(output).sizes, "the batch stays open"
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, TOKENS, WIDTH)).astype(np.float32)
        np.testing.assert_allclose(run(output, "ORT_DISABLE_ALL", x), run(model, "ORT_ENABLE_ALL", x), atol=1e-5)


def convolutions(path, rows=192):
    """Three convolutions with wide maps between them, which ONNX Runtime computes in channels of its own layout."""
    random = np.random.default_rng(0)
    shapes = {"w": (32, 3, 3, 3), "v": (32, 32, 3, 3), "u": (8, 32, 3, 3)}
    weights = {name: (random.standard_normal(shape) / 12).astype(np.float32) for name, shape in shapes.items()}
    nodes, last = [], "x"
    for name in weights:
        nodes.append(
            helper.make_node("Conv", [last, name], [f"{name} c"], pads=[1] * 4, strides=[1 + (name == "u")] * 2)
        )
        nodes.append(helper.make_node("Relu", [f"{name} c"], [f"{name} r"]))
        last = f"{name} r"
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, rows, 96])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8, 1, 1])
    graph = helper.make_graph(
        nodes, "convolutions", [x], [y], [numpy_helper.from_array(v, n) for n, v in weights.items()]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize(
    ("open_sizes", "sizes"), [({"batch": 1}, ""), ({"batch": 1, "rows": 192}, "batch = 1, rows = 96")]
)
def test_strips_that_have_no_row_at_other_sizes_are_not_raced(open_sizes, sizes, tmp_path):
    model, striped = tmp_path / "m.onnx", tmp_path / "s.onnx"
    convolutions(model, rows=192 if "rows" not in open_sizes else "rows")
    shapes = {"x": (1, 3, 192, 96)}
    graph = load(model, shapes=shapes)
    made = in_strips(graph, [InStrips(0, 4, 4)])
    export_onnx(striped, made, range(len(made.ops)))
    job = SimpleNamespace(form=".onnx", path=model, ranges=None, options=FitOptions(model, shapes=shapes))
    assert not_run_at(job, graph, striped) == sizes


@pytest.mark.own_processes("measures")
def test_strips_of_convolutions_have_the_layouts_of_the_original_and_its_bits(tmp_path):
    """ONNX Runtime optimises the network in strips as it does the original, so that its runs take about as long."""
    model, output = tmp_path / "m.onnx", tmp_path / "fitted.onnx"
    convolutions(model)
    result = fit(model, output=output, time_limit_s=1.0, slower=3.0)
    assert result.shipped in ("strips, mapped", "strips 2, mapped"), (result.shipped, result.notes)
    assert result.outputs.equal and result.outputs.proof.proven and result.outputs.proof.optimised and result.rewrites
    rows = [(row.file, row.settings.name) for row in result.process.rows]
    assert len(rows) == len({*rows}) and {"strips, mapped", "strips 2, mapped"} <= {file for file, _ in rows}
    assert result.measured.after < 0.5 * result.measured.before
    assert result.process.shipped.growth.peak_bytes < result.process.by_hand.growth.peak_bytes
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "as_executed.onnx")
    onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    theirs, ours = (
        {node.domain for node in onnx.load(path).graph.node if "Conv" in node.op_type}
        for path in (tmp_path / "as_executed.onnx", output)
    )
    assert theirs == ours
    for batch in (1, 2):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 192, 96)).astype(np.float32)
        assert np.array_equal(run(output, "ORT_DISABLE_ALL", x), run(model, "ORT_ENABLE_ALL", x))
