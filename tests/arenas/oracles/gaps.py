"""The oracle of `place_in_order` in native/arenas/placement.hpp: every placed record is looked at, for each record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from downset.arenas.gaps import Gap
from downset.memory.records import Record, align_up

__all__ = ["lowest_gap", "place_in_order"]

Interval = tuple[int, int]
Placed = tuple[tuple[Interval, ...], int, int]
"""Active intervals, offset, end."""


def _occupied(pieces: Sequence[Interval], placed: Iterable[Placed]) -> list[Interval]:
    """(offset, end) of the placed records that live at the same time, by offset."""
    if len(pieces) == 1:  # nearly always: no gaps
        ((low, high),) = pieces
        return sorted(
            (offset, end)
            for others, offset, end in placed
            if any(start < high and low < stop for start, stop in others)
        )
    return sorted(
        (offset, end)
        for others, offset, end in placed
        if any(low < stop and start < high for low, high in pieces for start, stop in others)
    )


def _smallest(record: Record, occupied: Iterable[Interval], *, unrounded: bool = False) -> int:
    """The offset in the smallest gap that takes the record, first among equals; above everything if none does. The best
    gap is `unrounded`: it counts from its first byte, the others from an aligned offset on."""
    best, best_room, cursor = -1, -1, 0
    for offset, end in occupied:
        candidate = align_up(cursor, record.alignment)
        room = offset - candidate
        if room >= record.nbytes and (best < 0 or room < best_room):
            best, best_room = candidate, offset - cursor if unrounded else room
        cursor = max(cursor, end)
    return best if best >= 0 else align_up(cursor, record.alignment)


def _lowest(record: Record, occupied: Iterable[Interval]) -> int:
    cursor = 0
    for offset, end in occupied:
        candidate = align_up(cursor, record.alignment)
        if candidate + record.nbytes <= offset:
            return candidate
        cursor = max(cursor, end)
    return align_up(cursor, record.alignment)


def lowest_gap(record: Record, placed: Iterable[tuple[Record, int]]) -> int:
    """The lowest offset that takes the record."""
    taken = ((other.active(), offset, offset + other.nbytes) for other, offset in placed)
    return _lowest(record, _occupied(record.active(), taken))


def place_in_order(records: Sequence[Record], sequence: Sequence[int], *, gap: Gap = "smallest") -> tuple[int, ...]:
    """Pinned records first, then the others in `sequence`, each in its smallest (or lowest) gap. O(n²)."""
    choose = {"smallest": _smallest, "lowest": _lowest, "unrounded": partial(_smallest, unrounded=True)}[gap]
    offsets = [-1] * len(records)
    placed: list[Placed] = []
    for index, record in enumerate(records):
        if record.offset is not None:
            offsets[index] = record.offset
            placed.append((record.active(), record.offset, record.offset + record.nbytes))
    for index in sequence:
        if offsets[index] < 0:
            record = records[index]
            pieces = record.active()
            offset = choose(record, _occupied(pieces, placed))
            offsets[index] = offset
            placed.append((pieces, offset, offset + record.nbytes))
    return tuple(offsets)
