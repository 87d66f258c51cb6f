"""Dynamic programming over all downsets: the oracle that tests compare every faster search with.

Source: "Ordering Chaos", section 3.1 without pruning; the recursion is over downsets instead of zero-indegree sets.
Names: a level holds every downset of one size with the least peak of all paths to it (M_i in the paper).
Complexity: O(downsets · V) time; memory for two levels and for one operator a downset, from which the order is read.
Deviations: past a limit it raises LimitReached instead of returning an order that may not be optimal.
"""

from __future__ import annotations

import time

from downset.errors import LimitReached
from downset.lattice import masks, ready
from downset.memory.liveness import OrderProblem, transient_bytes
from downset.results.plans import Found

__all__ = ["exhaustive"]


def exhaustive(problem: OrderProblem, *, time_limit_s: float = 10.0, work_limit: int | None = None) -> Found:
    """An order of least peak, found by visiting every downset. Uses only the definitions in `liveness`; small graphs
    only.

    Raises LimitReached when the time is up, or after `work_limit` downsets.
    """
    deadline = time.perf_counter() + time_limit_s
    predecessors = masks(problem.predecessors)
    level: dict[int, int] = {0: problem.floor_bytes}
    came_by: dict[int, int] = {}
    states = 0
    for _ in predecessors:
        following: dict[int, int] = {}
        for downset, peak in level.items():
            states += 1
            over = work_limit is not None and states > work_limit
            for operator in ready(predecessors, downset):
                # One transient takes O(storages): long compared with a look at the clock, and a downset has many.
                if over or time.perf_counter() > deadline:
                    raise LimitReached(f"exhaustive search stopped after {states} downsets; use method 'optimal'")
                reached = max(peak, transient_bytes(problem, downset, operator))
                larger = downset | 1 << operator
                if larger not in following or reached < following[larger]:
                    following[larger] = reached
                    came_by[larger] = operator
        level = following
    downset = (1 << len(predecessors)) - 1
    value = level[downset]
    steps = []
    while downset:
        steps.append(came_by[downset])
        downset ^= 1 << came_by[downset]
    return Found(tuple(reversed(steps)), value, True, states + 1)
