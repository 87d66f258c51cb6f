"""The problem that a planner of stages solves: which unit waits for which, which sets of units may merge, and the price
of each stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from downset.lattice import bits
from downset.results.plans import Stage

__all__ = ["FoundStages", "Price", "Stage", "StageProblem", "groups_of", "stage_of"]


Price = Callable[[Stage], float]
"""A function from a stage to its latency in seconds."""


@dataclass(frozen=True, slots=True)
class StageProblem:
    """`predecessors[u]`: mask of the units that unit u waits for, all below u. `families`: disjoint masks of units
    that do not wait for each other; any two or more units of a family may be merged into one operator."""

    predecessors: tuple[int, ...]
    families: tuple[int, ...] = ()

    def can_merge(self, units: int) -> bool:
        several = units & (units - 1) != 0
        return several and any(units & ~family == 0 for family in self.families)


@dataclass(frozen=True, slots=True)
class FoundStages:
    """`cost_s`: the sum of the prices of the stages. `bound_s`: a lower bound on the cost of every schedule within the
    same limits. `timings`: how many different stages were priced. `ended_by`: the limit that ended the search early,
    on priced stages ("timings"), time or work; "" if none did."""

    stages: tuple[Stage, ...]
    cost_s: float
    bound_s: float
    proven: bool
    timings: int
    ended_by: Literal["", "timings", "time", "work", "interrupt"] = ""


def groups_of(predecessors: Iterable[int], units: int) -> tuple[tuple[int, ...], ...]:
    """The connected components of a set of units, sorted by their lowest unit; the units of each ascend. O(V)."""
    before = list(predecessors)
    groups: list[int] = []
    for unit in bits(units):
        joined = 1 << unit
        apart = []
        for group in groups:
            if group & before[unit]:
                joined |= group
            else:
                apart.append(group)
        groups = [*apart, joined]
    return tuple(sorted(tuple(bits(group)) for group in groups))


def stage_of(problem: StageProblem, units: int, *, merged: bool = False) -> Stage:
    """The stage of exactly these units: their connected components side by side, or all merged."""
    if merged:
        return Stage(tuple((unit,) for unit in bits(units)), merged=True)
    return Stage(groups_of(problem.predecessors, units))
