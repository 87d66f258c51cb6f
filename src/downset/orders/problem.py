"""The problem of ordering as callers give it bare: an `OrderProblem` (see `downset.memory.liveness`), checked."""

from __future__ import annotations

from downset.errors import UsageError
from downset.graph.core import LARGEST_BYTES
from downset.memory.liveness import OrderProblem

__all__ = ["check_problem"]


def check_problem(problem: OrderProblem) -> None:
    """Raise UsageError naming the first law that a bare problem breaks: operators in a topological order, masks of
    operators that there are, whole bytes from 0 below 2**60 in all, in place at equal size only."""
    count = len(problem.predecessors)
    for operator, before in enumerate(problem.predecessors):
        if before < 0 or before >> operator:
            raise UsageError(
                f"operator {operator} waits for one that is not before it: give them in a topological order"
            )
    for index, storage in enumerate(problem.storages):
        if not isinstance(storage.nbytes, int) or storage.nbytes < 0:
            raise UsageError(f"storage {index} has {storage.nbytes!r} bytes; give a whole number from 0")
        if min(storage.producers, storage.consumers) < 0 or (storage.producers | storage.consumers) >> count:
            raise UsageError(f"storage {index} names an operator beyond the {count} there are")
        if not storage.consumers and not storage.kept:
            raise UsageError(
                f"storage {index} has no consumers and is not kept: what nobody reads, its producer consumes"
            )
    if sum(storage.nbytes for storage in problem.storages) >= LARGEST_BYTES:
        raise UsageError(f"the storages add up to {LARGEST_BYTES} bytes or more")
    if problem.in_place and len(problem.in_place) != count:
        raise UsageError(f"in_place speaks of {len(problem.in_place)} operators, and there are {count}")
    made = {(storage.producers, storage.nbytes) for storage in problem.storages}
    for operator, candidates in enumerate(problem.in_place):
        for candidate in candidates:
            known = 0 <= candidate < len(problem.storages)
            if not known or (1 << operator, problem.storages[candidate].nbytes) not in made:
                raise UsageError(
                    f"operator {operator} makes nothing of the size of storage {candidate}, to take its place"
                )
