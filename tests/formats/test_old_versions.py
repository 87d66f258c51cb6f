"""Files of early versions of ONNX's operators: strips are written as these versions have them, run, and are proven."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from downset.equivalence.prove import prove
from downset.formats.onnx.write import export_onnx
from downset.formats.reading import load
from downset.partial.rewrite import InStrips, in_strips

runtime = pytest.importorskip("onnxruntime")


def write(path, version):
    """Two convolutions, and a Slice of rows behind them."""
    numbers = np.random.default_rng(5)
    weights = {"w": numbers.standard_normal((4, 3, 3, 3)), "v": numbers.standard_normal((2, 4, 3, 3))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    bounds = {"starts": [2], "ends": [9], "axes": [2]}
    if version < 10:
        nodes.append(helper.make_node("Slice", ["c"], ["y"], **bounds))
    else:
        nodes.append(helper.make_node("Slice", ["c", *bounds], ["y"]))
        weights |= bounds
    ends = [helper.make_tensor_value_info(*one) for one in (("x", 1, [1, 3, 12, 6]), ("y", 1, [1, 2, 7, 6]))]
    constants = [
        numpy_helper.from_array(np.array(value, np.int64 if name in bounds else np.float32), name)
        for name, value in weights.items()
    ]
    graph = helper.make_graph(nodes, "old", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=4), path)


def outputs(path, x):
    return runtime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


@pytest.mark.parametrize("version", [7, 9, 10, 13])
@pytest.mark.parametrize("recomputed", [(), (0, 1)])
def test_strips_run_and_are_proven_and_other_rows_are_not(tmp_path, version, recomputed):
    path, striped = tmp_path / "m.onnx", tmp_path / "s.onnx"
    write(path, version)
    graph = load(path)
    made = in_strips(graph, [InStrips(0, len(graph.ops), 3, frozenset(recomputed))])
    export_onnx(striped, made, range(len(made.ops)))
    x = np.random.default_rng(1).standard_normal((1, 3, 12, 6)).astype(np.float32)
    np.testing.assert_allclose(outputs(striped, x), outputs(path, x), rtol=1e-5, atol=1e-5)
    assert prove(path, striped).reason == ""
    model = onnx.load(striped)
    slices = [node for node in model.graph.node if node.op_type == "Slice"]
    assert len(slices) > 1 and all((len(node.input) == 1) == (version < 10) for node in slices)
    for node in slices if version < 10 else ():
        stated = {attribute.name: attribute.ints for attribute in node.attribute}
        for name, other in (("starts", stated["starts"][0] + 1), ("ends", stated["starts"][0])):
            before, stated[name][0] = stated[name][0], other
            onnx.save(model, tmp_path / "t.onnx")
            assert not prove(path, tmp_path / "t.onnx").proven, (node.name, name)
            stated[name][0] = before


def test_a_slice_that_onnx_runtime_refuses_is_not_proven(tmp_path):
    """It opens some of these files all the same, where its optimisation removes the Slice."""
    path, other = tmp_path / "m.onnx", tmp_path / "t.onnx"
    write(path, 9)
    assert prove(path, path).proven
    for name, value in (("axes", [7]), ("axes", [-6]), ("steps", [1])):
        model = onnx.load(path)
        (node,) = (node for node in model.graph.node if node.op_type == "Slice")
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])
        onnx.save(model, other)
        assert not prove(path, other).proven, (name, value)
