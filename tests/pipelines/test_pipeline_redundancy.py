"""MACs and redundant MACs add up on one definition for all planners; weights that operators compute are not rows."""

from dataclasses import replace
from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from downset.clusters.toml_file import load_cluster
from downset.errors import InvalidPlan
from downset.formats.reading import load
from downset.pipelines.check import verify_pipeline
from downset.pipelines.network import block_units, split_problem
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.planners import PIPELINERS
from downset.pipelines.prices import PricedChain
from tests.models import installed_model
from tests.pipeline_generators import random_chain, random_cluster, random_graph


def saved(path, nodes, image, outputs, initializers):
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs]
    graph = helper.make_graph(nodes, "g", values, made, initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return load(path)


def weights(name, *shape):
    return onnx.numpy_helper.from_array(np.full(shape, 0.5, np.float32), name)


def unread_rows(path):
    """A pool that leaves out the last row and column of 31, then one of every second row."""
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["h"], name="stem", pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["h"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "a"], ["q"], name="middle", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["q", "b"], ["y"], name="sparse", strides=[2, 2]),
    ]
    return saved(
        path, nodes, [1, 3, 31, 31], [("y", [1, 3, 8, 8])], [weights("a", 3, 3, 3, 3), weights("b", 3, 3, 1, 1)]
    )


@pytest.mark.parametrize("cluster", ["pico_1mac", "pico_1mac_cell"])
def test_macs_less_the_redundant_are_the_same_for_every_method(cluster, tmp_path):
    graph = unread_rows(tmp_path / "m.onnx")
    needed = 3 * 27 * 30 * 30 + 3 * 27 * 8 * 8 + 3 * 3 * 8 * 8  # rows and columns that somebody reads, and no others
    for method in PIPELINERS:
        plan = plan_pipeline(graph, load_cluster(cluster), method=method, time_limit_s=0.5)
        verify_pipeline(graph, plan)
        assert sum(stage.macs - stage.redundant_macs for stage in plan.stages) == needed, method
        assert all(strip.redundant_macs >= 0 for s in plan.stages for b in s.blocks for strip in b.strips)
    single = plan_pipeline(graph, load_cluster(cluster), method="single").stages[0]
    # Its one strip ends with the last row that is read: 30 of 31, 15 of 15; it computes all columns.
    assert single.macs == 3 * 27 * 30 * 31 + 3 * 27 * 15 * 15 + 3 * 3 * 8 * 8
    off = replace(single, redundant_macs=single.redundant_macs - 1)
    plan = plan_pipeline(graph, load_cluster(cluster), method="single")
    with pytest.raises(InvalidPlan, match="redundant"):
        verify_pipeline(graph, replace(plan, stages=(off,)))


def test_random_networks_too():
    for seed in range(20):
        random = Random(f"redundant/{seed}")
        problem = random_chain(random, rows=12) if seed % 2 else random_graph(random, units=4, rows=10)
        cluster = random_cluster(random, "links", devices=4)
        plans = [plan_pipeline(problem, cluster, method=method, comm="paper") for method in PIPELINERS]
        needed = {sum(stage.macs - stage.redundant_macs for stage in plan.stages) for plan in plans}
        assert needed == {problem.least_macs_before()[-1]}


def test_weights_that_operators_compute_are_never_cut(tmp_path):
    """A kernel of 3 x 3 made by ConstantOfShape must not make the frame three rows high, nor be sent."""
    shape = onnx.numpy_helper.from_array(np.array([4, 3, 3, 3], np.int64), "shape")
    value = onnx.numpy_helper.from_array(np.array([0.5], np.float32), "value")
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["w"], name="fill", value=value),
        helper.make_node("Conv", ["x", "w"], ["h"], name="stem", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["h", "v"], ["y"], name="head", pads=[1, 1, 1, 1]),
    ]
    graph = saved(
        tmp_path / "m.onnx", nodes, [1, 3, 32, 32], [("y", [1, 4, 32, 32])], [shape, weights("v", 4, 4, 3, 3)]
    )
    problem = PricedChain(split_problem(graph, block_units(graph)))
    assert [problem.segment(unit, unit + 1).rows for unit in range(problem.cuts)] == [32] * problem.cuts
    assert problem.cuts == 2  # weights that wait for a later reader make no block longer
    assert problem.cut_bytes()[1] == 4 * 32 * 32 * 4
    plan = plan_pipeline(graph, load_cluster("rpi_8"), method="layerwise")
    verify_pipeline(graph, plan)
    assert len(plan.stages[0].blocks[0].strips) == 8
    sent = [task.transfer for task in plan.tasks if task.transfer is not None and task.block == 0 and not task.after]
    assert len(sent) == 7
    assert all(transfer.nbytes <= 3 * 32 * 32 * 4 for transfer in sent)


def test_operators_with_outputs_of_unequal_height():
    """The wheel's SqueezeNet has a Dropout whose mask has another rank than its result."""
    graph = load(installed_model("onnx", "light_squeezenet.onnx"))
    plan = plan_pipeline(graph, load_cluster("pico_1mac"), method="layerwise")
    verify_pipeline(graph, plan)
    assert max(len(block.strips) for block in plan.stages[0].blocks) == 8
