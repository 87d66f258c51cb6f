"""Whole candidates timed end to end on the device, interleaved, and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from downset.cost import op_macs
from downset.graph import Graph
from downset.lattice import bits
from downset.plans import Stage
from downset.run.device import Device
from downset.run.program import lower, possibly_live_bytes
from downset.stage_search import Progress, Variant
from downset.stages.unit_graph import UnitGraph

__all__ = ["Candidate", "choose", "longest_path", "timed_candidates", "work"]

_WINS = 0.8
"""The share of interleaved rounds that a candidate must win against sequential to be taken instead."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A whole schedule and its measured latencies in seconds, one a round. `live_bytes`: analytic."""

    name: str
    stages: tuple[Stage, ...]
    barriers: bool
    seconds: tuple[float, ...] = ()
    live_bytes: int = 0
    variant: str = ""

    def percentile(self, share: float) -> float:
        return float(np.quantile(self.seconds, share))


def timed_candidates(
    variants: Mapping[str, Variant],
    device: Device,
    candidates: Sequence[Candidate],
    values: Sequence[Any],
    runs: int,
    progress: Progress,
) -> tuple[list[Candidate], tuple[str, list[tuple[float, float]]]]:
    """All candidates with their latencies; and of the best beside sequential its name and fresh rounds of the two,
    (sequential, best): a winner among several would be judged too kindly by the rounds that it was chosen in."""
    engines: dict[str, Any] = {}
    live: dict[str, int] = {}
    for at, candidate in enumerate(candidates):
        progress("building candidates", at, len(candidates))
        variant = variants[candidate.variant]
        graph, units = variant.graph, variant.units
        program = lower(units, candidate.stages, barriers=candidate.barriers, max_lanes=device.max_lanes)
        live[candidate.name] = possibly_live_bytes(graph, units, program)
        engines[candidate.name] = device.engine(
            variant.binder, units, program, inputs=graph.inputs, outputs=graph.outputs, values=values
        )
    progress("timing candidates", 0, 1)
    try:
        placed = [variants[""].binder.place(value) for value in values]
        samples = device.time_whole(engines, placed, runs=runs)
        first, *others = engines
        best = min(others, key=lambda name: median(samples[name]), default=first)
        pairs: list[tuple[float, float]] = []
        if best != first:
            progress("confirming the best", 0, 1)
            again = device.time_whole({first: engines[first], best: engines[best]}, placed, runs=runs)
            pairs = list(zip(again[first], again[best], strict=True))
    finally:
        for engine in engines.values():
            close = getattr(engine, "close", None)
            if close is not None:
                close()
    progress("timing candidates", 1, 1)
    timed = [replace(c, seconds=tuple(samples[c.name]), live_bytes=live[c.name]) for c in candidates]
    return timed, (best, pairs)


def choose(
    timed: Sequence[Candidate], confirmed: tuple[str, list[tuple[float, float]]]
) -> tuple[Candidate, float, str]:
    """(chosen, its speed-up over sequential, what decided)."""
    name, rounds = confirmed
    if not rounds:
        return timed[0], 1.0, "there is no other schedule"
    best = next(candidate for candidate in timed if candidate.name == name)
    wins = sum(theirs < ours for ours, theirs in rounds)
    gain = median(ours / theirs for ours, theirs in rounds)
    text = f"faster than sequential in {wins} of {len(rounds)} fresh interleaved rounds, {gain:.3f}x in the median"
    if wins >= _WINS * len(rounds) and gain > 1.0:
        return best, gain, f"{name} was {text}"
    return timed[0], 1.0, f"the best other, {name}, was {text}: not beyond the spread"


def work(graph: Graph, units: UnitGraph, alone: Sequence[float]) -> float:
    """All multiply-adds at the highest rate that any unit alone reached."""
    macs = [sum(op_macs(graph, graph.ops[op]) for op in ops) for ops in units.units]
    rate = max(count / seconds if seconds else 0.0 for count, seconds in zip(macs, alone, strict=True))
    return sum(macs) / rate if rate else 0.0


def longest_path(units: UnitGraph, alone: Sequence[float]) -> float:
    ends: list[float] = []
    for unit, before in enumerate(units.predecessors):
        ends.append(alone[unit] + max((ends[earlier] for earlier in bits(before)), default=0.0))
    return max(ends)
