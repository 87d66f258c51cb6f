"""Depth-first topological order: finish a branch before starting the next.

Source: folklore; the order that converters from PyTorch and Keras tend to emit.
Names: a branch is the operators that became ready last.
Complexity: O(V + E).
Deviations: none; among operators that became ready together the lowest index goes first.
"""

from __future__ import annotations

from downset.lattice import successor_lists
from downset.memory.liveness import OrderProblem
from downset.results.plans import Found

__all__ = ["dfs"]


def dfs(problem: OrderProblem) -> Found:
    """The order that always runs the operator that became ready last."""
    after = successor_lists(problem.predecessors)
    missing = [len(before) for before in problem.predecessors]
    stack = [operator for operator, count in enumerate(missing) if count == 0][::-1]
    steps = []
    while stack:
        operator = stack.pop()
        steps.append(operator)
        opened = []
        for later in after[operator]:
            missing[later] -= 1
            if missing[later] == 0:
                opened.append(later)
        stack += reversed(opened)
    return Found(tuple(steps), problem.floor_bytes)
