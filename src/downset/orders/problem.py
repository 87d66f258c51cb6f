"""Checks an `OrderProblem` (see `downset.memory.liveness`) that a caller gives instead of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from downset.errors import UsageError
from downset.graph.core import LARGEST_BYTES
from downset.memory.liveness import OrderProblem

__all__ = ["check_problem"]


def check_problem(problem: OrderProblem) -> None:
    """Raise UsageError that names the first law that a problem breaks.

    The laws: operators are in a topological order. Lists of operators are ascending and name operators that exist.
    Bytes are whole numbers from 0, and less than 2**60 in all. A storage without consumers is kept. An operator takes
    over a storage only where it alone makes a storage of the same size, or of at least the bytes in `in_place_bytes`.
    O(operators + storages + their lists)."""
    count = len(problem.predecessors)
    for operator, before in enumerate(problem.predecessors):
        if not _ascending(before, operator):
            raise UsageError(
                f"operator {operator} has the predecessors {before!r}; give operators in a topological order, and list "
                "the predecessors of each ascending, each once"
            )
    for index, storage in enumerate(problem.storages):
        if not isinstance(storage.nbytes, int) or storage.nbytes < 0:
            raise UsageError(f"storage {index} has {storage.nbytes!r} bytes; give a whole number from 0")
        for operators in (storage.producers, storage.consumers):
            if not _ascending(operators, count):
                raise UsageError(f"storage {index} names {operators!r}: list some of the {count} operators, ascending")
        if not storage.consumers and not storage.kept:
            raise UsageError(
                f"storage {index} has no consumers and is not kept; if it has no reader, list its producer"
            )
    if sum(storage.nbytes for storage in problem.storages) >= LARGEST_BYTES:
        raise UsageError(f"the storages add up to {LARGEST_BYTES} bytes or more")
    if problem.in_place and len(problem.in_place) != count:
        raise UsageError(f"in_place has {len(problem.in_place)} entries; give one for each of the {count} operators")
    if problem.in_place_bytes and [*map(len, problem.in_place_bytes)] != [*map(len, problem.in_place)]:
        raise UsageError("in_place_bytes does not have one number for each storage in in_place")
    products = {(tuple(storage.producers), storage.nbytes) for storage in problem.storages}
    most: dict[tuple[int, ...], int] = {}
    for producers, nbytes in products:
        most[producers] = max(most.get(producers, 0), nbytes)
    for operator, candidates in enumerate(problem.in_place):
        for position, candidate in enumerate(candidates):
            exists = 0 <= candidate < len(problem.storages)
            if exists and problem.in_place_bytes:
                nbytes = problem.in_place_bytes[operator][position]
                if not 0 <= nbytes <= min(problem.storages[candidate].nbytes, most.get((operator,), 0)):
                    raise UsageError(f"operator {operator} cannot take over {nbytes!r} bytes of storage {candidate}")
            elif not exists or ((operator,), problem.storages[candidate].nbytes) not in products:
                raise UsageError(
                    f"operator {operator} makes no result of the size of storage {candidate} that could take its place"
                )


def _ascending(operators: Sequence[int], count: int) -> bool:
    """Whether the value is a list of operators below `count`, ascending, each once."""
    if not isinstance(operators, (tuple, Sequence)) or not all(isinstance(operator, int) for operator in operators):
        return False
    return all(one < other for one, other in pairwise((-1, *operators, count)))
