"""The one placement step that the greedy strategies share: where a record fits among those already placed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from downset.records import Record, align_up

__all__ = ["lowest_gap", "place_in_order", "smallest_gap"]


def _rivals(record: Record, placed: Iterable[tuple[Record, int]]) -> list[tuple[int, int]]:
    """(offset, end) of the placed records that live at the same time, by offset."""
    pieces = record.active()
    return sorted(
        (offset, offset + other.nbytes)
        for other, offset in placed
        if any(low < stop and start < high for low, high in pieces for start, stop in other.active())
    )


def smallest_gap(record: Record, placed: Iterable[tuple[Record, int]]) -> int:
    """The offset in the smallest gap that takes the record, first among equals; above everything if none does."""
    best, best_room, cursor = -1, -1, 0
    for offset, end in _rivals(record, placed):
        at = align_up(cursor, record.alignment)
        room = offset - at
        if room >= record.nbytes and (best < 0 or room < best_room):
            best, best_room = at, room
        cursor = max(cursor, end)
    return best if best >= 0 else align_up(cursor, record.alignment)


def lowest_gap(record: Record, placed: Iterable[tuple[Record, int]]) -> int:
    """The lowest offset that takes the record."""
    cursor = 0
    for offset, end in _rivals(record, placed):
        at = align_up(cursor, record.alignment)
        if at + record.nbytes <= offset:
            return at
        cursor = max(cursor, end)
    return align_up(cursor, record.alignment)


def place_in_order(records: Sequence[Record], sequence: Sequence[int]) -> tuple[int, ...]:
    """Pinned records first, then the others in `sequence`, each in its smallest gap. O(n² log n)."""
    offsets = [-1] * len(records)
    placed: list[tuple[Record, int]] = []
    for index, record in enumerate(records):
        if record.offset is not None:
            offsets[index] = record.offset
            placed.append((record, record.offset))
    for index in sequence:
        if offsets[index] < 0:
            offsets[index] = smallest_gap(records[index], placed)
            placed.append((records[index], offsets[index]))
    return tuple(offsets)
