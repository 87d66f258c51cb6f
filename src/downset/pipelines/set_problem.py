"""The input of the compiled set search: tables of strips, devices, links.

Names: class → devices for which the weights of an operator's MACs and of a moved byte are the same; work → MACs of
kinds without an alpha of their own, and everything else in the MACs that take as long. A device does `speed` of it in a
second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from downset import native
from downset.clusters.model import Device
from downset.pipelines.prices import PricedChain
from downset.pipelines.problem import SplitProblem

__all__ = [
    "FoundStage",
    "LoadDevice",
    "SetProblem",
    "StripTables",
    "WorkClass",
    "compiled_problem",
    "strip_tables",
    "work_class",
]

Tables = npt.NDArray[np.float64]


class WorkClass(NamedTuple):
    """`weights`: by kind of operator the weight of a MAC, if it is not 1. `moved`: the weight of a byte that an
    operator without MACs reads or writes."""

    weights: tuple[tuple[str, float], ...]
    moved: float


def work_class(device: Device) -> WorkClass:
    weights = {kind: alpha / device.alpha for kind, alpha in device.alpha_of.items() if alpha != device.alpha}
    return WorkClass(tuple(sorted(weights.items())), device.speed / device.moved_per_s)


@dataclass(frozen=True, slots=True)
class StripTables:
    """By (start, stop): arrays of quantities (MACs, bytes in, bytes out, the work of each class) with rows upper, lower
    and final, as in `SegmentPrices`."""

    segments: Mapping[tuple[int, int], Tables]
    classes: tuple[WorkClass, ...]

    def cost(self, start: int, stop: int, quantity: int, lo: int, hi: int) -> float:
        """The value of a quantity for the strip [lo, hi); 0 for an empty strip."""
        upper, lower, final = self.segments[start, stop][quantity]
        if hi <= lo:
            return 0.0
        return float(final[lo] if hi + 1 == len(upper) else upper[hi] - lower[lo])


def strip_tables(problem: PricedChain, classes: tuple[WorkClass, ...]) -> StripTables:
    """The tables of every segment. Complexity: the chain is priced once for each kind with a weight."""
    kinds = sorted({kind for one in classes for kind, _ in one.weights})
    by_kind = {kind: _only(problem, kind) for kind in kinds}
    table_of = {}
    for start in range(problem.cuts):
        for stop in range(start + 1, problem.cuts + 1):
            segment = problem.segment(start, stop)
            ways = (segment.upper, segment.lower, segment.final)
            tables = np.empty((3 + len(classes), 3, segment.rows + 1))
            for way, quantities in enumerate(ways):
                tables[:3, way] = quantities[:3]
            parts = {kind: by_kind[kind].segment(start, stop) for kind in kinds}
            for work, one in zip(tables[3:], classes, strict=True):
                for way, (macs, _, _, moved) in enumerate(ways):
                    work[way] = macs + one.moved * moved
                for kind, weight in one.weights:
                    part = parts[kind]
                    work += (weight - 1.0) * np.stack([part.upper[0], part.lower[0], part.final[0]])
            table_of[start, stop] = tables
    return StripTables(table_of, classes)


def _only(problem: PricedChain, kind: str) -> PricedChain:
    """The chain in which only one kind of operators has MACs."""
    ops = tuple(op if op.kind == kind else replace(op, macs_per_row=0) for op in problem.ops)
    return PricedChain(SplitProblem(problem.tensors, ops, problem.units, problem.kept))


class LoadDevice(NamedTuple):
    """`type`: devices of one type are interchangeable. `work_class`: index of its table of work. `speed`: work in a
    second. `peak`: the most MACs in a second. `full`: whether it sends and receives at once."""

    type: int
    work_class: int
    speed: float
    peak: float
    full: bool


class SetProblem(NamedTuple):
    """The problem of the compiled search: a chain, and devices in the order of strips. `source` and `sink`:
    devices, or -1 for outside."""

    tables: StripTables
    macs_before: Sequence[float]
    crossing_bytes: Sequence[float]
    devices: Sequence[LoadDevice]
    per_byte: Sequence[Sequence[float]]
    latency: Sequence[Sequence[float]]
    uniform: bool
    overlap: bool
    shared: bool
    source: int
    sink: int
    forbidden: frozenset[tuple[int, int, int]]


FoundStage = tuple[int, list[tuple[int, int, list[int]]], list[int]]
"""(leader, blocks as (start, stop, row boundaries), devices)."""


def compiled_problem(problem: SetProblem) -> Any:
    """The problem as compiled objects."""
    compiled = native.compiled
    return compiled.LoadProblem(
        compiled.LoadChain(
            {index: compiled.LoadSegment(tables) for index, tables in problem.tables.segments.items()},
            list(problem.macs_before),
            list(problem.crossing_bytes),
        ),
        [compiled.LoadDevice(*device) for device in problem.devices],
        compiled.PipelineNetwork(
            problem.per_byte, problem.latency, uniform=problem.uniform, overlap=problem.overlap, shared=problem.shared
        ),
        source=problem.source,
        sink=problem.sink,
        forbidden=sorted(problem.forbidden),
    )
