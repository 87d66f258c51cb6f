"""The oracle of native/arenas/strip.hpp: every waiting record is looked at, for each segment. O(n²)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from downset.memory.records import Record, align_up

__all__ = ["fill_strip"]


def fill_strip(records: Sequence[Record]) -> tuple[int, ...]:
    """Place records by best fit into a strip; return the offset of each."""
    offsets = [-1 if record.offset is None else record.offset for record in records]
    pinned = [record for record in records if record.offset is not None]
    # Longest first, so that the first that fits is the one to take.
    waiting = sorted(
        (i for i, record in enumerate(records) if record.offset is None),
        key=lambda i: (records[i].start - records[i].stop, i),
    )
    if not waiting:
        return tuple(offsets)
    begin, end = min(records[i].start for i in waiting), max(records[i].stop for i in waiting)
    level, stop_of, start_of = {begin: 0}, {begin: end}, {end: begin}  # segments by where they begin; by where they end
    queue = [(0, begin)]
    while waiting:
        low, start = heapq.heappop(queue)
        if level.get(start) != low:
            continue  # merged or raised since
        stop = stop_of[start]
        chosen = next((i for i in waiting if records[i].start >= start and records[i].stop <= stop), None)
        if chosen is None:
            _raise(start, stop, level, stop_of, start_of, queue)
            continue
        waiting.remove(chosen)
        record = records[chosen]
        offsets[chosen] = _above(record, low, pinned)
        for left, right, reached in (
            (start, record.start, low),
            (record.start, record.stop, offsets[chosen] + record.nbytes),
            (record.stop, stop, low),
        ):
            if left < right:
                level[left], stop_of[left], start_of[right] = reached, right, left
                heapq.heappush(queue, (reached, left))
    return tuple(offsets)


def _raise(
    start: int,
    stop: int,
    level: dict[int, int],
    stop_of: dict[int, int],
    start_of: dict[int, int],
    queue: list[tuple[int, int]],
) -> None:
    """Nothing fits: lift the segment to its lower neighbour and join it with what is as high then."""
    sides = []
    if start in start_of:
        sides.append(level[start_of[start]])
    if stop in level:
        sides.append(level[stop])
    reached = min(sides)
    if start in start_of and level[start_of[start]] == reached:
        left = start_of.pop(start)
        del level[start], stop_of[start]
        start = left
    if stop in level and level[stop] == reached:
        right = stop_of.pop(stop)
        del level[stop], start_of[stop]
        stop = right
    level[start], stop_of[start], start_of[stop] = reached, stop, start
    heapq.heappush(queue, (reached, start))


def _above(record: Record, low: int, pinned: Sequence[Record]) -> int:
    """The lowest aligned offset from `low` on that is free of the pinned records that live at the same time."""
    offset = align_up(low, record.alignment)
    for pin in sorted(pinned, key=lambda pin: pin.offset or 0):
        assert pin.offset is not None
        if pin.start < record.stop and record.start < pin.stop and offset < pin.offset + pin.nbytes:
            if offset + record.nbytes <= pin.offset:
                break
            offset = align_up(pin.offset + pin.nbytes, record.alignment)
    return offset
