"""GroupNormalization of opset 21, which ONNX Runtime writes in plain operators before it optimises a file: two passes
compute the same, and are proven against those operators."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from downset.equivalence.prove import prove
from downset.formats.onnx.open_axes import open_shapes
from downset.formats.onnx.write import export_onnx
from downset.formats.reading import load
from downset.rewrites.folding import folded
from downset.rewrites.two_passes import in_two_passes, normalised_bytes, two_passes
from downset.runtimes.targets import TARGETS
from tests.effort import cases
from tests.onnx_nodes import OnnxNodes


def decoder(path, random, batch):
    """Convolutions with group normalisations between them, of random sizes; returns the shape of the input."""
    net, groups = OnnxNodes(), int(random.choice([1, 2, 4]))
    channels, height, width = groups * int(random.integers(1, 4)), *(int(random.integers(2, 9)) for _ in range(2))

    def drawn(*shape):
        return net.constant(random.standard_normal(shape).astype(np.float32) / 3)

    last = "x"
    for inputs in (3, channels):
        last = net.op("Conv", last, drawn(channels, inputs, 3, 3), pads=[1] * 4)
        attributes = {"num_groups": groups, "epsilon": float(random.choice([1e-5, 1e-2]))}
        last = net.op("GroupNormalization", last, drawn(channels), drawn(channels), **attributes)
        last = net.op("Sigmoid", last)
    net.nodes.append(helper.make_node("Conv", [last, drawn(2, channels, 1, 1)], ["y"], name="y"))
    sizes = {"x": [batch, 3, height, width], "y": [batch, 2, height, width]}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in sizes.items()]
    graph = helper.make_graph(net.nodes, "decoder", ends[:1], ends[1:], net.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return {"x": (2, 3, height, width)}


def run(path, x):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


@pytest.mark.parametrize("batch", [2, "batch"])
@pytest.mark.parametrize("seed", range(cases(10)))
def test_two_passes_are_proven_and_a_changed_constant_is_not(seed, batch, tmp_path):
    random = np.random.default_rng(seed)
    shapes = decoder(tmp_path / "m.onnx", random, batch)
    executed, written = tmp_path / "executed.onnx", tmp_path / "w.onnx"
    TARGETS["ort"].prepare(tmp_path / "m.onnx", executed, shapes)
    graph = load(executed, shapes=shapes)
    plain = folded(graph, open_shapes(executed))
    assert len(normalised_bytes(plain)) == 1
    divided = two_passes(plain, stored_bytes=0)
    assert in_two_passes(divided) and len([op for op in divided.ops if op.kind == "Sqrt"]) == 2
    export_onnx(written, divided, range(len(divided.ops)))
    proof = prove(executed, written, shapes=shapes)
    assert proof.proven and not proof.exact, proof.reason
    x = random.standard_normal(shapes["x"]).astype(np.float32)
    np.testing.assert_allclose(run(written, x), run(tmp_path / "m.onnx", x), rtol=1e-4, atol=1e-4)
    for changed in (written, executed):  # in what is claimed, and in what it is claimed of
        model = onnx.load(str(changed))
        wrong = [one for one in model.graph.initializer if one.data_type == TensorProto.FLOAT]
        for weight in random.choice(np.array(wrong, object), 4):
            copied, value = onnx.load(str(changed)), numpy_helper.to_array(weight).copy()
            value.reshape(-1)[0] += 0.25
            (place,) = [one for one in copied.graph.initializer if one.name == weight.name]
            place.CopyFrom(numpy_helper.from_array(value, weight.name))
            onnx.save(copied, str(tmp_path / "wrong.onnx"))
            pair = {written: written, executed: executed, changed: tmp_path / "wrong.onnx"}
            assert not prove(pair[executed], pair[written], shapes=shapes).proven, weight.name


@pytest.mark.parametrize("change", ["a sum", "another mean", "another square", "the sides of a difference"])
def test_other_operators_are_no_group_normalisation(change, tmp_path):
    shapes = decoder(tmp_path / "m.onnx", np.random.default_rng(1), 2)
    executed, written = tmp_path / "executed.onnx", tmp_path / "w.onnx"
    TARGETS["ort"].prepare(tmp_path / "m.onnx", executed, shapes)
    divided = two_passes(folded(load(executed, shapes=shapes), open_shapes(executed)), stored_bytes=0)
    export_onnx(written, divided, range(len(divided.ops)))
    assert prove(executed, written, shapes=shapes).proven
    model = onnx.load(str(executed))
    named = {node.output[0]: node for node in model.graph.node}
    for name, node in named.items():
        if change == "a sum" and name.endswith("Var"):
            node.op_type = "Add"
        if change == "another mean" and name.endswith("MeanOfSquare"):
            node.input[0] = node.input[0].replace("Square", "X3D")
        if change == "another square" and name.endswith("_Square"):
            node.input[1] = node.input[1].replace("X3D", "Deviation")
        if change == "the sides of a difference" and name.endswith("Deviation"):
            node.input[0], node.input[1] = node.input[1], node.input[0]
    onnx.save(model, str(executed))
    graph = load(executed, shapes=shapes)
    assert not normalised_bytes(folded(graph, open_shapes(executed)))
    assert not prove(executed, written, shapes=shapes).proven
