"""Equality: an object is reused only by tensors of exactly its size. What engines with typed textures start from.

Source: LiteRT's memory management for GPUs, strategy EQUALITY; the memory-management paper does not list it.
Names: none.
Complexity: O(n log n).
Deviations: of several free objects the one freed last is taken, of those freed at one step the highest number. As
    offsets: the objects one after the other, pinned records apart.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from downset.arenas.from_objects import stacked
from downset.arenas.ties import TiesName, check_ties
from downset.memory.bounds import objects_bound, offsets_bound
from downset.memory.records import Record
from downset.results.plans import Found

__all__ = ["equality", "equality_objects"]


def equality_objects(records: Sequence[Record], *, ties: TiesName = "tflite") -> Found:
    """Share an object among records of its size only."""
    check_ties(ties)
    return Found(_assign(records), objects_bound(records))


def equality(records: Sequence[Record], *, ties: TiesName = "tflite") -> Found:
    """Place the objects of `equality_objects` one after another."""
    check_ties(ties)
    return Found(stacked(records, _assign), offsets_bound(records))


def _assign(records: Sequence[Record]) -> tuple[int, ...]:
    object_of = [-1] * len(records)
    in_use: list[tuple[int, int, int]] = []  # (stop, object, size)
    free: dict[int, list[int]] = {}
    count = 0
    for index in sorted(range(len(records)), key=lambda i: (records[i].start, i)):
        record = records[index]
        while in_use and in_use[0][0] <= record.start:
            _, number, size = heapq.heappop(in_use)
            free.setdefault(size, []).append(number)
        if free.get(record.nbytes):
            chosen = free[record.nbytes].pop()
        else:
            chosen, count = count, count + 1
        object_of[index] = chosen
        heapq.heappush(in_use, (record.stop, chosen, record.nbytes))
    return tuple(object_of)
