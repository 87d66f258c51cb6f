"""The one placement step that the offset strategies share: where a record fits among those already placed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from downset import native
from downset.arenas.native_form import native_records
from downset.budget import Clock
from downset.memory.bounds import offsets_bound
from downset.memory.records import Record
from downset.results.plans import Found

__all__ = ["Gap", "completed", "height", "place_in_order"]


def height(records: Sequence[Record], offsets: Sequence[int]) -> int:
    """The end of the topmost record: the bytes that the arena takes."""
    return max((offset + record.nbytes for offset, record in zip(offsets, records, strict=True)), default=0)


Gap = Literal["smallest", "lowest", "unrounded"]


def place_in_order(records: Sequence[Record], sequence: Sequence[int], *, clock: Clock, gap: Gap = "smallest") -> Found:
    """Pinned records first, then the others in `sequence`, each in its smallest (or lowest) gap: the first among equal
    gaps, and above everything where none is large enough. `unrounded`: LiteRT's comparison of gaps, in which a later
    one wins if its room from an aligned offset on is less than that of the other from its first byte on. O(n²) at
    worst."""
    number = get_args(Gap).index(gap)
    offsets = native.compiled.place_in_order(native_records(records), sequence, number, clock.timed().left_s())
    return completed(records, offsets, clock)


def completed(records: Sequence[Record], offsets: Sequence[int], clock: Clock) -> Found:
    """The placement of a strategy. Records that it left at -1, because the time was over, lie in turn above everything
    that they meet. O(n log n)."""
    if min(offsets, default=0) >= 0:
        return Found(tuple(offsets), offsets_bound(records))
    left = _apart([index for index, offset in enumerate(offsets) if offset < 0], records)
    above = native.compiled.place_above(native_records(records), left, offsets)
    return Found(tuple(above), offsets_bound(records), stopped_by=clock.stopped_by() or "time")


def _apart(left: Sequence[int], records: Sequence[Record]) -> list[int]:
    """These records, those first that live longest, by powers of two. Of those that live about as long, each halves the
    gaps between the starts of those before it: in the order of their starts, each would lie above the last one."""
    by_length: dict[int, list[int]] = {}
    for index in sorted(left, key=lambda index: records[index].start):
        by_length.setdefault((records[index].stop - records[index].start).bit_length(), []).append(index)
    sequence: list[int] = []
    for length in sorted(by_length, reverse=True):
        alike, places = by_length[length], [0]
        while len(places) < len(alike):  # the numbers from 0, each by its bits in reverse
            places = [2 * place for place in places] + [2 * place + 1 for place in places]
        sequence += [alike[place] for place in places if place < len(alike)]
    return sequence
