"""Prices of stages without a device: from a table, from arithmetic, from a simulated one. And the name of a stage.

A price is any callable from a stage to seconds. The prices here are analytic or simulated, never measured; reports
label them so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from downset.graph.core import ABSENT, Graph
from downset.graph.cost import op_macs
from downset.stages.problem import Price, Stage
from downset.stages.unit_graph import UnitGraph

__all__ = ["SimulatedDevice", "analytic", "signature", "simulated", "table"]


def table(prices: Mapping[Stage, float]) -> Price:
    """Known prices; KeyError for any other stage."""
    return prices.__getitem__


def analytic(
    graph: Graph, units: UnitGraph, *, macs_per_s: float, bytes_per_s: float, launch_s: float = 0.0, lanes: int = 2
) -> Price:
    """Analytic prices: a unit takes the longer of its arithmetic and its traffic, and a launch; a stage the longest of
    its groups, or its work shared by `lanes` equal lanes, whichever is more; a merged stage its work and one launch."""
    seconds = []
    for ops in units.units:
        macs = sum(op_macs(graph, graph.ops[op]) for op in ops)
        inside = {tensor for op in ops for tensor in graph.ops[op].outputs}
        outside = {tensor for op in ops for tensor in graph.ops[op].inputs if tensor != ABSENT} - inside
        moved = sum(graph.tensors[tensor].nbytes for tensor in outside)
        moved += sum(graph.tensors[tensor].nbytes for tensor in graph.ops[ops[-1]].outputs if tensor != ABSENT)
        seconds.append(max(macs / macs_per_s, moved / bytes_per_s))

    def price(stage: Stage) -> float:
        if stage.merged:
            return sum(seconds[unit] for unit in stage.units) / lanes + launch_s
        groups = [sum(seconds[unit] + launch_s for unit in group) for group in stage.groups]
        return max(max(groups), sum(groups) / lanes)

    return price


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """A device that shares itself out. A unit that runs alone takes `seconds[u]` and occupies the share `occupancy[u]`
    (above 0, at most 1) of the device; units side by side run at full speed while their shares add up to at most 1, and
    all of them slow down in proportion beyond. A stage of several groups takes `fork_join_s` more. A merged stage takes
    its work at full occupancy, at least its longest unit times `merged_share`."""

    seconds: Sequence[float]
    occupancy: Sequence[float]
    fork_join_s: float = 2e-6
    merged_share: float = 1.0


def simulated(device: SimulatedDevice) -> Price:
    """Simulated prices: events are the ends of units, between them every group runs at one common speed. O(units²)."""

    def price(stage: Stage) -> float:
        if stage.merged:
            work = sum(device.seconds[unit] * device.occupancy[unit] for unit in stage.units)
            return max(work, device.merged_share * max(device.seconds[unit] for unit in stage.units))
        running = [list(group) for group in stage.groups]
        left = [device.seconds[group[0]] for group in running]
        now = 0.0
        while running:
            load = sum(device.occupancy[group[0]] for group in running)
            slow = max(1.0, load)
            step = min(left)
            now += step * slow
            following, remaining = [], []
            for group, rest in zip(running, left, strict=True):
                if rest > step:
                    following.append(group)
                    remaining.append(rest - step)
                elif len(group) > 1:
                    following.append(group[1:])
                    remaining.append(device.seconds[group[1]])
            running, left = following, remaining
        return now + (device.fork_join_s if len(stage.groups) > 1 else 0.0)

    return price


def signature(graph: Graph, units: UnitGraph, stage: Stage) -> str:
    """A name that stages share if they are the same up to names: the sorted groups, each its operators' kinds,
    attributes, shapes and inner edges, in order. 32 hexadecimal digits."""
    producers: dict[int, tuple[int, int]] = {}
    groups = []
    outside: dict[int, int] = {}
    for group in stage.groups:
        parts: list[object] = []
        producers.clear()
        for unit in group:
            for index in units.units[unit]:
                op = graph.ops[index]
                sources: list[object] = []
                for tensor in op.inputs:
                    if tensor == ABSENT:
                        sources.append(None)
                    elif tensor in producers:
                        sources.append(producers[tensor])
                    elif tensor in graph.constants:
                        sources.append((graph.tensors[tensor].shape, graph.tensors[tensor].dtype))
                    else:
                        # Which of several groups read the same tensor matters to a merged stage only.
                        same = outside.setdefault(tensor, len(outside)) if stage.merged else -1
                        sources.append((graph.tensors[tensor].shape, graph.tensors[tensor].dtype, same))
                for position, tensor in enumerate(op.outputs):
                    producers[tensor] = (len(parts), position)
                results = [graph.tensors[tensor].shape for tensor in op.outputs if tensor != ABSENT]
                parts.append((op.kind, sorted((key, repr(value)) for key, value in op.attrs.items()), sources, results))
        groups.append(repr(parts))
    text = ("merged" if stage.merged else "beside") + "\n".join(sorted(groups))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
