"""What else an .onnx file computes by: functions of its own, weights beside it, sparse weights, versions."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from downset.equivalence.prove import prove
from downset.errors import LoadError


def info(name, shape=(4,)):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def saved(path, nodes, **further):
    initializers = further.pop("initializers", [])
    sparse = further.pop("sparse", [])
    graph = helper.make_graph(nodes, "g", [info("x")], [info("y")], initializers, sparse_initializer=sparse)
    domains = [helper.make_opsetid("", further.pop("version", 17)), helper.make_opsetid("my", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=8, **further), str(path))
    return path


def test_functions_are_compared_with_what_is_in_them(tmp_path):
    def file(name, inner, alpha=0.5, doc=""):
        body = [helper.make_node("LeakyRelu", ["a"], ["m"], alpha=alpha), helper.make_node(inner, ["m"], ["b"])]
        function = helper.make_function("my", "F", ["a"], ["b"], body, [helper.make_opsetid("", 17)], doc_string=doc)
        return saved(tmp_path / name, [helper.make_node("F", ["x"], ["y"], domain="my")], functions=[function])

    one = file("one.onnx", "Relu")
    assert prove(one, file("same.onnx", "Relu", doc="words")).proven
    for other in (file("kind.onnx", "Sigmoid"), file("attribute.onnx", "Relu", alpha=0.25)):
        found = prove(one, other)
        assert not found.proven and "function my::F" in found.reason


def test_weights_beside_the_file_are_compared_by_content(tmp_path):
    def file(folder, value):
        (tmp_path / folder).mkdir()
        weight = numpy_helper.from_array(np.full((4,), value, np.float32), "w")
        path = saved(tmp_path / folder / "m.onnx", [helper.make_node("Mul", ["x", "w"], ["y"])], initializers=[weight])
        model = onnx.load(str(path))
        onnx.save(model, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
        return path

    one, same, other = file("one", 1.5), file("same", 1.5), file("other", 1.75)
    assert prove(one, same).proven and prove(one, one).proven
    assert "has other values" in prove(one, other).reason
    inside = saved(
        tmp_path / "inside.onnx",
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        initializers=[numpy_helper.from_array(np.full((4,), 1.5, np.float32), "w")],
    )
    assert prove(one, inside).proven
    (tmp_path / "other" / "w.bin").unlink()
    with pytest.raises(LoadError, match=r"w\.bin"):
        prove(one, other)


def test_sparse_weights_are_compared_by_values_and_places(tmp_path):
    def file(name, values, places):
        held = numpy_helper.from_array(np.asarray(values, np.float32), "w")
        at = numpy_helper.from_array(np.asarray(places, np.int64), "w_at")
        sparse = helper.make_sparse_tensor(held, at, [4])
        return saved(tmp_path / name, [helper.make_node("Mul", ["x", "w"], ["y"])], sparse=[sparse])

    one = file("one.onnx", [1, 2], [0, 3])
    assert prove(one, file("same.onnx", [1, 2], [0, 3])).proven
    assert not prove(one, file("values.onnx", [1, 3], [0, 3])).proven
    assert not prove(one, file("places.onnx", [1, 2], [1, 3])).proven


def test_the_version_of_the_operators_counts(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    one = saved(tmp_path / "one.onnx", nodes)
    assert "version of operator set" in prove(one, saved(tmp_path / "two.onnx", nodes, version=13)).reason


def test_other_formats_are_not_proven(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    assert not prove(saved(tmp_path / "m.onnx", nodes), tmp_path / "m.pt2").proven
