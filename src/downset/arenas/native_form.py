"""How records cross into the native module: as 64-bit integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from downset import native
from downset.errors import UnsupportedError
from downset.memory.records import Record

if TYPE_CHECKING:
    from downset import _native

__all__ = ["check_range", "native_records", "small_enough"]

_MOST = 1 << 61
_MOST_OF_ANY_SIZE = 100


def small_enough(records: Sequence[Record]) -> bool:
    """Whether all sums of sizes and differences of steps fit into 64 bits; the Python twins take any integers."""
    room = sum(record.nbytes + record.alignment for record in records)
    pinned = max((record.offset or 0 for record in records), default=0)
    steps = max((max(abs(record.start), abs(record.stop)) for record in records), default=0)
    return room + pinned < _MOST and steps < _MOST


def check_range(records: Sequence[Record]) -> None:
    """Raise UnsupportedError for many records whose sizes or steps together exceed 64 bits. The Python twins would take
    very long for them, and no memory is so large."""
    if len(records) > _MOST_OF_ANY_SIZE and not small_enough(records):
        raise UnsupportedError(
            f"sizes, alignments and steps of {len(records):,} records together do not fit into 64 bits; at most "
            f"{_MOST_OF_ANY_SIZE} such records can be planned"
        )


def native_records(records: Sequence[Record], *, whole: bool = False) -> _native.Records:
    """The records for the native module, checked once; they are `small_enough`. `whole`: lifetimes without gaps."""
    return native.compiled.Records(
        nbytes=[record.nbytes for record in records],
        alignment=[record.alignment for record in records],
        pinned=[-1 if record.offset is None else record.offset for record in records],
        active=[((record.start, record.stop),) if whole else record.active() for record in records],
    )
