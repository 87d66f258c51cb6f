"""Tensor usage records: what an arena planner sees of a network, and the CSV files they travel in.

The word is the memory-management paper's (section 3); here intervals are half-open, so the paper's [first, last] is
[first, last + 1). Steps are integers of any size; only their order matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = [
    "Record",
    "align_up",
    "breadth_bound",
    "breadths",
    "objects_bound",
    "offsets_bound",
    "positional_maxima",
]


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
    """No placement in one arena ends lower: the largest breadth, and the end of the highest pinned record."""
    pinned = max((record.offset + record.nbytes for record in records if record.offset is not None), default=0)
    return max(breadth_bound(records), pinned)


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
