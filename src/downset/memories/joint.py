"""Orders and residency together: a search over the sets of operators that ran and what fast memory holds.

Source: ours; the sets of operators are SERENITY's ("Ordering Chaos", section 3.1).
Names: a *state* is a set of operators that ran, and what fast memory holds.
Complexity: exponential in the width of the network, and in the storages alive at once; at most 64 operators and 64
    storages.
Deviations: begins with `searched`, whose plan is its incumbent and its answer where the limits come first or the
    network is too large. States from which the incumbent is not improved are left out: by the bound of every order
    for what remains, and where another state turns into them at no higher cost.
"""

from __future__ import annotations

from dataclasses import replace

from downset import native
from downset.budget import Clock
from downset.memories.file_order import of_order
from downset.memories.found import MemoriesFound
from downset.memories.problem import MemoriesProblem
from downset.memories.searched import searched

__all__ = ["joint"]

_MOST = 64
_SHARE, _ROUNDS = 0.5, 1
"""The share of the limits for `searched` where the network is small, and its rounds."""


def joint(problem: MemoriesProblem, *, clock: Clock, incumbent: tuple[int, ...] | None = None) -> MemoriesFound:
    """The least cost of all orders, proven if the search ends within its limits; else as `searched`."""
    if len(problem.predecessors) > _MOST or len(problem.storages) > _MOST:
        return searched(problem, clock=clock, incumbent=incumbent)
    first = searched(problem, clock=clock.share(_SHARE), incumbent=incumbent, rounds=_ROUNDS)
    if first.bound >= first.cost:
        return first
    seconds, most = clock.native(1 << 40)
    cost, order, bound, finished, visited = native.compiled.memories_joint(problem.compiled, first.cost, seconds, most)
    clock.count(visited)
    if cost < 0:
        bound = max(first.bound, min(bound, first.cost))
        stopped_by = "" if bound >= first.cost else clock.stopped_by()
        return replace(first, bound=bound, states=clock.states, stopped_by=stopped_by)
    best = of_order(problem, tuple(order), clock.timed())
    others = (first.order, *first.others)
    return replace(best, bound=bound if finished else first.bound, states=clock.states, others=others)
