"""How problems cross into the native module: lists of integers."""

from __future__ import annotations

from typing import Any

from downset.lattice import bits
from downset.memory.liveness import OrderProblem

__all__ = ["flat"]


def flat(problem: OrderProblem) -> tuple[Any, ...]:
    """Predecessors, bytes, producers, consumers, kept, in-place candidates (lists by operator or storage), floor."""
    storages = problem.storages
    return (
        [list(bits(mask)) for mask in problem.predecessors],
        [storage.nbytes for storage in storages],
        [list(bits(storage.producers)) for storage in storages],
        [list(bits(storage.consumers)) for storage in storages],
        [storage.kept for storage in storages],
        [list(problem.candidates(operator)) for operator in range(len(problem.predecessors))],
        problem.floor_bytes,
    )
