"""The assignment step that the shared-object strategies share: which objects are free, and which of them to take."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from downset import native
from downset.arenas.native_form import native_records
from downset.budget import Clock
from downset.memory.bounds import objects_bound
from downset.memory.records import Record
from downset.results.plans import Found

__all__ = ["assign_in_order", "completed", "object_sizes", "total_bytes"]


def object_sizes(records: Sequence[Record], object_of: Sequence[int]) -> list[int]:
    """Bytes of each object: its largest record's."""
    sizes = [0] * (max(object_of, default=-1) + 1)
    for number, record in zip(object_of, records, strict=True):
        sizes[number] = max(sizes[number], record.nbytes)
    return sizes


def total_bytes(records: Sequence[Record], object_of: Sequence[int]) -> int:
    return sum(object_sizes(records, object_of))


def assign_in_order(records: Sequence[Record], sequence: Sequence[int], *, clock: Clock, first: bool = False) -> Found:
    """Each record in turn goes to a free object: the smallest that is large enough, else the largest, which grows, else
    a new one (lines 12-17 of the paper's algorithm 1); or, with `first`, to the object made first. The lowest number
    among equals. O(objects · n log n)."""
    object_of = native.compiled.assign_in_order(native_records(records), sequence, first, clock.timed().left_s())
    return completed(records, object_of, clock)


def completed(records: Sequence[Record], object_of: Sequence[int], clock: Clock) -> Found:
    """The objects of a strategy. Records that it left at -1, because the time was over, share further objects: by
    ascending start, each the one that is free first. O(n log n)."""
    if min(object_of, default=0) >= 0:
        return Found(tuple(object_of), objects_bound(records))
    shared, count = list(object_of), max(object_of) + 1
    in_use: list[tuple[int, int]] = []  # (stop, object)
    left = [index for index, number in enumerate(object_of) if number < 0]
    for index in sorted(left, key=lambda index: records[index].start):
        if in_use and in_use[0][0] <= records[index].start:
            shared[index] = in_use[0][1]
            heapq.heapreplace(in_use, (records[index].stop, shared[index]))
        else:
            shared[index], count = count, count + 1
            heapq.heappush(in_use, (records[index].stop, shared[index]))
    return Found(tuple(shared), objects_bound(records), stopped_by=clock.stopped_by() or "time")
