"""The problem of ordering as the native module takes it: lists of integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downset import native
from downset.memory.liveness import OrderProblem

if TYPE_CHECKING:
    from downset import _native

__all__ = ["native_problem"]


def native_problem(problem: OrderProblem) -> _native.OrderProblem:
    """The native module's copy of a problem. It is checked when it is made, and not again by the searches."""
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
