"""Prices of strips on each class of devices: tables of MACs, bytes and work, for the search by loads.

Names: class → devices for which an operator's MACs and a moved byte weigh the same; work → MACs of kinds without an
alpha of their own, and what takes as long, so that a device of the class does `speed` of it a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from downset.clusters.model import Device
from downset.pipelines.problem import SplitProblem

__all__ = ["StripTables", "WorkClass", "strip_tables", "work_class"]

Tables = npt.NDArray[np.float64]


class WorkClass(NamedTuple):
    """`weights`: by kind of operator, what a MAC weighs if not 1; `moved`: what a byte weighs that an operator without
    MACs reads or writes."""

    weights: tuple[tuple[str, float], ...]
    moved: float


def work_class(device: Device) -> WorkClass:
    weights = {kind: alpha / device.alpha for kind, alpha in device.alpha_of.items() if alpha != device.alpha}
    return WorkClass(tuple(sorted(weights.items())), device.speed / device.moved_per_s)


@dataclass(frozen=True, slots=True)
class StripTables:
    """By (start, stop): an array of quantities (MACs, bytes in, bytes out, the work of each class) by upper, lower and
    final by row, as `SegmentPrices` has them."""

    segments: Mapping[tuple[int, int], Tables]

    def cost(self, start: int, stop: int, quantity: int, lo: int, hi: int) -> float:
        """The cost of the strip [lo, hi); 0 of an empty one."""
        upper, lower, final = self.segments[start, stop][quantity]
        if hi <= lo:
            return 0.0
        return float(final[lo] if hi + 1 == len(upper) else upper[hi] - lower[lo])


def strip_tables(problem: SplitProblem, classes: tuple[WorkClass, ...]) -> StripTables:
    """Tables of every segment. Complexity: one pricing of the chain for each kind that has a weight of its own."""
    kinds = sorted({kind for one in classes for kind, _ in one.weights})
    by_kind = {kind: _only(problem, kind) for kind in kinds}
    table_of = {}
    for start in range(problem.cuts):
        for stop in range(start + 1, problem.cuts + 1):
            segment = problem.segment(start, stop)
            tables = np.stack([segment.upper, segment.lower, segment.final], axis=1).astype(np.float64)
            macs, in_bytes, out_bytes, moved = tables
            parts = {kind: by_kind[kind].segment(start, stop) for kind in kinds}
            works = []
            for one in classes:
                work = macs + one.moved * moved
                for kind, weight in one.weights:
                    part = parts[kind]
                    work = work + (weight - 1.0) * np.stack([part.upper[0], part.lower[0], part.final[0]])
                works.append(work)
            table_of[start, stop] = np.ascontiguousarray(np.stack([macs, in_bytes, out_bytes, *works]))
    return StripTables(table_of)


def _only(problem: SplitProblem, kind: str) -> SplitProblem:
    """The chain with the MACs of one kind of operators."""
    ops = tuple(op if op.kind == kind else replace(op, macs_per_row=0) for op in problem.ops)
    return SplitProblem(problem.tensors, ops, problem.units, problem.kept)
