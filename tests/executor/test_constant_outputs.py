"""Outputs that no operator makes when the network runs: constants, inputs, states; and results that a kernel lacks."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from downset.errors import UnsupportedError
from downset.executor.arena import seeded_inputs
from downset.executor.binder import Binder
from downset.executor.device import open_device
from downset.executor.lane_program import lower
from downset.executor.plain_function import network_function
from downset.formats.reading import load
from downset.graph.core import Graph, Op, Tensor
from downset.runtimes import ort
from downset.stages.prepared import prepare
from downset.stages.problem import Stage
from downset.stages.unit_graph import group_units

ONES = numpy_helper.from_array(np.ones((1, 4), np.float32), "w")
WHOLE = numpy_helper.from_array(np.arange(4, dtype=np.int64), "i")
RELU = helper.make_node("Relu", ["x"], ["y"])
CONSTANT = helper.make_node("Constant", [], ["c"], value=ONES)
MODELS = {
    "an initialiser": ([RELU], ["y", "w"]),
    "a constant node": ([RELU, CONSTANT], ["c", "y"]),
    "computed from constants": ([RELU, helper.make_node("Add", ["w", "w"], ["s"])], ["y", "s"]),
    "whole numbers": ([RELU, helper.make_node("Identity", ["i"], ["j"])], ["y", "j"]),
    "an input": ([RELU], ["x", "y"]),
    "read as well": ([RELU, helper.make_node("Add", ["y", "w"], ["z"])], ["z", "w", "y"]),
}


def written(path, nodes, outputs):
    types = {name: onnx.TensorProto.INT64 if name == "j" else onnx.TensorProto.FLOAT for name in outputs}
    values = [helper.make_tensor_value_info(name, kind, [4] if name == "j" else [1, 4]) for name, kind in types.items()]
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])
    made = helper.make_graph(nodes, "g", [given], values, [ONES, WHOLE])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


def results(graph, values):
    units, device = group_units(graph), open_device("cpu", threads=1)
    binder = Binder(graph)
    stages = tuple(Stage(((unit,),)) for unit in range(len(units.units)))
    program = lower(units, stages, barriers=True)
    options = {"inputs": graph.inputs, "outputs": graph.outputs, "values": values}
    with device.engine(binder, program, **options) as engine:
        return [value.numpy() for value in engine([binder.place(value) for value in values])]


@pytest.mark.parametrize("case", MODELS)
def test_outputs_equal_those_of_onnx_runtime(case, tmp_path):
    nodes, outputs = MODELS[case]
    path = written(tmp_path / "m.onnx", nodes, outputs)
    graph = prepare(load(path))
    values = seeded_inputs(graph)
    found, wanted = results(graph, values), ort.run_on(path, {"x": values[0]})
    plain, given = network_function(graph)
    for ours, theirs, too in zip(found, wanted, plain(*given), strict=True):
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
        assert np.array_equal(too.numpy(), theirs)


@pytest.mark.parametrize(
    ("role", "kind", "says"),
    [("state", "Relu", "output 's' has no known value"), ("activation", "Relu", "makes 1 of its results only")],
)
def test_what_nothing_makes_is_named(role, kind, says):
    names = [("x", "activation"), ("y", "activation"), ("s", role)]
    tensors = tuple(Tensor(name, (4,), "float32", 16, at) for name, at in names)
    made = (1,) if role == "state" else (1, 2)
    graph = Graph("g", tensors, (Op("here", kind, (0,), made),), (0,), (1, 2)).check()
    with pytest.raises(UnsupportedError, match=says):
        results(graph, [np.zeros(4, np.float32)])
