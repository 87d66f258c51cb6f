"""Sizes of pools, held against those that ONNX Runtime computes."""

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from downset.errors import LoadError
from downset.formats.reading import load

OPTIONS = onnxruntime.SessionOptions()
OPTIONS.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
OPTIONS.intra_op_num_threads = 1
OPTIONS.log_severity_level = 4


@st.composite
def pools(draw):
    """(operator, version of ONNX, sizes of the image, attributes), rounded up and padded in every way."""
    kind = draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool"]))
    opset = draw(st.sampled_from([10, 11, 12, 17, 18, 19, 22]))
    axes = draw(st.integers(1, 2))

    def each(least, most):
        return draw(st.lists(st.integers(least, most), min_size=axes, max_size=axes))

    kernel = each(1, 5)
    attributes = {"kernel_shape": kernel, "strides": each(1, 5)}
    if kind != "LpPool" or opset >= 18:
        attributes["ceil_mode"] = draw(st.integers(0, 1))
    if kind == "MaxPool" or opset >= {"AveragePool": 19, "LpPool": 18}[kind]:
        attributes["dilations"] = each(1, 3)
    padding = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if padding != "NOTSET":
        attributes["auto_pad"] = padding
    elif draw(st.booleans()):
        attributes["pads"] = [draw(st.integers(0, extent - 1)) for extent in kernel * 2]
    return kind, opset, each(1, 12), attributes


def pooled(kind, opset, image, attributes):
    """A model of one pool, and a Flatten that has as many columns as the pool makes elements of a channel."""
    nodes = [
        helper.make_node(kind, ["x"], ["y"], **attributes),
        helper.make_node("Flatten", ["y"], ["flat"], axis=2),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, *image])]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "flat")]
    graph = helper.make_graph(nodes, "pooled", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("pools") / "model.onnx"


@given(pools())
def test_pools_have_the_sizes_that_onnx_runtime_makes(path, pool):
    kind, opset, image, attributes = pool
    model = pooled(kind, opset, image, attributes)
    path.write_bytes(model.SerializeToString())
    try:
        session = onnxruntime.InferenceSession(str(path), OPTIONS, providers=["CPUExecutionProvider"])
        results = session.run(None, {"x": np.zeros((1, 2, *image), np.float32)})
    except Exception as error:  # its exceptions share no base of their own
        note(f"ONNX Runtime refuses it: {error}")
        return
    graph = load(path)
    assert [graph.tensors[tensor].shape for tensor in graph.outputs] == [result.shape for result in results]


@given(
    st.sampled_from(["SAME_UPPER", "SAME_LOWER"]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 2),
    st.booleans(),
)
def test_transposed_convolutions_have_the_sizes_that_onnx_runtime_makes(
    path, padding, extent, window, stride, dilation, behind, stated
):
    """Padded SAME and by rows behind at once, which ONNX's inference adds up. The window's size is in the weights."""
    sizes = {"kernel_shape": [window]} if stated else {}
    node = helper.make_node(
        "ConvTranspose",
        ["x", "w"],
        ["y"],
        auto_pad=padding,
        strides=[stride],
        dilations=[dilation],
        output_padding=[min(behind, stride - 1)],
        **sizes,
    )
    graph = helper.make_graph(
        [node, helper.make_node("Flatten", ["y"], ["flat"], axis=2)],
        "transposed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, extent])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "flat")],
        [numpy_helper.from_array(np.ones((2, 3, window), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(str(path), OPTIONS, providers=["CPUExecutionProvider"])
    results = session.run(None, {"x": np.zeros((1, 2, extent), np.float32)})
    loaded = load(path)
    assert [loaded.tensors[tensor].shape for tensor in loaded.outputs] == [result.shape for result in results]


def test_a_window_that_would_start_behind_the_image_is_dropped(path):
    """ONNX's own inference counts it, so that what follows would have other sizes than at run time."""
    image, attributes = [8, 8], {"kernel_shape": [1, 1], "strides": [3, 3], "ceil_mode": 1}
    path.write_bytes(pooled("MaxPool", 17, image, attributes).SerializeToString())
    assert [load(path).tensors[tensor].shape for tensor in load(path).outputs] == [(1, 2, 3, 3), (2, 9)]


def test_a_pool_larger_than_its_image_is_refused_in_one_line(path):
    attributes = {"kernel_shape": [5], "strides": [1], "dilations": [3], "ceil_mode": 1, "auto_pad": "VALID"}
    path.write_bytes(pooled("MaxPool", 12, [1], attributes).SerializeToString())
    with pytest.raises(LoadError, match=r"has a negative dimension: \[1, 2, -"):
        load(path)
