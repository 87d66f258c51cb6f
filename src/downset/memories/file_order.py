"""The order of the file, with the residency that costs least for it.

Source: ours; residency of a fixed order is the problem of local register allocation (Farach and Liberatore, "On local
    register allocation", 1998), NP-hard where stores count.
Names: a *position* is a place in the order.
Complexity: exponential in the storages alive at once; linear in the order for a given width of the search.
Deviations: none.
"""

from __future__ import annotations

from downset.budget import Clock
from downset.memories.found import MemoriesFound
from downset.memories.problem import MemoriesProblem
from downset.memories.residency import exact_residency

__all__ = ["file_order"]


def file_order(problem: MemoriesProblem, *, clock: Clock) -> MemoriesFound:
    """The file's order; its residency is least if the search ends within its limits."""
    return of_order(problem, tuple(range(len(problem.predecessors))), clock)


def of_order(problem: MemoriesProblem, order: tuple[int, ...], clock: Clock) -> MemoriesFound:
    """A given order with exact residency."""
    residency = exact_residency(problem, order, clock=clock)
    return MemoriesFound(
        order,
        residency.residences,
        residency.cost,
        residency.bound,
        states=residency.states,
        stopped_by=residency.stopped_by,
    )
