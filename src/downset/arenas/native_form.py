"""How records cross into the native module: lists of 64-bit integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from downset.memory.records import Record

__all__ = ["flat", "small_enough"]

_MOST = 1 << 61


def small_enough(records: Sequence[Record]) -> bool:
    """Whether all sums of sizes and differences of steps fit into 64 bits; the Python twins take any integers."""
    room = sum(record.nbytes + record.alignment for record in records)
    pinned = max((record.offset or 0 for record in records), default=0)
    steps = max((max(abs(record.start), abs(record.stop)) for record in records), default=0)
    return room + pinned < _MOST and steps < _MOST


def flat(records: Sequence[Record]) -> tuple[Any, ...]:
    """Sizes, alignments, pinned offsets (-1: free), and active intervals, by record."""
    return (
        [record.nbytes for record in records],
        [record.alignment for record in records],
        [-1 if record.offset is None else record.offset for record in records],
        [record.active() for record in records],
    )
