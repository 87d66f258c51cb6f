"""The oracles of native/objects/assign.hpp, where every object is looked at for each record, and of
native/objects/maxima.hpp, where every step is."""

from __future__ import annotations

from collections.abc import Sequence

from downset.memory.records import Record

__all__ = ["assign_in_order", "positional_maxima"]

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


def positional_maxima(records: Sequence[Record]) -> tuple[int, ...]:
    """The largest i-th size of all steps, for each i."""
    steps = {step for record in records for piece in record.active() for step in piece}
    profiles = [
        sorted((r.nbytes for r in records if any(low <= step < high for low, high in r.active())), reverse=True)
        for step in steps
    ]
    most = max(map(len, profiles), default=0)
    return tuple(max(profile[place] for profile in profiles if place < len(profile)) for place in range(most))


def _fits(busy: Sequence[Interval], pieces: Sequence[Interval]) -> bool:
    """Whether an object that is busy in these intervals is free in all of `pieces`."""
    return not any(start < high and low < stop for low, high in pieces for start, stop in busy)


def _better(size: int, best: int, wanted: int) -> bool:
    """Lines 12-17 of the paper's algorithm 1."""
    if best < wanted:
        return size > best
    return wanted <= size < best
