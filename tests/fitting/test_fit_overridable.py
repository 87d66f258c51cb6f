"""A fitted file computes what the original computes, also where a caller gives an input that has a default value."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from downset.fitting.fit import fit
from downset.formats.onnx.read import load_onnx
from downset.formats.onnx.write import export_onnx
from downset.orders.plan import plan_order
from downset.rewrites.concat.partition import partition, partition_sites

WEIGHTS = {
    "w1": (8, 3, 3, 3),
    "b1": (8,),
    "scale": (8,),
    "shift": (8,),
    "mean": (8,),
    "var": (8,),
    "w2": (8, 3, 3, 3),
    "w3": (8, 16, 3, 3),
    "k": (1, 8, 1, 1),
}
"""What a runtime folds if it may: a normalisation into a convolution, a product into one, an operator on a constant."""


def network(path, overridable, ir_version=8):
    random = np.random.default_rng(0)
    weights = {name: np.abs(random.standard_normal(shape)).astype(np.float32) for name, shape in WEIGHTS.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c1", "scale", "shift", "mean", "var"], ["n1"]),
        helper.make_node("Relu", ["n1"], ["r1"]),
        helper.make_node("Conv", ["x", "w2"], ["c2"], pads=[1] * 4),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("Concat", ["r1", "r2"], ["joined"], axis=1),
        helper.make_node("Conv", ["joined", "w3"], ["c3"], pads=[1] * 4),
        helper.make_node("Abs", ["k"], ["size"]),
        helper.make_node("Mul", ["c3", "size"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("x", 1, [1, 3, 16, 16]), *(info(name, 1, WEIGHTS[name]) for name in overridable)]
    held = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", 1, [1, 8, 16, 16])], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version), str(path))
    return path


def results(path, given):
    session = onnxruntime.InferenceSession(str(path))
    random = np.random.default_rng(1)
    feeds = {"x": random.standard_normal((1, 3, 16, 16)).astype(np.float32)}
    feeds |= {name: np.abs(random.standard_normal(WEIGHTS[name])).astype(np.float32) + 0.5 for name in given}
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("overridable", [tuple(WEIGHTS), ("w3", "k"), ("scale", "w1")])
def test_no_input_with_a_default_value_is_folded(tmp_path, overridable):
    path = network(tmp_path / "m.onnx", overridable)
    fit(path, output=tmp_path / "fitted.onnx", time_limit_s=2)
    for given in ((), overridable, overridable[:1]):
        ours, theirs = results(path, given), results(tmp_path / "fitted.onnx", given)
        assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(ours).max()), given
    assert not np.allclose(results(path, ()), results(path, overridable))


@pytest.mark.parametrize("overridable", [tuple(WEIGHTS), ("w3",)])
def test_rewrites_take_no_default_value_for_a_constant(tmp_path, overridable):
    """The rewrite that divides the last convolution would cut its weights."""
    from downset.formats.onnx.read import without_defaults

    graph = load_onnx(network(tmp_path / "m.onnx", overridable))
    assert partition_sites(graph)
    graph = without_defaults(graph)
    made = partition(graph, partition_sites(graph)).graph
    export_onnx(tmp_path / "r.onnx", made, plan_order(made, method="kahn").steps)
    ours, theirs = results(tmp_path / "m.onnx", overridable), results(tmp_path / "r.onnx", overridable)
    assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(ours).max())


def test_before_version_4_of_the_format_weights_are_constants(tmp_path):
    """ONNX Runtime takes no other values for them, and folds them."""
    path = network(tmp_path / "m.onnx", tuple(WEIGHTS), ir_version=3)
    fit(path, output=tmp_path / "fitted.onnx", time_limit_s=2)
    kinds = {node.op_type for node in onnx.load(str(tmp_path / "fitted.onnx")).graph.node}
    assert "BatchNormalization" not in kinds
    with pytest.raises(Exception, match="Invalid input name"):
        results(path, ("k",))
