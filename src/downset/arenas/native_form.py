"""How records cross into the native module: as 64-bit integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from downset import native
from downset.errors import UnsupportedError
from downset.memory.records import MOST, Record

if TYPE_CHECKING:
    from downset import _native

__all__ = ["check_range", "native_records"]


def check_range(records: Sequence[Record]) -> None:
    """Raise UnsupportedError where the sizes, alignments and offsets of the records add up to MOST or more, or their
    steps are not below it."""
    # Lists: there may be a million records, of which generators take three times as long.
    room = sum([record.nbytes for record in records]) + sum([record.alignment for record in records])
    pinned = max([record.offset for record in records if record.offset is not None], default=0)
    steps = max(
        max([record.stop for record in records], default=0), -min([record.start for record in records], default=0)
    )
    if max(room + pinned, steps) >= MOST:
        raise UnsupportedError(
            f"sizes, alignments and steps of {len(records):,} records together do not fit into 64 bits: {room:,} bytes "
            f"in all, steps up to {steps:,}; check their units"
        )


def native_records(records: Sequence[Record]) -> _native.Records:
    """The records for the native module, checked once. Raises UnsupportedError as `check_range` does."""
    check_range(records)
    return native.compiled.Records(
        nbytes=[record.nbytes for record in records],
        alignment=[record.alignment for record in records],
        pinned=[-1 if record.offset is None else record.offset for record in records],
        active=[record.active() for record in records],
    )
