"""The one step that banks and memory blocks share: records in turn, each at its lowest offset in one of several
arenas."""

from __future__ import annotations

from collections.abc import Sequence

from downset import native
from downset.arenas.gaps import lowest_gap
from downset.arenas.native_form import native_records, small_enough
from downset.memory.records import Record
from downset.methods import EngineName, check_engine

__all__ = ["spill", "split"]

Spread = tuple[tuple[int, ...], tuple[int, ...]]
"""Arena and offset of each record."""


def spill(
    records: Sequence[Record],
    sequence: Sequence[int],
    capacities: Sequence[int],
    *,
    choices: Sequence[Sequence[int]] | None = None,
    engine: EngineName = "native",
) -> Spread | None:
    """Each record into the first arena that has room for it; None if one finds none. `choices`: by record, the arenas
    that it may lie in, in turn; all of them if not given. O(arenas · n²)."""
    check_engine(engine)
    if choices is None and engine == "native" and small_enough(records):
        if not capacities:
            return None if records else ((), ())
        native = _native(records, sequence, [min(capacity, 1 << 61) for capacity in capacities], 0)
        return native if len(native[0]) == len(records) else None
    held: list[list[tuple[Record, int]]] = [[] for _ in capacities]
    arena_of, offsets = [0] * len(records), [0] * len(records)
    for index in sequence:
        record = records[index]
        for arena in range(len(capacities)) if choices is None else choices[index]:
            offset = lowest_gap(record, held[arena])
            if offset + record.nbytes <= capacities[arena]:
                held[arena].append((record, offset))
                arena_of[index], offsets[index] = arena, offset
                break
        else:
            return None
    return tuple(arena_of), tuple(offsets)


def split(
    records: Sequence[Record], sequence: Sequence[int], largest_bytes: int, *, engine: EngineName = "native"
) -> Spread:
    """Spread records over arenas of at most `largest_bytes`, as many as it takes; each record goes where the total
    grows least, the first among equals. No record may be larger than an arena. O(arenas · n²)."""
    check_engine(engine)
    if engine == "native" and small_enough(records):
        return _native(records, sequence, [], min(largest_bytes, 1 << 61))
    held: list[list[tuple[Record, int]]] = []
    sizes: list[int] = []
    arena_of, offsets = [0] * len(records), [0] * len(records)
    for index in sequence:
        record = records[index]
        choices = []
        for arena, inside in enumerate([*held, []]):
            offset = lowest_gap(record, inside)
            if offset + record.nbytes <= largest_bytes:
                grown = max(0, offset + record.nbytes - (sizes[arena] if arena < len(sizes) else 0))
                choices.append((grown, arena, offset))
        _, arena, offset = min(choices)
        if arena == len(held):
            held.append([])
            sizes.append(0)
        held[arena].append((record, offset))
        sizes[arena] = max(sizes[arena], offset + record.nbytes)
        arena_of[index], offsets[index] = arena, offset
    return tuple(arena_of), tuple(offsets)


def _native(records: Sequence[Record], sequence: Sequence[int], capacities: Sequence[int], block: int) -> Spread:
    arena_of, offsets = native.compiled.spread(native_records(records), sequence, capacities, block)
    return tuple(arena_of), tuple(offsets)
