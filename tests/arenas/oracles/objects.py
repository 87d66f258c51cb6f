"""The oracle of native/objects/assign.hpp: every object is looked at, for each record."""

from __future__ import annotations

from collections.abc import Sequence

from downset.memory.records import Record

__all__ = ["assign_in_order"]

Interval = tuple[int, int]


def assign_in_order(records: Sequence[Record], sequence: Sequence[int], *, first: bool = False) -> tuple[int, ...]:
    """Each record in turn goes to a free object: the smallest that is large enough, else the largest, which grows, else
    a new one; or, with `first`, to the object made first. The lowest number among equals. O(n²)."""
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
            if _fits(taken, pieces):
                chosen = held
                if first:
                    break
        if chosen < 0:
            chosen = len(busy)
            busy.append([])
            sizes.append(0)
        busy[chosen] += pieces
        sizes[chosen] = max(sizes[chosen], record.nbytes)
        object_of[index] = chosen
    return tuple(object_of)


def _fits(busy: Sequence[Interval], pieces: Sequence[Interval]) -> bool:
    """Whether an object that is busy in these intervals is free in all of `pieces`."""
    return not any(start < high and low < stop for low, high in pieces for start, stop in busy)


def _better(size: int, best: int, wanted: int) -> bool:
    """Lines 12-17 of the paper's algorithm 1."""
    if best < wanted:
        return size > best
    return wanted <= size < best
