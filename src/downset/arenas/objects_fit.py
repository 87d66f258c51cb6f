"""The assignment step that the shared-object strategies share: which objects are free, and which of them to take."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from downset import native
from downset.arenas.native_form import native_records, small_enough
from downset.memory.records import Record
from downset.methods import EngineName, check_engine

__all__ = ["assign_in_order", "fits", "object_sizes", "occupy", "total_bytes"]

Interval = tuple[int, int]


def fits(busy: Sequence[Interval], pieces: Sequence[Interval]) -> bool:
    """Whether an object that is busy in these ascending intervals is free in all of `pieces`. O(log n) a piece.

    One interval tree an object in the paper; a sorted list serves, as the intervals of an object never overlap."""
    for low, high in pieces:
        position = bisect_left(busy, (high, high))  # intervals that begin before `high` end before `position`
        if position and busy[position - 1][1] > low:
            return False
    return True


def occupy(busy: list[Interval], pieces: Sequence[Interval]) -> None:
    for piece in pieces:
        insort(busy, piece)


def object_sizes(records: Sequence[Record], object_of: Sequence[int]) -> list[int]:
    """Bytes of each object: its largest record's."""
    sizes = [0] * (max(object_of, default=-1) + 1)
    for held, record in zip(object_of, records, strict=True):
        sizes[held] = max(sizes[held], record.nbytes)
    return sizes


def total_bytes(records: Sequence[Record], object_of: Sequence[int]) -> int:
    return sum(object_sizes(records, object_of))


def assign_in_order(
    records: Sequence[Record], sequence: Sequence[int], *, first: bool = False, engine: EngineName = "native"
) -> tuple[int, ...]:
    """Each record in turn goes to a free object: the smallest that is large enough, else the largest, which grows, else
    a new one; or, with `first`, to the object made first. The lowest number among equals. O(objects · n log n).
    """
    check_engine(engine)
    if engine == "native" and small_enough(records):
        return tuple(native.compiled.assign_in_order(native_records(records), sequence, first))
    object_of = [-1] * len(records)
    busy: list[list[Interval]] = []
    sizes: list[int] = []
    for index in sequence:
        record = records[index]
        pieces = record.active()
        chosen = -1
        for held, taken in enumerate(busy):
            if chosen >= 0 and not _better(sizes[held], sizes[chosen], record.nbytes):
                continue
            if fits(taken, pieces):
                chosen = held
                if first:
                    break
        if chosen < 0:
            chosen = len(busy)
            busy.append([])
            sizes.append(0)
        occupy(busy[chosen], pieces)
        sizes[chosen] = max(sizes[chosen], record.nbytes)
        object_of[index] = chosen
    return tuple(object_of)


def _better(size: int, best: int, wanted: int) -> bool:
    """Lines 12-17 of the paper's algorithm 1."""
    if best < wanted:
        return size > best
    return wanted <= size < best
