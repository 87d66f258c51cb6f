"""Shapes that ONNX cannot infer: those that ONNX Runtime gives when it runs the file, and none that depends on
values."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.errors import LoadError, UnsupportedError
from downset.formats.onnx import run_types
from downset.formats.reading import load

helper = onnx.helper
OWN = "com.microsoft"


def operators(rank, made):
    """Lists of nodes that read "x" and make "y", by name: the runtime's own operators, and standard ones."""
    axis = helper.make_node("Constant", [], [f"axis {made}"], value=helper.make_tensor("a", 6, [], [rank // 2]))
    return {
        "expand": [axis, helper.make_node("ExpandDims", ["x", f"axis {made}"], ["y"], domain=OWN)],
        "triangle": [helper.make_node("Trilu", ["x"], ["y"], domain=OWN)],
        "product": [helper.make_node("TransposeMatMul", ["x", "x"], ["y"], domain=OWN, transB=1)],
        "swap": [helper.make_node("Transpose", ["x"], ["y"], perm=[*range(rank)][::-1])],
        "largest": [helper.make_node("ReduceMax", ["x"], ["y"], axes=[0])],
        "size": [
            helper.make_node("Shape", ["x"], [f"shape {made}"]),
            helper.make_node("ConstantOfShape", [f"shape {made}"], ["y"]),
        ],
        "relu": [helper.make_node("Relu", ["x"], ["y"])],
    }


def save(path, nodes, inputs, outputs, weights=()):
    values = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OWN, 1)]
    graph = helper.make_graph(nodes, "g", values, results, weights)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def of_runtime(path):
    """The shape and element type of every result of an operator, from a run of ONNX Runtime on random inputs."""
    model = onnx.load(str(path))
    names = [name for node in model.graph.node for name in node.output]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(3)
    feeds = {
        value.name: random.standard_normal([2 if isinstance(size, str) else size for size in value.shape], np.float32)
        for value in session.get_inputs()
    }
    return {name: (value.shape, str(value.dtype)) for name, value in zip(names, session.run(names, feeds), strict=True)}


@settings(max_examples=30)
@given(st.data())
def test_every_shape_is_that_of_the_runtime(tmp_path_factory, data):
    """Chains of operators, some of which ONNX does not know, each on the result of an earlier one."""
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3))
    nodes, ranks = [], {"in": len(sizes)}
    for made in range(data.draw(st.integers(1, 6))):
        source = data.draw(st.sampled_from(sorted(ranks)))
        choices = operators(ranks[source], made)
        chosen = "triangle" if made == 0 else data.draw(st.sampled_from(sorted(choices)))
        for node in choices[chosen]:
            node.input[:] = [source if name == "x" else name for name in node.input]
            node.output[:] = [f"result {made}" if name == "y" else name for name in node.output]
            nodes.append(node)
        ranks[f"result {made}"] = ranks[source] + (chosen == "expand")
    shape = [data.draw(st.sampled_from(("batch", "N"))), *sizes[1:]]
    folder = tmp_path_factory.mktemp("own")
    path = save(folder / "m.onnx", nodes, {"in": (1, shape)}, [name for name in ranks if name != "in"])
    graph = load(path, shapes={"in": (2, *sizes[1:])})
    found = {tensor.name: (tensor.shape, tensor.dtype) for tensor in graph.tensors if tensor.name != "in"}
    assert found == of_runtime(path)
    assert "of runs in ONNX Runtime" in graph.source.note


VALUES = {
    "NonZero": ([helper.make_node("NonZero", ["own"], ["y"])], {}),
    "Unique": ([helper.make_node("Unique", ["own"], ["y", "", "", ""])], {}),
    "Range": (
        [helper.make_node("Range", ["zero", "n", "one"], ["y"]), helper.make_node("Identity", ["own"], ["z"])],
        {"n": (7, [])},
    ),
    "Expand": ([helper.make_node("Expand", ["own", "n"], ["y"])], {"n": (7, [2])}),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_shape_that_depends_on_values_stays_open(tmp_path, kind):
    nodes, more = VALUES[kind]
    scalars = [
        onnx.numpy_helper.from_array(np.array(value, np.int64), name) for name, value in (("zero", 0), ("one", 1))
    ]
    nodes = [helper.make_node("Trilu", ["x"], ["own"], domain=OWN), *nodes]
    path = save(tmp_path / "m.onnx", nodes, {"x": (1, [1, 2]), **more}, ["y"], scalars)
    with pytest.raises(LoadError, match=r"'y'.* (depends on values|cannot be inferred)"):
        load(path)


def test_what_the_runtime_refuses_is_one_line(tmp_path, fails):
    nodes = [helper.make_node("NobodyHasThis", ["x"], ["y"], domain=OWN)]
    path = save(tmp_path / "m.onnx", nodes, {"x": (1, [2])}, ["y"])
    fails(5, "order", path, says="a run might tell it (ONNX Runtime cannot load it: ")


def test_without_the_runtime_the_error_says_what_installs_it(tmp_path, monkeypatch):
    path = save(tmp_path / "m.onnx", [helper.make_node("Trilu", ["x"], ["y"], domain=OWN)], {"x": (1, [2, 2])}, ["y"])

    def missing(*_):
        raise UnsupportedError("finding shapes that ONNX cannot infer needs the extra ort: pip install onnxruntime")

    monkeypatch.setattr(run_types, "isolated", missing)
    with pytest.raises(LoadError, match=r"'y'.* a run might tell it .*needs the extra ort: pip install onnxruntime"):
        load(path)


def test_a_file_that_onnx_infers_is_not_run(tmp_path, monkeypatch):
    path = save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": (1, ["batch", 2])}, ["y"])
    monkeypatch.setattr(run_types, "isolated", lambda *_: pytest.fail("it was run"))
    assert load(path).tensors[-1].shape == (1, 2)
