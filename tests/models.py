"""Small models made here, and real ones from installed packages."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def installed_model(package: str, name: str) -> Path:
    """A model file inside an installed development dependency."""
    files = importlib.metadata.files(package) or []
    return next(Path(str(file.locate())) for file in files if str(file).endswith(name))


def constant(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def branchy_model(path: Path, *, open_batch: bool = False, weights_as_inputs: bool = False) -> Path:
    """Convolutions in three branches of unequal size, a concatenation, a residual sum, two outputs."""
    random = np.random.default_rng(7)

    def weights(name, out, inside, size):
        return constant(name, (random.standard_normal((out, inside, size, size)) * 0.2).astype(np.float32))

    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"], name="stem", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w1"], ["wide"], name="wide", kernel_shape=[1, 1]),
        helper.make_node("MaxPool", ["wide"], ["small"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["r", "w2"], ["b"], name="narrow", pads=[1, 1, 1, 1], kernel_shape=[3, 3], group=4),
        helper.make_node("AveragePool", ["b"], ["c"], name="average", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Concat", ["small", "c"], ["joined"], name="concat", axis=1),
        helper.make_node("Conv", ["joined", "w3"], ["y"], name="head", kernel_shape=[1, 1]),
        helper.make_node("GlobalAveragePool", ["y"], ["g"], name="global"),
        helper.make_node("Flatten", ["g"], ["flat"], name="flatten"),
    ]
    batch = "n" if open_batch else 1
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 8, 8])]
    initializers = [
        weights("w0", 8, 3, 3),
        constant("b0", np.ones(8, np.float32)),
        weights("w1", 32, 8, 1),
        weights("w2", 8, 2, 3),
        weights("w3", 4, 40, 1),
    ]
    if weights_as_inputs:
        inputs += [helper.make_tensor_value_info(w.name, w.data_type, list(w.dims)) for w in initializers]
    outputs = [
        helper.make_tensor_value_info("flat", TensorProto.FLOAT, [batch, 4]),
        helper.make_tensor_value_info("joined", TensorProto.FLOAT, [batch, 40, 4, 4]),
    ]
    graph = helper.make_graph(nodes, "branchy", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path
