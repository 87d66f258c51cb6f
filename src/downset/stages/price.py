"""Prices of stages without a device: from a table, by formulas, or from a simulated device. Also signatures of stages.

A price is a callable from a stage to seconds. The prices here are analytic or simulated, and reports label them so.
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
    """The prices of a table, in seconds. The price of a stage that is not in the table is a KeyError."""
    return prices.__getitem__


def analytic(
    graph: Graph, units: UnitGraph, *, macs_per_s: float, bytes_per_s: float, launch_s: float = 0.0, lanes: int = 2
) -> Price:
    """Analytic prices in seconds. A unit takes the longer of MACs / macs_per_s and bytes moved / bytes_per_s, plus
    `launch_s`. A stage takes the longer of its longest group and the sum of its groups divided by `lanes`. A merged
    stage takes the sum of its units without launches divided by `lanes`, plus one `launch_s`."""
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
    """A device whose units run side by side. Unit u alone takes `seconds[u]` and uses the share `occupancy[u]` of the
    device (above 0, at most 1). Units side by side run at full speed while their shares add up to at most 1; beyond
    that, all slow down in proportion. A stage of several groups takes `fork_join_s` more. A merged stage takes the
    longer of the sum of seconds · occupancy and its longest unit times `merged_share`."""

    seconds: Sequence[float]
    occupancy: Sequence[float]
    fork_join_s: float = 2e-6
    merged_share: float = 1.0


def simulated(device: SimulatedDevice) -> Price:
    """Simulated prices in seconds. Between two ends of units all groups run at one common speed. O(units²)."""

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
    """32 hexadecimal digits, equal for stages that differ only in names. They are a hash of the sorted groups: kinds,
    attributes, shapes and inner edges of the operators in order."""
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
                        # Only for a merged stage does it matter which groups read the same tensor.
                        same = outside.setdefault(tensor, len(outside)) if stage.merged else -1
                        sources.append((graph.tensors[tensor].shape, graph.tensors[tensor].dtype, same))
                for position, tensor in enumerate(op.outputs):
                    producers[tensor] = (len(parts), position)
                results = [graph.tensors[tensor].shape for tensor in op.outputs if tensor != ABSENT]
                parts.append((op.kind, sorted((key, repr(value)) for key, value in op.attrs.items()), sources, results))
        groups.append(repr(parts))
    text = ("merged" if stage.merged else "beside") + "\n".join(sorted(groups))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
