"""Greedy: always run the ready operator after which the fewest bytes are live. Ties: the smaller transient, then the
lower index.

Source: the rule behind most list schedulers for memory, for example PyTorch inductor's least-peak-memory-first.
Names: `left` is the live bytes after an operator.
Complexity: O(V · ready · storages touched).
Deviations: none.
"""

from __future__ import annotations

from downset.budget import Clock
from downset.lattice import bits
from downset.memory.liveness import OrderProblem
from downset.orders.search_space import SearchSpace
from downset.results.plans import Found

__all__ = ["greedy", "greedy_steps"]


def greedy(problem: OrderProblem, *, clock: Clock) -> Found:
    """The greedy order. Operators that are left when the time is up follow in the file's order."""
    space = SearchSpace(problem)
    steps = greedy_steps(space, clock)
    steps += bits(space.full & ~sum(1 << operator for operator in steps))
    return Found(tuple(steps), problem.floor_bytes)


def greedy_steps(space: SearchSpace, clock: Clock) -> list[int]:
    """The steps of greedy, in the space's numbers, until the time is up."""
    downset, live, ready = 0, space.start_bytes, space.start_ready
    steps: list[int] = []
    while ready and clock.left_s() > 0:
        chosen, best = -1, (0, 0)
        for operator in bits(ready):
            transient, left = space.step(downset, live, operator)
            if chosen < 0 or (left, transient) < best:
                chosen, best = operator, (left, transient)
        live = best[0]
        downset |= 1 << chosen
        ready = space.open(downset, ready, chosen)
        steps.append(chosen)
    return steps
