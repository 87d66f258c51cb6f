"""Kahn's topological order, from which SERENITY takes its hard budget.

Source: A. B. Kahn, "Topological sorting of large networks" (1962); used in "Ordering Chaos", sections 2.3 and 3.2.
Names: the queue holds the zero-indegree set.
Complexity: O(V + E).
Deviations: none; the queue is first in, first out, and starts in order of index.
"""

from __future__ import annotations

from collections import deque

from downset.lattice import successor_lists
from downset.memory.liveness import OrderProblem
from downset.results.plans import Found

__all__ = ["kahn"]


def kahn(problem: OrderProblem) -> Found:
    """Breadth-first topological order."""
    after = successor_lists(problem.predecessors)
    missing = [len(before) for before in problem.predecessors]
    queue = deque(operator for operator, count in enumerate(missing) if count == 0)
    steps = []
    while queue:
        operator = queue.popleft()
        steps.append(operator)
        for later in after[operator]:
            missing[later] -= 1
            if missing[later] == 0:
                queue.append(later)
    return Found(tuple(steps), problem.floor_bytes)
