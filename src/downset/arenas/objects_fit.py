"""The assignment step that the shared-object strategies share: which objects are free, and which of them to take."""

from __future__ import annotations

from collections.abc import Sequence

from downset import native
from downset.arenas.native_form import native_records
from downset.memory.records import Record

__all__ = ["assign_in_order", "object_sizes", "total_bytes"]


def object_sizes(records: Sequence[Record], object_of: Sequence[int]) -> list[int]:
    """Bytes of each object: its largest record's."""
    sizes = [0] * (max(object_of, default=-1) + 1)
    for number, record in zip(object_of, records, strict=True):
        sizes[number] = max(sizes[number], record.nbytes)
    return sizes


def total_bytes(records: Sequence[Record], object_of: Sequence[int]) -> int:
    return sum(object_sizes(records, object_of))


def assign_in_order(records: Sequence[Record], sequence: Sequence[int], *, first: bool = False) -> tuple[int, ...]:
    """Each record in turn goes to a free object: the smallest that is large enough, else the largest, which grows, else
    a new one (lines 12-17 of the paper's algorithm 1); or, with `first`, to the object made first. The lowest number
    among equals. O(objects · n log n)."""
    return tuple(native.compiled.assign_in_order(native_records(records), sequence, first))
