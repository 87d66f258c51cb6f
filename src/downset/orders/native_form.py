"""How problems cross into the native module: as lists of integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downset import native
from downset.memory.liveness import OrderProblem

if TYPE_CHECKING:
    from downset import _native

__all__ = ["native_problem"]


def native_problem(problem: OrderProblem) -> _native.OrderProblem:
    """Checked once."""
    storages = problem.storages
    candidates = [problem.candidates(operator) for operator in range(len(problem.predecessors))]
    return native.compiled.OrderProblem(
        problem.predecessors,
        [storage.nbytes for storage in storages],
        [storage.producers for storage in storages],
        [storage.consumers for storage in storages],
        [storage.kept for storage in storages],
        [[index for index, _ in listed] for listed in candidates],
        [[nbytes for _, nbytes in listed] for listed in candidates],
        problem.floor_bytes,
    )
