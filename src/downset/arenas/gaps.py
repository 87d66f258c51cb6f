"""The one placement step that the offset strategies share: where a record fits among those already placed."""

from __future__ import annotations

from collections.abc import Sequence

from downset import native
from downset.arenas.native_form import native_records
from downset.memory.records import Record

__all__ = ["height", "place_in_order"]


def height(records: Sequence[Record], offsets: Sequence[int]) -> int:
    """The end of the topmost record: the bytes that the arena takes."""
    return max((offset + record.nbytes for offset, record in zip(offsets, records, strict=True)), default=0)


def place_in_order(records: Sequence[Record], sequence: Sequence[int], *, lowest: bool = False) -> tuple[int, ...]:
    """Pinned records first, then the others in `sequence`, each in its smallest (or lowest) gap: the first among equal
    gaps, and above everything where none is large enough. O(n²) at worst."""
    return tuple(native.compiled.place_in_order(native_records(records), sequence, lowest))
