"""The oracle of native/arenas/spread.hpp, by the lowest gap in each arena."""

from __future__ import annotations

from collections.abc import Sequence

from downset.memory.records import Record
from tests.arenas.oracles.gaps import lowest_gap

__all__ = ["spill", "split"]

Spread = tuple[tuple[int, ...], tuple[int, ...]]
"""Arena and offset of each record."""


def spill(
    records: Sequence[Record],
    sequence: Sequence[int],
    capacities: Sequence[int],
    *,
    choices: Sequence[Sequence[int]] | None = None,
) -> Spread | None:
    """Each record into the first arena of its choices that has room for it; None if one finds none."""
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


def split(records: Sequence[Record], sequence: Sequence[int], largest_bytes: int) -> Spread:
    """Arenas of at most `largest_bytes`, as many as it takes; each record goes where the total grows least, the first
    among equals."""
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
