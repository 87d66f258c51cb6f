"""Networks and clusters that the experiments on PICO's evaluation share."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np

from downset import Graph, Pipeline
from downset.clusters.model import Cluster, Device, MessageCosts, Network, ProcessorCost
from downset.pipelines.problem import SplitOp, SplitProblem, SplitTensor, window_tables
from zoo import graph

__all__ = ["PAPER_NETWORKS", "connected", "equal_cluster", "hetero_cluster", "loads", "network", "synthetic"]

PAPER_NETWORKS = {
    "vgg16": {"classifier": False},
    "yolov2": {"passthrough": False},
    "resnet34": {},
    "inception_v3": {},
}
"""VGG16 without its classifier (the 18 layers of Table V), YOLOv2 as a chain, the two with blocks whole."""


def network(name: str) -> Graph:
    return graph(name, weights=False, **PAPER_NETWORKS[name])


def equal_cluster(count: int, ghz: float, *, mac_per_cycle: float = 1.0) -> Cluster:
    """`count` Raspberry Pis at one frequency, 50 Mbit/s between each two."""
    devices = tuple(Device(f"rpi_{k}", ghz * mac_per_cycle * 1e9, power_busy_w=5, power_idle_w=2) for k in range(count))
    return Cluster(devices, Network("links", 6.25e6))


def hetero_cluster(frequencies_ghz: tuple[float, ...]) -> Cluster:
    devices = tuple(Device(f"d{k}@{ghz}", ghz * 1e9) for k, ghz in enumerate(frequencies_ghz))
    return Cluster(devices, Network("links", 6.25e6))


CONNECTION = MessageCosts(ProcessorCost(0.09e-3, 0.70e-9), ProcessorCost(0.08e-3, 1.4e-9)).times(4)
"""The processor time of a message over a TLS connection on a link of 50 Mbit/s (docs/decisions/0033), four times as
long as measured on one core of a server: a Raspberry Pi's is about that much slower."""


def connected(cluster: Cluster) -> Cluster:
    """The cluster whose devices compute while their connections send and receive, which takes a part of their
    processors."""
    devices = tuple(replace(device, messages=CONNECTION) for device in cluster.devices)
    return Cluster(devices, replace(cluster.network, overlap=True))


def synthetic(branches: int, layers: int, seed: int = 0) -> SplitProblem:
    """A network of `layers` convolutions in `branches` parallel chains, joined by additions, each layer a unit.

    56 x 56 pixels, 256 channels, kernels 1x1 or 3x3 (1x7 and 7x1 for graphs) drawn from the seed. Layers are dealt to
    the branches in turn; branches start at the input and are added up at the end by an operator of the last unit. The
    order of units goes around the branches, so that a cut crosses each of them.
    """
    random = Random(f"{branches}/{layers}/{seed}")
    rows, channels = 56, 256
    row_bytes = rows * channels * 4
    tensors, ops = [SplitTensor(rows, row_bytes)], []
    tips = [0] * branches
    for layer in range(layers):
        down, across = random.choice([(1, 1), (3, 3), (3, 3)] + ([(1, 7), (7, 1)] if branches > 1 else []))
        first, last = window_tables(rows, rows, kernel=down, stride=1, pad=down // 2)
        branch = layer % branches
        tensors.append(SplitTensor(rows, row_bytes))
        ops.append(
            SplitOp(down * across * channels * channels * rows, (tips[branch],), (len(tensors) - 1,), (first,), (last,))
        )
        tips[branch] = len(tensors) - 1
    units = [(op,) for op in range(layers)]
    if branches > 1:
        starts = np.arange(rows + 1, dtype=np.int64)
        same = (np.minimum(starts, rows - 1), np.maximum(starts, 1))
        tensors.append(SplitTensor(rows, row_bytes))
        ops.append(SplitOp(0, tuple(tips), (len(tensors) - 1,), (same[0],) * branches, (same[1],) * branches))
        units[-1] = (layers - 1, layers)
    return SplitProblem(tuple(tensors), tuple(ops), tuple(units), frozenset({len(tensors) - 1}))


def loads(plan: Pipeline) -> list[dict[str, float]]:
    """By device: utilisation (computing time over the period) and redundancy (of its own MACs)."""
    rows = []
    for device, described in enumerate(plan.cluster.devices):
        strips = [s for stage in plan.stages for block in stage.blocks for s in block.strips if s.device == device]
        macs, redundant = sum(s.macs for s in strips), sum(s.redundant_macs for s in strips)
        memory = [held.total_bytes for held in plan.memory if held.device == device]
        rows.append(
            {
                "utilisation": macs / described.speed / plan.period_s,
                "redundancy": redundant / macs if macs else 0.0,
                "memory_bytes": max(memory, default=0),
            }
        )
    return rows
