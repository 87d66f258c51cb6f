"""The order of least peak, with the residency that costs least for it.

Source: "Ordering Chaos", section 4.2, which runs SERENITY's order on a memory that is too small for it.
Names: the *peak* is the most room that storages take at once, if all lie in fast memory.
Complexity: that of the search for the order, and of the exact residency.
Deviations: the paper replaces blocks by Belady's rule; here the residency is exact.
"""

from __future__ import annotations

from downset.budget import Clock
from downset.memories.file_order import of_order
from downset.memories.found import MemoriesFound
from downset.memories.problem import MemoriesProblem, Whereabouts
from downset.memory.liveness import OrderProblem, Storage
from downset.orders.optimal import optimal

__all__ = ["least_peak", "peak_problem"]

_ORDER_SHARE = 0.5
"""The share of the time and of the states for the search for the order."""


def least_peak(problem: MemoriesProblem, *, clock: Clock) -> MemoriesFound:
    """The order of least peak, or the best that a search found in half of the limits."""
    steps = optimal(peak_problem(problem), clock=clock.share(_ORDER_SHARE)).solution
    return of_order(problem, tuple(steps), clock)


def peak_problem(problem: MemoriesProblem) -> OrderProblem:
    """The problem of an order of least peak of all storages that operators make, and of the network's inputs."""
    producers: list[list[int]] = [[] for _ in problem.storages]
    consumers: list[list[int]] = [[] for _ in problem.storages]
    for operator, accesses in enumerate(problem.accesses):
        for access in accesses:
            (producers if access.writes else consumers)[access.storage].append(operator)
    storages = tuple(
        Storage(
            storage.room_bytes,
            tuple(producers[index]),
            tuple(sorted({*consumers[index], *producers[index]})) if consumers[index] else tuple(producers[index]),
            storage.ends != Whereabouts.NOWHERE,
        )
        for index, storage in enumerate(problem.storages)
        if storage.begins != Whereabouts.SLOW and (producers[index] or consumers[index])
    )
    return OrderProblem(problem.predecessors, storages)
