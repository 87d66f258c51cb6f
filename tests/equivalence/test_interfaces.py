"""Files that take other inputs are different networks, which is said before anything runs."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from downset.runtimes import compare as comparing
from downset.runtimes.compare import compare
from tests.tflite_net import TfliteNet


def relu(path, shape=(1, 3, 8), name="x", kind=TensorProto.FLOAT):
    given = helper.make_tensor_value_info(name, kind, shape)
    made = helper.make_tensor_value_info("y", kind, shape)
    graph = helper.make_graph([helper.make_node("Relu", [name], ["y"])], "g", [given], [made])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.fixture
def nothing_runs(monkeypatch):
    def ran(*_, **__):
        raise AssertionError("it ran")

    monkeypatch.setattr(comparing, "prove", ran)
    monkeypatch.setattr(comparing, "compare_outputs", ran)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"shape": (1, 3, 9)}, "the input 'x' is float32[1, 3, 8] in the first, float32[1, 3, 9] in the second"),
        ({"shape": (1, 3, 8, 1)}, "the input 'x' is float32[1, 3, 8] in the first, float32[1, 3, 8, 1] in the second"),
        ({"kind": TensorProto.DOUBLE}, "is float32[1, 3, 8] in the first, float64[1, 3, 8] in the second"),
        ({"name": "image"}, "the second takes an input 'image', which the first does not have; its inputs are 'x'"),
    ],
)
def test_inputs_of_onnx_files_that_differ_are_named(tmp_path, fails, run, nothing_runs, other, said):
    one, second = relu(tmp_path / "a.onnx"), relu(tmp_path / "b.onnx", **other)
    fails(4, "verify", one, second, says=said)
    status, out, _ = run("verify", one, second, "--json")
    found = json.loads(out)
    assert (status, found["inputs_tried"], found["equal"], found["runtime"]) == (4, 0, False, "")
    assert not compare(one, second).rounds_alike


def test_sizes_that_one_file_leaves_open_match_any(tmp_path, run, fails):
    fixed, other = relu(tmp_path / "fixed.onnx"), relu(tmp_path / "other.onnx", shape=(1, 3, 9))
    opened = relu(tmp_path / "open.onnx", shape=("batch", 3, "length"))
    for files in ((opened, fixed), (fixed, opened)):
        assert run("verify", *files, "--shape", "x=1,3,8", "--accept-runs")[0] == 0
    narrow = relu(tmp_path / "narrow.onnx", shape=("batch", 4, "length"))
    said = "the input 'x' is float32[?, 3, ?] in the first, float32[?, 4, ?] in the second"
    fails(4, "verify", opened, narrow, "--shape", "x=1,3,8", says=said)
    fails(4, "verify", other, fixed, "--shape", "x=1,3,8", says="float32[1, 3, 9] in the first")


def test_inputs_of_tflite_files_that_differ_are_named(tmp_path, fails, nothing_runs):
    def file(name, dtype="float32", size=8, inputs=1):
        net = TfliteNet(1, dtype=dtype, size=size)
        return net.save(tmp_path / name, [net.conv(net.input(2), 3) for _ in range(inputs)])

    one = file("a.tflite")
    fails(
        4, "verify", one, file("size.tflite", size=9), says="is float32[1, 8, 8, 2] in the first, float32[1, 9, 9, 2]"
    )
    fails(4, "verify", one, file("type.tflite", dtype="int8"), says="in the first, int8[1, 8, 8, 2] in the second")
    fails(4, "verify", one, file("more.tflite", inputs=2), says="the first takes 1 inputs, the second 2")


def test_equal_inputs_are_no_difference(tmp_path):
    one = relu(tmp_path / "a.onnx")
    assert compare(one, relu(tmp_path / "b.onnx")).equal
    np.save(tmp_path / "x.npy", np.ones((1, 3, 8), np.float32))
    assert compare(one, one, inputs=[tmp_path / "x.npy"]).equal
