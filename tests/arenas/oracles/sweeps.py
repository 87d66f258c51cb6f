"""The oracle of native/memory/sweeps.hpp: the same sweeps over dictionaries, heaps and sorted lists."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from downset.memory.records import Record, align_up

__all__ = ["breadths", "collisions", "padded_breadth"]


def breadths(records: Sequence[Record]) -> list[tuple[int, int]]:
    """(step, bytes live from that step on) at every step where the sum changes, ascending."""
    changes: dict[int, int] = {}
    for record in records:
        for low, high in record.active():
            changes[low] = changes.get(low, 0) + record.nbytes
            changes[high] = changes.get(high, 0) - record.nbytes
    total, profile = 0, []
    for step in sorted(changes):
        total += changes[step]
        profile.append((step, total))
    return profile


def padded_breadth(records: Sequence[Record], unit: int) -> int:
    """The least end of records whose offsets are multiples of `unit`, by the steps alone."""
    events = []
    for index, record in enumerate(records):
        for low, high in record.active():
            events += [(low, 1, index), (high, 0, index)]
    events.sort()
    best = total = 0
    unused = [align_up(record.nbytes, unit) - record.nbytes for record in records]
    live: set[int] = set()
    largest: list[tuple[int, int]] = []  # (-unused, record) of all live records and of some that are no longer live
    for _, comes, index in events:
        total += (records[index].nbytes + unused[index]) * (1 if comes else -1)
        if not comes:
            live.discard(index)
            continue
        live.add(index)
        heappush(largest, (-unused[index], index))
        while largest[0][1] not in live:
            heappop(largest)
        best = max(best, total + largest[0][0])
    return best


def collisions(records: Sequence[Record], offsets: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(step, one record, another): the step at which the second record becomes live on bytes that the first holds.

    They come in the order of the steps, at least one for every record that becomes live on bytes in use. O(n log n)
    comparisons: live records that do not collide are sorted by offset, so a new one is compared with its neighbours.
    """
    events: list[tuple[int, int, int]] = []
    for index, record in enumerate(records):
        for low, high in record.active() if record.nbytes > 0 else ():
            events += [(low, 1, index), (high, 0, index)]
    events.sort()
    live: list[tuple[int, int]] = []  # (offset, record)
    apart = [True] * len(records)
    for step, comes, index in events:
        begin, end = offsets[index], offsets[index] + records[index].nbytes
        if not comes:
            if apart[index]:
                del live[bisect_left(live, (begin, index))]
            continue
        position = bisect_left(live, (begin, index))
        others = [live[position - 1][1]] if position else []
        others += [live[position][1]] if position < len(live) else []
        hit = [i for i in others if offsets[i] < end and begin < offsets[i] + records[i].nbytes]
        apart[index] = not hit
        if hit:
            yield step, hit[0], index
        else:
            insort(live, (begin, index))
