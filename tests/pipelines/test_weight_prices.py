"""Prices of weights: the bytes that operators with MACs read for each frame, in addition to their MACs."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, permutations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from downset.clusters.model import Cluster, Device, Network
from downset.distributed.simulator import simulate
from downset.errors import InvalidPlan
from downset.formats.reading import load
from downset.pipelines.check import verify_pipeline
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.planners import PIPELINERS
from downset.results.task_times import plan_seconds
from tests.models import branchy_model

WIDTHS = (64, 512, 256, 512, 32, 8)
RATE = 1e6


def products(path):
    """Matrix-vector products: as many MACs as weights, each of four bytes."""
    nodes, weights, name = [], [], "x"
    for place, (rows, columns) in enumerate(pairwise(WIDTHS)):
        weights.append(numpy_helper.from_array(np.full((rows, columns), 0.01, np.float32), f"w{place}"))
        nodes.append(helper.make_node("MatMul", [name, f"w{place}"], [f"y{place}"]))
        name = f"y{place}"
    ends = [
        helper.make_tensor_value_info(what, TensorProto.FLOAT, (1, size))
        for what, size in (("x", WIDTHS[0]), (name, WIDTHS[-1]))
    ]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return load(path)


def cluster_of(speeds, *, weight_bytes_per_s, network=None):
    devices = tuple(Device(f"d{k}", speed, weight_bytes_per_s=weight_bytes_per_s) for k, speed in enumerate(speeds))
    return Cluster(devices, network or Network("links", 1e9))


def least_period(speeds, rate):
    """Of every way to give consecutive products to devices; what is sent takes next to no time."""
    sizes = [rows * columns for rows, columns in pairwise(WIDTHS)]
    best = float("inf")
    for count in range(1, len(speeds) + 1):
        for inner in combinations(range(1, len(sizes)), count - 1):
            parts = [sum(sizes[low:high]) for low, high in pairwise((0, *inner, len(sizes)))]
            for own in permutations(speeds, count):
                loads = [part / speed + 4 * part / rate for part, speed in zip(parts, own, strict=True)]
                best = min(best, max(loads))
    return best


@pytest.mark.parametrize("topology", ["leader", "direct"])
def test_products_that_read_their_weights_once_are_balanced_by_their_bytes(topology, tmp_path):
    graph, speeds = products(tmp_path / "net.onnx"), (4e9, 1e9, 1e9)
    free = plan_pipeline(graph, cluster_of(speeds, weight_bytes_per_s=None), topology=topology)
    priced = plan_pipeline(graph, cluster_of(speeds, weight_bytes_per_s=RATE), topology=topology)
    assert priced.period_s == pytest.approx(least_period(speeds, RATE), rel=1e-2)
    assert priced.period_s > 100 * free.period_s
    assert simulate(priced, frames=50).period_s == pytest.approx(priced.period_s)
    assert all(strip.weight_bytes == 0 for stage in free.stages for block in stage.blocks for strip in block.strips)


@pytest.mark.parametrize("method", [name for name in PIPELINERS if name != "exhaustive"])
def test_a_plan_takes_what_it_took_and_the_weights_of_each_strip(method, tmp_path):
    """The prices of a plan's computations with weights, less those without, are the bytes of the weights that its
    operators with MACs read, counted from the graph, over the rate; and the check refuses any other number."""
    graph = load(branchy_model(tmp_path / "branchy.onnx"))
    network = Network("links", 1e6, overlap=True)
    cluster = cluster_of((3e6, 2e6, 1e6), weight_bytes_per_s=RATE, network=network)
    plan = plan_pipeline(graph, cluster, method=method)
    free_of = tuple(replace(device, weight_bytes_per_s=None) for device in plan.cluster.devices)
    free = replace(plan, cluster=replace(plan.cluster, devices=free_of))
    counted = 0
    for task, with_weights, without in zip(plan.tasks, plan_seconds(plan), plan_seconds(free), strict=True):
        if task.transfer is not None:
            assert with_weights == without
            continue
        block = plan.stages[task.stage].blocks[task.block]
        strip = block.strips[task.strip]
        assert with_weights == pytest.approx(without + strip.weight_bytes / RATE)
        read = {
            tensor
            for op in block.ops
            if graph.ops[op].kind in ("Conv", "Gemm", "MatMul")
            for tensor in graph.ops[op].inputs
            if tensor in graph.constants
        }
        if len(block.strips) == 1:
            assert strip.weight_bytes == sum(graph.tensors[tensor].nbytes for tensor in read)
        assert 0 <= strip.weight_bytes <= sum(graph.tensors[tensor].nbytes for tensor in read)
        counted += strip.weight_bytes
    assert counted > 0
    verify_pipeline(graph, plan)
    stage = plan.stages[0]
    block = stage.blocks[0]
    forged = replace(block.strips[0], weight_bytes=block.strips[0].weight_bytes + 4)
    stages = (replace(stage, blocks=(replace(block, strips=(forged, *block.strips[1:])), *stage.blocks[1:])),)
    with pytest.raises(InvalidPlan, match="bytes of weights"):
        verify_pipeline(graph, replace(plan, stages=(*stages, *plan.stages[1:])))
