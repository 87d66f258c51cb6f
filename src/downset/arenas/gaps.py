"""The one placement step that the offset strategies share: where a record fits among those already placed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from downset import native
from downset.arenas.native_form import native_records, small_enough
from downset.memory.records import Record, align_up
from downset.methods import EngineName, check_engine

__all__ = ["height", "lowest_gap", "place_in_order"]

Interval = tuple[int, int]
Placed = tuple[tuple[Interval, ...], int, int]
"""Active intervals, offset, end."""


def height(records: Sequence[Record], offsets: Sequence[int]) -> int:
    """The end of the topmost record: the bytes that the arena takes."""
    return max((offset + record.nbytes for offset, record in zip(offsets, records, strict=True)), default=0)


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


def _smallest(record: Record, occupied: Iterable[Interval]) -> int:
    """The offset in the smallest gap that takes the record, first among equals; above everything if none does."""
    best, best_room, cursor = -1, -1, 0
    for offset, end in occupied:
        candidate = align_up(cursor, record.alignment)
        room = offset - candidate
        if room >= record.nbytes and (best < 0 or room < best_room):
            best, best_room = candidate, room
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


def place_in_order(
    records: Sequence[Record], sequence: Sequence[int], *, lowest: bool = False, engine: EngineName = "native"
) -> tuple[int, ...]:
    """Pinned records first, then the others in `sequence`, each in its smallest (or lowest) gap. O(n²)."""
    check_engine(engine)
    if engine == "native" and small_enough(records):
        return tuple(native.compiled.place_in_order(native_records(records), sequence, lowest))
    choose = _lowest if lowest else _smallest
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
