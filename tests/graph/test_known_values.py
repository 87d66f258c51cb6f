"""What is known before any run: equal to ONNX Runtime, in no unit, and never for another batch."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from downset.errors import UnsupportedError
from downset.executor.arena import seeded_inputs
from downset.executor.device import open_device
from downset.executor.stage_engine import stage_engine
from downset.formats.reading import load
from downset.formats.shards.model import opsets_of, shard_model
from downset.graph.core import ABSENT
from downset.kernels.known_values import with_known_values
from downset.runtimes import ort
from downset.stages.check import verify_stages
from downset.stages.prepared import planned_graph, prepare
from downset.stages.unit_graph import group_units
from downset.tuning.tune import tune_stages
from tests.executor.test_stages import close, expected
from tests.models import installed_model


def model(path, nodes, constants, *, output="y", size=(1, 3, 8, 8)):
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, size)
    made = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "network", [given], [made], initializers)
    saved = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(saved), str(path))
    return path


def computed_weights(path):
    """A convolution whose weights are made by three operators, a sum with what a shape makes, an unread mask."""
    fill = numpy_helper.from_array(np.array([0.25], np.float32))
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["ones"], name="ones", value=fill),
        helper.make_node("Mul", ["ones", "scale"], ["scaled"], name="scaled"),
        helper.make_node("Transpose", ["scaled"], ["weights"], name="turned", perm=[1, 0, 2, 3]),
        helper.make_node("Conv", ["x", "weights", "bias"], ["a"], name="conv", pads=[1] * 4),
        helper.make_node("Shape", ["a"], ["extents"], name="extents", start=1, end=2),
        helper.make_node("Cast", ["extents"], ["count"], name="count", to=TensorProto.FLOAT),
        helper.make_node("Div", ["a", "count"], ["b"], name="share"),
        helper.make_node("Dropout", ["b"], ["c", "mask"], name="drop"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    constants = {
        "size": np.array([3, 5, 3, 3], np.int64),
        "scale": np.random.default_rng(0).standard_normal((3, 5, 3, 3)).astype(np.float32),
        "bias": np.ones(5, np.float32),
    }
    return model(path, nodes, constants)


@pytest.mark.parametrize("batch", [None, 2])
def test_values_known_before_any_run(tmp_path, batch):
    path = computed_weights(tmp_path / "m.onnx")
    if batch:
        nodes = [node for node in onnx.load(str(path)).graph.node if node.name not in ("extents", "count", "share")]
        kept = onnx.load(str(path))
        del kept.graph.node[:]
        next(node for node in nodes if node.name == "drop").input[0] = "a"
        kept.graph.node.extend(nodes)
        del kept.graph.value_info[:]
        onnx.save(onnx.shape_inference.infer_shapes(kept), str(path))
    graph = prepare(load(path), batch=batch)
    kinds = {graph.ops[index].kind for ops in group_units(graph).units for index in ops}
    assert kinds == {"Conv", "Dropout", "Relu"} | ({"Div"} if batch is None else set())
    values = seeded_inputs(graph)
    plan = tune_stages(graph, open_device("cpu", threads=2), runs=3).plan
    verify_stages(planned_graph(graph, plan), plan)
    engine = stage_engine(graph, plan, open_device("cpu", threads=2), values)
    close([value.numpy() for value in engine.outputs()], expected(path, graph, values, batch or 1))
    engine.close()


def test_values_are_ort_s(tmp_path):
    graph = with_known_values(load(computed_weights(tmp_path / "m.onnx")))
    (op,) = [op for op in graph.ops if op.kind == "Transpose"]
    value = graph.constant(op.outputs[0])
    assert (value.shape, value.dtype) == ((5, 3, 3, 3), np.float32)
    (count,) = [graph.constant(op.outputs[0]) for op in graph.ops if op.kind == "Cast"]
    assert count == np.float32(5.0)
    assert np.allclose(value, 0.25 * np.random.default_rng(0).standard_normal((3, 5, 3, 3)).transpose(1, 0, 2, 3))


def test_shapes_are_left_while_the_batch_may_change(tmp_path):
    graph = load(computed_weights(tmp_path / "m.onnx"))
    early, late = with_known_values(graph, sized=False), with_known_values(graph)
    (extents,) = [op.outputs[0] for op in graph.ops if op.kind == "Shape"]
    assert extents not in early.constants
    assert late.constant(extents).tolist() == [5]
    assert with_known_values(late) is late


def test_what_is_spread_out_over_the_batch_grows_with_it(tmp_path):
    """A token of constants put in front of every sample."""
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["rows"], name="rows"),
        helper.make_node("Expand", ["token", "spread"], ["tokens"], name="tokens"),
        helper.make_node("Concat", ["tokens", "rows"], ["y"], name="join", axis=1),
    ]
    constants = {
        "flat": np.array([-1, 8, 24], np.int64),
        "token": np.arange(24, dtype=np.float32).reshape(1, 1, 24),
        "spread": np.array([1, 1, 24], np.int64),
    }
    path = model(tmp_path / "m.onnx", nodes, constants)
    graph = prepare(load(path), batch=3)
    values = seeded_inputs(graph)
    plan = tune_stages(graph, open_device("cpu", threads=1), runs=1).plan
    engine = stage_engine(graph, plan, open_device("cpu", threads=1), values)
    close([value.numpy() for value in engine.outputs()], expected(path, graph, values, 3))
    engine.close()


def test_what_is_drawn_at_random_is_not_known(tmp_path):
    nodes = [
        helper.make_node("RandomNormal", [], ["noise"], name="noise", shape=[1, 3, 8, 8]),
        helper.make_node("Add", ["x", "noise"], ["y"], name="add"),
    ]
    graph = with_known_values(load(model(tmp_path / "m.onnx", nodes, {})))
    assert not any(tensor in graph.constants for op in graph.ops for tensor in op.outputs if tensor != ABSENT)


@pytest.mark.models
def test_a_real_model_with_computed_weights(tmp_path):
    """All weights of onnx's light models are made by ConstantOfShape."""
    path = installed_model("onnx", "light_shufflenet.onnx")
    graph = prepare(load(path))
    assert not any(graph.ops[index].kind == "ConstantOfShape" for ops in group_units(graph).units for index in ops)
    values = seeded_inputs(graph)
    plan = tune_stages(graph, open_device("cpu", threads=2), runs=3).plan
    engine = stage_engine(graph, plan, open_device("cpu", threads=2), values)
    names = [graph.tensors[tensor].name for tensor in graph.inputs]
    close([value.numpy() for value in engine.outputs()], ort.run_on(path, dict(zip(names, values, strict=True))))
    engine.close()


def test_a_shard_keeps_the_number_that_is_filled_in(tmp_path):
    graph = load(computed_weights(tmp_path / "m.onnx"))
    written = onnx.ModelProto.FromString(shard_model(graph, opsets_of(graph)))
    (node,) = [node for node in written.graph.node if node.op_type == "ConstantOfShape"]
    assert numpy_helper.to_array(node.attribute[0].t).tolist() == [0.25]
    onnx.save(written, str(tmp_path / "shard.onnx"))
    values = seeded_inputs(graph)
    close(ort.run_on(tmp_path / "shard.onnx", {"x": values[0]}), ort.run_on(tmp_path / "m.onnx", {"x": values[0]}))


@pytest.mark.parametrize("value", [np.zeros(0, np.float32), np.zeros(2, np.float32), np.array(["a"], object)])
def test_a_number_that_is_none_is_said_when_it_is_needed(tmp_path, value):
    path = computed_weights(tmp_path / "m.onnx")
    damaged = onnx.load(str(path))
    damaged.graph.node[0].attribute[0].t.CopyFrom(numpy_helper.from_array(value))
    onnx.save(damaged, str(path))
    graph = load(path)
    with pytest.raises(UnsupportedError, match="'ones': the number"):
        tune_stages(prepare(graph), open_device("cpu", threads=1), runs=1)
