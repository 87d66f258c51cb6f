"""Dynamic programming over all downsets: the oracle that tests compare every faster search with.

Source: "Ordering Chaos", section 3.1 without pruning; the recursion is over downsets instead of zero-indegree sets.
Names: a level holds every downset of one size with the least peak of all paths to it (M_i in the paper).
Complexity: O(downsets · V) time; memory for two levels and for one operator a downset, from which the order is read.
Deviations: past a limit it raises LimitReached instead of returning an order that may not be optimal.
"""

from __future__ import annotations

from downset.budget import Clock
from downset.errors import LimitReached
from downset.lattice import masks, ready
from downset.memory.liveness import OrderProblem, added_bytes, live_bytes
from downset.results.plans import Found

__all__ = ["exhaustive"]


def exhaustive(problem: OrderProblem, *, clock: Clock) -> Found:
    """An order of least peak, found by visiting every downset. Uses only the definitions in `liveness`; small graphs
    only.

    Raises LimitReached at the end of the clock, which counts downsets.
    """
    predecessors = masks(problem.predecessors)
    level: dict[int, int] = {0: problem.floor_bytes}
    came_by: dict[int, int] = {}
    for _ in predecessors:
        following: dict[int, int] = {}
        for downset, peak in level.items():
            over = clock.left_states() == 0
            clock.count(1)
            live = live_bytes(problem, downset)
            for operator in ready(predecessors, downset):
                # This takes O(storages): long compared with a look at the clock, and a downset has many operators.
                if over or clock.left_s() == 0:
                    raise LimitReached(f"exhaustive search stopped after {clock.states} downsets; use method 'optimal'")
                reached = max(peak, live + added_bytes(problem, downset, operator))
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
    return Found(tuple(reversed(steps)), value, True, clock.states + 1)
