"""The one step that two memories and memory blocks share: records in turn, each at its lowest offset in one of several
arenas."""

from __future__ import annotations

from collections.abc import Sequence

from downset import native
from downset.arenas.native_form import native_records
from downset.memory.records import MOST, Record

__all__ = ["spill", "split"]

Spread = tuple[tuple[int, ...], tuple[int, ...]]
"""Arena and offset of each record."""


def spill(
    records: Sequence[Record],
    sequence: Sequence[int],
    capacities: Sequence[int],
    *,
    choices: Sequence[Sequence[int]] = (),
) -> Spread | None:
    """Each record into the first arena that has room for it; None if one finds none. `choices`: by record, the arenas
    that it may lie in, in turn; all of them if not given. O(arenas · n²)."""
    if not capacities:
        return None if records else ((), ())
    arena_of, offsets = native.compiled.spread(
        native_records(records), sequence, [min(capacity, MOST) for capacity in capacities], 0, choices
    )
    return (tuple(arena_of), tuple(offsets)) if len(arena_of) == len(records) else None


def split(records: Sequence[Record], sequence: Sequence[int], largest_bytes: int) -> Spread:
    """Spread records over arenas of at most `largest_bytes`, as many as it takes; each record goes where the total
    grows least, the first among equals. No record may be larger than an arena. O(arenas · n²)."""
    arena_of, offsets = native.compiled.spread(native_records(records), sequence, [], min(largest_bytes, MOST), [])
    return tuple(arena_of), tuple(offsets)
