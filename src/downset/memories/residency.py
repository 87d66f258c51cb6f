"""Residences of a fixed order: exactly, by the native search, or quickly, by Belady's rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from downset import native
from downset.budget import Clock
from downset.memories.problem import MemoriesProblem, Whereabouts
from downset.results.memories import Residence
from downset.results.plans import StoppedBy

__all__ = ["OrderResidency", "exact_residency", "quick_residency"]

_FIRST_WIDTH, _GROWTH, _LAST_WIDTH = 256, 16, 1 << 16
"""States that the search keeps at each access, in its rounds; at the last width it may end without a proof."""


@dataclass(frozen=True, slots=True)
class OrderResidency:
    """Residences of an order, what they cost, and a bound that holds for every residency of that order."""

    residences: tuple[Residence, ...]
    cost: int
    bound: int
    states: int = 0
    stopped_by: StoppedBy = ""


def quick_residency(problem: MemoriesProblem, order: Sequence[int]) -> OrderResidency:
    """Belady's rule with sizes and costs. O(accesses · storages held)."""
    cost, choices = native.compiled.memories_belady(problem.compiled, list(order))
    return OrderResidency(residences_of(problem, order, choices), cost, 0)


def exact_residency(
    problem: MemoriesProblem, order: Sequence[int], *, clock: Clock, most_width: int = _LAST_WIDTH
) -> OrderResidency:
    """The least cost of the order, proven (cost == bound) if the search ends within its limits; else the best
    residency found, never worse than the quick one. The clock counts states."""
    best = quick_residency(problem, order)
    bound, states, width = 0, 0, min(_FIRST_WIDTH, most_width)
    while not clock.over():
        seconds, most = clock.native(1 << 62)
        cost, choices, round_bound, visited = native.compiled.memories_residency(
            problem.compiled, list(order), best.cost, width, seconds, most
        )
        clock.count(visited)
        states, bound = states + visited, max(bound, round_bound)
        if cost >= 0:
            best = OrderResidency(residences_of(problem, order, choices), cost, bound)
        if bound >= best.cost or width >= most_width:
            break
        width = min(width * _GROWTH, most_width)
    stopped_by = "" if bound >= best.cost else clock.stopped_by()
    return OrderResidency(best.residences, best.cost, min(bound, best.cost), states, stopped_by)


def residences_of(problem: MemoriesProblem, order: Sequence[int], choices: Sequence[int]) -> tuple[Residence, ...]:
    """The residences that the choices of the native search mean, which it lists by access: 1 in fast memory, 2 kept
    there until the next."""
    begun: dict[int, int] = {}
    residences: list[Residence] = []
    rest = iter(choices)
    accessed = {access.storage for accesses in problem.accesses for access in accesses}
    for index in sorted(accessed):
        if problem.storages[index].begins in (Whereabouts.EITHER, Whereabouts.FAST) and next(rest) & 2:
            begun[index] = 0
    for position, operator in enumerate(order):
        for access in problem.accesses[operator]:
            choice = next(rest)
            if choice & 1:
                start = begun.pop(access.storage, position)
                if choice & 2:
                    begun[access.storage] = start
                else:
                    residences.append(Residence(access.storage, start, position + 1, None))
    residences += [Residence(storage, start, len(order), None) for storage, start in begun.items()]
    return tuple(sorted(residences, key=lambda one: (one.start, one.storage)))
