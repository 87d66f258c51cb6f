"""Lower bounds on arenas and shared objects, from records alone (memory-management paper, sections 3 to 5)."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import gcd

import numpy as np

from downset.errors import InfeasibleError
from downset.memory.records import Record, align_up

__all__ = ["breadth_bound", "breadths", "check_capacity", "objects_bound", "offsets_bound", "positional_maxima"]


def breadths(records: Sequence[Record]) -> list[tuple[int, int]]:
    """(step, bytes live from that step on) at every step where the sum changes, ascending. O(n log n)."""
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


def breadth_bound(records: Sequence[Record]) -> int:
    """The most bytes live at one step: no placement in one arena needs less (memory-management paper, section 5.1)."""
    return max((total for _, total in breadths(records)), default=0)


def offsets_bound(records: Sequence[Record]) -> int:
    """A lower bound of the end of every placement in one arena: the largest breadth, what shared alignments leave
    unused between records, and the end of the highest pinned record. Another record never lowers it, as long as there
    are few different alignments. O(n log n) for each number that divides alignments."""
    pinned = max((record.offset + record.nbytes for record in records if record.offset is not None), default=0)
    padded = (
        _padded_bound([record for record in records if record.alignment % unit == 0], unit)
        for unit in _units({record.alignment for record in records})
    )
    return max(breadth_bound(records), pinned, *padded)


_FEW_ALIGNMENTS = 16


def _units(alignments: set[int]) -> set[int]:
    """The common divisors to look at: of every set of alignments, or of all where there are many."""
    if len(alignments) > _FEW_ALIGNMENTS:
        return {gcd(*alignments)}
    units: set[int] = set()
    for alignment in alignments:
        units |= {alignment} | {gcd(alignment, unit) for unit in units}
    return units or {1}


def _padded_bound(records: Sequence[Record], unit: int) -> int:
    """Where all offsets are multiples of `unit`, all records that live at one step take up whole multiples of it,
    but for the topmost, whose last bytes are not needed: no more of them than the most that any one leaves unused."""
    if all(record.nbytes % unit == 0 for record in records):
        return 0  # the breadth says it all
    events = []
    for index, record in enumerate(records):
        for low, high in record.active():
            events += [(low, 1, index), (high, 0, index)]
    events.sort()
    best = total = 0
    unused = [align_up(record.nbytes, unit) - record.nbytes for record in records]
    live: set[int] = set()
    largest: list[tuple[int, int]] = []  # (-unused, record), of what lives and of some that did
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


def positional_maxima(records: Sequence[Record]) -> tuple[int, ...]:
    """The i-th is the largest i-th size, counted from the largest, of the records live at one step (memory-management
    paper, section 3). As long as the most records live at once. O(n · steps), a few array operations a record.
    """
    pieces = [(record.nbytes, record.active()) for record in records]
    steps = sorted({step for _, active in pieces for piece in active for step in piece})
    number = {step: index for index, step in enumerate(steps)}
    live = np.zeros(len(steps), dtype=np.int64)
    maxima: list[int] = []
    # In order of decreasing size, the record that is the first to make i live at once has the i-th maximum's size.
    for nbytes, active in sorted(pieces, key=lambda item: -item[0]):
        for low, high in active:
            stretch = live[number[low] : number[high]]
            stretch += 1
            if int(stretch.max()) > len(maxima):
                maxima.append(nbytes)
    return tuple(maxima)


def objects_bound(records: Sequence[Record]) -> int:
    """The sum of the positional maxima: no set of shared objects takes less (memory-management paper, section 4.1)."""
    return sum(positional_maxima(records))


def check_capacity(records: Sequence[Record], capacity_bytes: int) -> None:
    """Raise InfeasibleError, with the bound and where it binds, if no placement can end at or below the capacity."""
    pinned = max((r for r in records if r.offset is not None), key=lambda r: (r.offset or 0) + r.nbytes, default=None)
    if pinned is not None and pinned.offset is not None and pinned.offset + pinned.nbytes > capacity_bytes:
        end = pinned.offset + pinned.nbytes
        raise InfeasibleError(
            f"the pinned record {pinned.id!r} ends at {end}, above the capacity of {capacity_bytes}",
            figures={"limit_bytes": capacity_bytes, "least_bytes": end},
        )
    step, bound = max(breadths(records), key=lambda item: (item[1], -item[0]), default=(0, 0))
    if bound > capacity_bytes:
        live = [r for r in records if any(low <= step < high for low, high in r.active())]
        largest = ", ".join(repr(r.id) for r in sorted(live, key=lambda r: -r.nbytes)[:3])
        raise InfeasibleError(
            f"{bound} bytes are live at step {step} ({len(live)} records, the largest {largest}): "
            f"no placement fits into {capacity_bytes}; it takes {bound} at least",
            figures={"limit_bytes": capacity_bytes, "least_bytes": bound, "peak_step": step},
        )
