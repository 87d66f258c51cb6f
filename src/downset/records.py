"""Tensor usage records: what an arena planner sees of a network. The CSV files they travel in: records_csv.py.

The word is the memory-management paper's (section 3); here intervals are half-open, so the paper's [first, last] is
[first, last + 1). Steps are integers of any size; only their order matters.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import gcd
from numbers import Integral

import numpy as np

from downset.errors import InfeasibleError, UsageError

__all__ = [
    "Record",
    "align_up",
    "breadth_bound",
    "breadths",
    "check_capacity",
    "check_records",
    "collisions",
    "faults",
    "objects_bound",
    "offsets_bound",
    "positional_maxima",
]


_WHOLE = ("start", "stop", "nbytes", "alignment")


@dataclass(frozen=True, slots=True)
class Record:
    """A buffer of `nbytes` that must keep its contents from step `start` up to, not including, step `stop`.

    `offset` pins it; `gaps` are half-open intervals inside the lifetime in which its bytes may be used by others.
    """

    id: str
    start: int
    stop: int
    nbytes: int
    alignment: int = 1
    offset: int | None = None
    gaps: tuple[tuple[int, int], ...] = ()
    hint: int | None = None

    def active(self) -> tuple[tuple[int, int], ...]:
        """The lifetime without its gaps, as ascending half-open intervals."""
        pieces, cursor = [], self.start
        for low, high in sorted(self.gaps):
            if low > cursor:
                pieces.append((cursor, low))
            cursor = max(cursor, high)
        if cursor < self.stop:
            pieces.append((cursor, self.stop))
        return tuple(pieces)


def align_up(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


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
    """No placement in one arena ends lower: the largest breadth, what the alignments that all records share leave
    unused between them, and the end of the highest pinned record. O(n log n)."""
    pinned = max((record.offset + record.nbytes for record in records if record.offset is not None), default=0)
    return max(breadth_bound(records), _padded_bound(records), pinned)


def _padded_bound(records: Sequence[Record]) -> int:
    """Where all offsets are multiples of some number, all records that live at one step take up whole multiples of it,
    but for the topmost, whose last bytes are not needed: no more of them than the most that any one leaves unused."""
    unit = gcd(*(record.alignment for record in records))
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
    number = {step: at for at, step in enumerate(steps)}
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


def faults(records: Sequence[Record]) -> Iterator[tuple[int, str, str]]:
    """What is wrong with bare records, as (record, field, reason): in order of the records, then pins that collide, in
    order of the steps. O(n log n)."""
    seen: dict[str, int] = {}
    pinned: list[int] = []
    for index, record in enumerate(records):
        fractional = next((name for name in _WHOLE if not isinstance(getattr(record, name), Integral)), None)
        if fractional is not None:
            yield (
                index,
                fractional,
                f"{getattr(record, fractional)!r} as {fractional} of {record.id!r} is no whole number",
            )
            continue
        if record.id in seen:
            yield index, "id", f"id {record.id!r} is taken by record {seen[record.id]}"
        seen.setdefault(record.id, index)
        if record.start >= record.stop:
            yield index, "stop", f"the lifetime [{record.start}, {record.stop}) of {record.id!r} is empty or reversed"
            continue
        if record.nbytes <= 0:
            yield index, "nbytes", f"the size {record.nbytes} of {record.id!r} is not positive"
        if record.alignment <= 0:
            yield index, "alignment", f"the alignment {record.alignment} of {record.id!r} is not positive"
            continue
        for low, high in record.gaps:
            if not record.start <= low < high <= record.stop:
                yield index, "gaps", f"the gap [{low}, {high}) of {record.id!r} is not inside its lifetime"
        if not record.active():
            yield index, "gaps", f"the gaps of {record.id!r} leave nothing of its lifetime"
            continue
        if record.offset is None:
            continue
        if record.offset < 0 or record.offset % record.alignment:
            reason = f"{record.id!r} is pinned at {record.offset}, not at a multiple of {record.alignment}"
            yield index, "offset", reason
        if record.nbytes > 0:
            pinned.append(index)
    for _, one, other in collisions([records[i] for i in pinned], [records[i].offset or 0 for i in pinned]):
        first, second = sorted((pinned[one], pinned[other]))
        yield (
            second,
            "offset",
            f"{records[second].id!r} is pinned over {records[first].id!r}, which lives at the same time",
        )


def collisions(records: Sequence[Record], offsets: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(step, record, record that came to it) where two of these records hold the same bytes from that step on.

    In order of the steps, and at least one for every record that collides with what was there when it came. O(n log n)
    comparisons: what lives at one step is apart in bytes if neighbours are, so a newcomer is held to its neighbours.
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
        at = bisect_left(live, (begin, index))
        others = [live[at - 1][1]] if at else []
        others += [live[at][1]] if at < len(live) else []
        hit = [i for i in others if offsets[i] < end and begin < offsets[i] + records[i].nbytes]
        apart[index] = not hit
        if hit:
            yield step, hit[0], index
        else:
            insort(live, (begin, index))


def check_records(records: Sequence[Record]) -> None:
    """Raise UsageError naming the first record that cannot be planned, and why."""
    for index, _, reason in faults(records):
        raise UsageError(f"record {index}: {reason}")


def check_capacity(records: Sequence[Record], capacity_bytes: int) -> None:
    """Raise InfeasibleError, with the bound and where it binds, if no placement can end at or below the capacity."""
    pinned = max((r for r in records if r.offset is not None), key=lambda r: (r.offset or 0) + r.nbytes, default=None)
    if pinned is not None and pinned.offset is not None and pinned.offset + pinned.nbytes > capacity_bytes:
        end = pinned.offset + pinned.nbytes
        raise InfeasibleError(f"the pinned record {pinned.id!r} ends at {end}, above the capacity of {capacity_bytes}")
    step, bound = max(breadths(records), key=lambda item: (item[1], -item[0]), default=(0, 0))
    if bound > capacity_bytes:
        live = [r for r in records if any(low <= step < high for low, high in r.active())]
        largest = ", ".join(repr(r.id) for r in sorted(live, key=lambda r: -r.nbytes)[:3])
        raise InfeasibleError(
            f"{bound} bytes are live at step {step} ({len(live)} records, the largest {largest}): "
            f"no placement fits into {capacity_bytes}; it takes {bound} at least"
        )
