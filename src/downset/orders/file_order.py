"""The order of the operators in the file, which runtimes that keep the file's order execute."""

from __future__ import annotations

from downset.memory.liveness import OrderProblem
from downset.results.plans import Found

__all__ = ["file_order"]


def file_order(problem: OrderProblem) -> Found:
    """Operators by index. O(V)."""
    return Found(tuple(range(len(problem.predecessors))), problem.floor_bytes)
