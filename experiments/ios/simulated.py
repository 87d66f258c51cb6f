"""A simulated device for the stages experiments: every figure from it is labelled simulated, none is a measurement.

A unit alone takes the longer of its arithmetic and its traffic, and a launch for each kernel; it occupies the share of
the device that its output elements can fill. Round figures of a V100: 15.7 TFLOP/s in float32 of which kernels reach
60 %, 900 GB/s of which they reach 70 %, 4 us a kernel, 2 us for each stage of several groups, 80 x 2048 threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from downset.graph.core import ABSENT, Graph
from downset.graph.cost import op_macs
from downset.rewrites.merge.convolutions import merged_macs
from downset.stages.price import SimulatedDevice, simulated
from downset.stages.problem import Price, Stage
from downset.stages.unit_graph import UnitGraph

__all__ = ["THREADS", "V100", "Gpu", "device_of", "price_of"]

THREADS = 80 * 2048


@dataclass(frozen=True, slots=True)
class Gpu:
    """Round figures of a GPU: floating-point operations and bytes a second that kernels reach, the seconds of a launch
    and of the synchronisation of a stage of several groups, and the threads that it runs at a time."""

    flops: float = 15.7e12 * 0.6
    bytes_per_s: float = 900e9 * 0.7
    launch_s: float = 4e-6
    fork_join_s: float = 2e-6
    threads: int = THREADS


V100 = Gpu()
_FREE = frozenset({"Relu", "Reshape", "Identity", "Flatten"})


def _seconds(gpu: Gpu, macs: int, moved: int, share: float) -> float:
    """Arithmetic alone on a part of the device runs at that part's speed."""
    return max(2 * macs / (gpu.flops * share), moved / gpu.bytes_per_s) + gpu.launch_s


def price_of(graph: Graph, units: UnitGraph, gpu: Gpu = V100) -> Price:
    """Prices on the simulated device; merged ones pay for the zeros in their kernel, read their input once."""
    device = simulated(device_of(graph, units, gpu))

    def price(stage: Stage) -> float:
        if not stage.merged:
            return device(stage)
        ops = [units.units[unit][0] for unit in stage.units]
        _, macs = merged_macs(graph, ops)
        source = graph.tensors[graph.ops[ops[0]].inputs[0]]
        results = [graph.tensors[graph.ops[op].outputs[0]] for op in ops]
        elements = sum(math.prod(result.shape) for result in results)
        weights = 4 * macs // math.prod(results[0].shape[:1] + results[0].shape[2:])
        moved = source.nbytes + weights + sum(result.nbytes for result in results)
        return _seconds(gpu, macs, moved, min(1.0, elements / gpu.threads))

    return price


def device_of(graph: Graph, units: UnitGraph, gpu: Gpu = V100) -> SimulatedDevice:
    seconds, shares = [], []
    for ops in units.units:
        total, work = 0.0, 0.0
        for index in ops:
            op = graph.ops[index]
            if op.kind in _FREE and len(ops) > 1:
                continue  # fused
            elements = sum(math.prod(graph.tensors[tensor].shape) for tensor in op.outputs if tensor != ABSENT)
            moved = sum(graph.tensors[tensor].nbytes for tensor in (*op.inputs, *op.outputs) if tensor != ABSENT)
            share = min(1.0, elements / gpu.threads)
            alone = _seconds(gpu, op_macs(graph, op), moved, share)
            total += alone
            work += alone * share
        seconds.append(total or gpu.launch_s)
        shares.append(max(work / total, 1e-3) if total else 1e-3)
    return SimulatedDevice(seconds, shares, gpu.fork_join_s)
