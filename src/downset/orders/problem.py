"""Checks an `OrderProblem` (see `downset.memory.liveness`) that a caller gives instead of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from downset.errors import UsageError
from downset.graph.core import LARGEST_BYTES
from downset.memory.liveness import OrderProblem, Storage
from downset.methods import is_whole
from downset.text import brief, of_pytorch

__all__ = ["check_problem"]

_AT_ONCE = 4096
"""Storages whose producers are followed through the predecessors in one pass: one bit of each operator's mask."""


def check_problem(problem: OrderProblem) -> None:
    """Raise UsageError that names the first law that a problem breaks.

    The laws: operators are in a topological order. Lists of operators are ascending and name operators that exist.
    Bytes are whole numbers from 0, and less than 2**60 in all. A storage without consumers is kept. Each consumer of a
    storage that has producers is one of them or waits for one of them, directly or through other operators; where there
    are several (parts of one result), one is enough. An operator takes over a storage only where it reads it, the
    storage is not kept, and the operator alone makes a storage of the same size, or of at least the bytes in
    `in_place_bytes`.

    O(operators + storages + their lists). Where consumers wait through other operators, O(predecessors) more for every
    4096 of their storages."""
    if not isinstance(problem, OrderProblem):
        given = type(problem).__name__
        raise UsageError(f"the problem is a {given}; give a Graph or an OrderProblem{of_pytorch(problem)}")
    for name in ("predecessors", "storages", "in_place", "in_place_bytes"):
        if not isinstance(getattr(problem, name), Sequence):
            raise UsageError(f"{name} of the problem is {brief(repr(getattr(problem, name)))}; give a tuple")
    count = len(problem.predecessors)
    for operator, before in enumerate(problem.predecessors):
        if not _ascending(before, operator):
            raise UsageError(
                f"operator {operator} has the predecessors {before!r}; give operators in a topological order, and list "
                "the predecessors of each ascending, each once"
            )
    _check_storages(problem, count)
    if not is_whole(problem.floor_bytes) or not 0 <= problem.floor_bytes < LARGEST_BYTES:
        raise UsageError(f"floor_bytes is {problem.floor_bytes!r}; give a whole number of bytes from 0 to below 2**60")
    _check_waits(problem)
    _check_in_place(problem, count)


def _check_storages(problem: OrderProblem, count: int) -> None:
    for index, storage in enumerate(problem.storages):
        if not isinstance(storage, Storage):
            raise UsageError(f"storage {index} is {brief(repr(storage))}; give a ds.Storage")
        if not is_whole(storage.nbytes) or storage.nbytes < 0:
            raise UsageError(f"storage {index} has {storage.nbytes!r} bytes; give a whole number from 0")
        for operators in (storage.producers, storage.consumers):
            if not _ascending(operators, count):
                raise UsageError(f"storage {index} names {operators!r}: list some of the {count} operators, ascending")
        if not storage.consumers and not storage.kept:
            raise UsageError(
                f"storage {index} has no consumers and is not kept; if it has no reader, list its producer"
            )
    if sum(storage.nbytes for storage in problem.storages) >= LARGEST_BYTES:
        raise UsageError(f"the storages add up to {LARGEST_BYTES} (2**60) bytes or more, which no search counts")


def _check_waits(problem: OrderProblem) -> None:
    """Raise UsageError for a consumer that neither is one of the producers nor waits for any of them."""
    waits_for = [frozenset(before) for before in problem.predecessors]
    indirect: list[tuple[int, list[int]]] = []
    for index, storage in enumerate(problem.storages):
        made_by = frozenset(storage.producers)
        later = [
            operator
            for operator in (storage.consumers if made_by else ())
            if operator not in made_by and made_by.isdisjoint(waits_for[operator])
        ]
        if later:
            indirect.append((index, later))
    for begin in range(0, len(indirect), _AT_ONCE):
        _follow(problem, indirect[begin : begin + _AT_ONCE])


def _follow(problem: OrderProblem, indirect: Sequence[tuple[int, Sequence[int]]]) -> None:
    """The same for storages and those of their consumers that list no producer among their predecessors: such a
    producer may still run before them, through other operators."""
    upstream = [0] * len(problem.predecessors)
    for place, (index, _) in enumerate(indirect):
        for operator in problem.storages[index].producers:
            upstream[operator] |= 1 << place
    for operator, before in enumerate(problem.predecessors):
        for earlier in before:
            upstream[operator] |= upstream[earlier]
    for place, (index, later) in enumerate(indirect):
        for operator in later:
            if not upstream[operator] >> place & 1:
                producers = problem.storages[index].producers
                makers = f"its producer {producers[0]}" if len(producers) == 1 else f"any of its producers {producers}"
                raise UsageError(
                    f"storage {index} is read by operator {operator}, which does not wait for {makers}; list a "
                    f"producer among the predecessors of operator {operator}"
                )


def _check_in_place(problem: OrderProblem, count: int) -> None:
    if problem.in_place and len(problem.in_place) != count:
        raise UsageError(f"in_place has {len(problem.in_place)} entries; give one for each of the {count} operators")
    listed = (*problem.in_place, *problem.in_place_bytes)
    if not all(isinstance(candidates, (tuple, Sequence)) and all(map(is_whole, candidates)) for candidates in listed):
        raise UsageError("in_place and in_place_bytes hold one tuple of whole numbers for each operator")
    if problem.in_place_bytes and [*map(len, problem.in_place_bytes)] != [*map(len, problem.in_place)]:
        raise UsageError("in_place_bytes does not have one number for each storage in in_place")
    products = {(tuple(storage.producers), storage.nbytes) for storage in problem.storages}
    most: dict[tuple[int, ...], int] = {}
    for producers, nbytes in products:
        most[producers] = max(most.get(producers, 0), nbytes)
    for operator, candidates in enumerate(problem.in_place):
        for position, candidate in enumerate(candidates):
            exists = 0 <= candidate < len(problem.storages)
            if exists and (operator not in problem.storages[candidate].consumers or problem.storages[candidate].kept):
                raise UsageError(
                    f"operator {operator} takes over storage {candidate}, which it does not read or which is kept; "
                    "in_place lists storages that the operator may be the last to read"
                )
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
    if not isinstance(operators, (tuple, Sequence)) or not all(map(is_whole, operators)):  # a tuple is seen at once
        return False
    return all(one < other for one, other in pairwise((-1, *operators, count)))
