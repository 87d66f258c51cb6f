"""The problem of ordering as callers give it bare: an `OrderProblem` (see `downset.memory.liveness`), checked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from downset.errors import UsageError
from downset.graph.core import LARGEST_BYTES
from downset.memory.liveness import OrderProblem

__all__ = ["check_problem"]


def check_problem(problem: OrderProblem) -> None:
    """Raise UsageError naming the first law that a bare problem breaks: operators in a topological order, ascending
    lists of operators that there are, whole bytes from 0 below 2**60 in all, in place no more than there is."""
    count = len(problem.predecessors)
    for operator, before in enumerate(problem.predecessors):
        if not _ascending(before, operator):
            raise UsageError(
                f"operator {operator} waits for {before!r}: give operators in a topological order, and list those that "
                "each waits for ascending, each once"
            )
    for index, storage in enumerate(problem.storages):
        if not isinstance(storage.nbytes, int) or storage.nbytes < 0:
            raise UsageError(f"storage {index} has {storage.nbytes!r} bytes; give a whole number from 0")
        for operators in (storage.producers, storage.consumers):
            if not _ascending(operators, count):
                raise UsageError(f"storage {index} names {operators!r}: list some of the {count} operators, ascending")
        if not storage.consumers and not storage.kept:
            raise UsageError(
                f"storage {index} has no consumers and is not kept: what nobody reads, its producer consumes"
            )
    if sum(storage.nbytes for storage in problem.storages) >= LARGEST_BYTES:
        raise UsageError(f"the storages add up to {LARGEST_BYTES} bytes or more")
    if problem.in_place and len(problem.in_place) != count:
        raise UsageError(f"in_place speaks of {len(problem.in_place)} operators, and there are {count}")
    sizes = [len(listed) for listed in problem.in_place]
    if problem.in_place_bytes and [len(listed) for listed in problem.in_place_bytes] != sizes:
        raise UsageError("in_place_bytes does not speak of the storages that in_place lists")
    if any(not 0 <= candidate < len(problem.storages) for listed in problem.in_place for candidate in listed):
        raise UsageError(f"in_place names a storage that is none of the {len(problem.storages)}")
    made = [0] * count
    for storage in problem.storages:
        for operator in storage.producers if len(storage.producers) == 1 else ():
            made[operator] = max(made[operator], storage.nbytes)
    for operator in range(count):
        for candidate, nbytes in problem.candidates(operator):
            if not 0 <= nbytes <= min(made[operator], problem.storages[candidate].nbytes):
                raise UsageError(f"operator {operator} cannot take over {nbytes} bytes of storage {candidate}")


def _ascending(operators: Sequence[int], count: int) -> bool:
    """Whether it lists operators below `count`, ascending, each once."""
    if not isinstance(operators, Sequence) or not all(isinstance(operator, int) for operator in operators):
        return False
    return all(one < other for one, other in pairwise((-1, *operators, count)))
