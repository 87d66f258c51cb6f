"""The region in which a runtime that follows no offsets has room for an order.

Source: ONNX Runtime's arena (bfc_arena.cc): a tensor gets the smallest free gap when it is made, of equal ones the one
    at the lowest address, and freed bytes join the gaps that they touch.
Names: a *region* is what the arena takes from the system at once.
Complexity: O(n · gaps) for a region.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from heapq import heappop, heappush

from downset.memory.records import Record

__all__ = ["REGIONS", "fits_region", "smallest_region"]

REGIONS = (1.1, 1.2, 1.35, 1.5)
"""Sizes of regions, as multiples of the arena, like those that `runtimes.ort.least_region` tries. Kernels hold
workspaces that no record counts, of up to a tenth of the arena in what was measured: smaller regions rank alike."""


def smallest_region(records: Sequence[Record], arena_bytes: int) -> int:
    """The position in `REGIONS` of the first size that has room for the records; their number if none has."""
    sizes = (int(factor * arena_bytes) for factor in REGIONS)
    return next((place for place, size in enumerate(sizes) if fits_region(records, size)), len(REGIONS))


def fits_region(records: Sequence[Record], region_bytes: int) -> bool:
    """Whether every record finds a gap in the region at the step at which it is made."""
    gaps, live = [(0, region_bytes)], list[tuple[int, int, int]]()
    for record in sorted((record for record in records if record.nbytes), key=lambda record: record.start):
        while live and live[0][0] <= record.start:
            _, begin, end = heappop(live)
            _release(gaps, begin, end)
        rooms = [(end - begin, begin, end) for begin, end in gaps if end - begin >= record.nbytes]
        if not rooms:
            return False
        _, begin, end = min(rooms)
        gaps[gaps.index((begin, end))] = (begin + record.nbytes, end)
        heappush(live, (record.stop, begin, begin + record.nbytes))
    return True


def _release(gaps: list[tuple[int, int]], begin: int, end: int) -> None:
    """Add a gap, joined with those that it touches. `gaps`: ascending; empty ones go."""
    touching = [gap for gap in gaps if gap[1] == begin or gap[0] == end]
    for gap in touching:
        gaps.remove(gap)
    low, high = min([begin, *(gap[0] for gap in touching)]), max([end, *(gap[1] for gap in touching)])
    if low < high:
        insort(gaps, (low, high))
