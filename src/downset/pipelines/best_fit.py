"""Places buffers one after another, each into the smallest free block that holds it.

Source: best fit with immediate coalescing (Knuth, The Art of Computer Programming, volume 1, section 2.5).
Names: block → bytes between buffers in use; top → the bytes below which all buffers lie.
Complexity: O(n log n) for n buffers, plus moving entries in sorted lists of free ranges.
Deviations: none.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

__all__ = ["best_fit"]


def best_fit(lives: Sequence[tuple[int, int, int]]) -> list[int]:
    """The offsets, in bytes, of buffers given as (start, stop, bytes). Each is in use in the half-open range of steps
    [start, stop)."""
    free = _FreeRanges()
    in_use: list[tuple[int, int, int]] = []
    offsets = [0] * len(lives)
    for place in sorted(range(len(lives)), key=lives.__getitem__):
        start, stop, nbytes = lives[place]
        while in_use and in_use[0][0] <= start:
            _, offset, size = heapq.heappop(in_use)
            free.give(offset, size)
        if nbytes:
            offsets[place] = free.take(nbytes)
            heapq.heappush(in_use, (stop, offsets[place], nbytes))
    return offsets


class _FreeRanges:
    """The free ranges below the top."""

    def __init__(self) -> None:
        self.top = 0
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._begin_of: dict[int, int] = {}  # by end of a range: its begin

    def take(self, nbytes: int) -> int:
        place = bisect_left(self._by_size, (nbytes, 0))
        if place < len(self._by_size):
            size, offset = self._by_size[place]
            self._remove(offset, size)
            if size > nbytes:
                self._add(offset + nbytes, size - nbytes)
            return offset
        offset = self._begin_of.get(self.top, self.top)  # a range that ends at the top grows
        if offset < self.top:
            self._remove(offset, self.top - offset)
        self.top = offset + nbytes
        return offset

    def give(self, offset: int, size: int) -> None:
        before = self._begin_of.get(offset)
        if before is not None:
            self._remove(before, offset - before)
            offset, size = before, size + offset - before
        after = self._size_at.get(offset + size)
        if after is not None:
            self._remove(offset + size, after)
            size += after
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        insort(self._by_size, (size, offset))
        self._size_at[offset], self._begin_of[offset + size] = size, offset

    def _remove(self, offset: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        del self._size_at[offset], self._begin_of[offset + size]
