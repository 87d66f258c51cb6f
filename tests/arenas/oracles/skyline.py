"""The oracle of native/arenas/skyline.hpp: every placed record is looked at, for each record."""

from __future__ import annotations

from collections.abc import Sequence

from downset.memory.records import Record, align_up

__all__ = ["place_above"]


def place_above(records: Sequence[Record], sequence: Sequence[int], offsets: Sequence[int]) -> list[int]:
    """Those of the sequence at -1, in turn, at the end of the highest record that lives at the same time."""
    placed = list(offsets)
    for index in sequence:
        if placed[index] < 0:
            ends = (
                placed[other] + record.nbytes
                for other, record in enumerate(records)
                if placed[other] >= 0 and _meet(record, records[index])
            )
            placed[index] = align_up(max(ends, default=0), records[index].alignment)
    return placed


def _meet(one: Record, other: Record) -> bool:
    return any(low < stop and start < high for low, high in one.active() for start, stop in other.active())
