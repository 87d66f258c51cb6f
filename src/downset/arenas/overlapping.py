"""Offsets for records some of which may overlap: while one operator reads the one and writes the other, `written` may
begin `lag` bytes or more below `read`.

Source: ours; the form of the search is that of `local_search`.
Names: a *sequence* says in which turn records go to the lowest offset that is free; a pair of records excludes an open
    interval of the difference of their offsets. For two that live together it is (-size, other's size), and for an
    overlap (-size of what is read, lag).
Complexity: O(rounds · pairs that live together · log n).
Deviations: a chain of overlaps descends, each result below its input. So a reader goes before what it reads in the
    first sequences; moves of what stands at the top look for the rest. Deterministic where only the rounds are limited.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from downset.arenas.gaps import height
from downset.budget import Clock
from downset.memory.records import Overlap, Record, align_up
from downset.results.plans import Found, StoppedBy

__all__ = ["overlapping"]

_FEW_ROUNDS = 64
_PAIRS = 4_000_000
"""Pairs that all rounds look at together, at the most."""

Excluded = list[list[tuple[int, int, int]]]
"""By record: (other, low, high), an open interval of the difference of its offset and the other's."""


def overlapping(
    records: Sequence[Record],
    overlaps: Sequence[Overlap],
    *,
    bound: int,
    incumbent: Sequence[int],
    search: bool,
    clock: Clock,
) -> Found:
    """Offsets of least height found, never above those of the `incumbent`; proven where the height meets the `bound`.

    Without `search` a few rounds are tried. The clock counts rounds."""
    least, value = tuple(incumbent), height(records, incumbent)
    moment = clock.timed()
    excluded = _excluded(records, overlaps, moment)
    if excluded is None:
        return Found(least, min(bound, value), value <= bound, stopped_by=clock.stopped_by())
    pairs = sum(len(listed) for listed in excluded) + len(records)
    most = min(_PAIRS // max(pairs, 1), 200 * len(records)) if search else _FEW_ROUNDS
    rounds = min(most, clock.left_states())
    first, *others = _sequences(records)
    placed = [(first, _place(records, excluded, first))]
    placed += [(sequence, _place(records, excluded, sequence)) for sequence in others if moment.left_s() > 0]
    kept, at_kept = min(placed, key=lambda pair: height(records, pair[1]))
    kept_value = height(records, at_kept)
    if kept_value < value:
        least, value = tuple(at_kept), kept_value
    draw = random.Random(0)
    done = 0
    stopped_by: StoppedBy = ""
    while value > bound and done < rounds and len(records) > 1:
        if clock.left_s() == 0:
            stopped_by = "time"
            break
        done += 1
        clock.count(1)
        sequence = _moved(records, kept, at_kept, kept_value, draw)
        offsets = _place(records, excluded, sequence)
        height_bytes = height(records, offsets)
        if height_bytes <= kept_value:
            kept, kept_value, at_kept = sequence, height_bytes, offsets
        if height_bytes < value:
            least, value = tuple(offsets), height_bytes
    if not stopped_by and rounds < most and value > bound:
        stopped_by = "work"
    return Found(least, min(bound, value), value <= bound, done, stopped_by)


def _excluded(records: Sequence[Record], overlaps: Sequence[Overlap], clock: Clock) -> Excluded | None:
    """None where the time is up before all pairs are known."""
    lag = {(overlap.read, overlap.written): overlap.lag for overlap in overlaps}
    excluded: Excluded = [[] for _ in records]
    pieces = [record.active() for record in records]
    inward = sorted(range(len(records)), key=lambda index: records[index].start)
    live: list[int] = []
    for index in inward:
        if clock.left_s() == 0:
            return None
        live = [other for other in live if records[other].stop > records[index].start]
        for other in live:
            meet = any(low < stop and start < high for low, high in pieces[index] for start, stop in pieces[other])
            if meet:
                high = lag.get((index, other), records[other].nbytes)
                low = -lag.get((other, index), records[index].nbytes)
                excluded[index].append((other, low, high))
                excluded[other].append((index, -high, -low))
        live.append(index)
    return excluded


def _place(records: Sequence[Record], excluded: Excluded, sequence: Sequence[int]) -> list[int]:
    offsets = [-1 if record.offset is None else record.offset for record in records]
    for index in sequence:
        if records[index].offset is not None:
            continue
        barred = sorted(
            (offsets[other] + low, offsets[other] + high) for other, low, high in excluded[index] if offsets[other] >= 0
        )
        offset = 0
        for low, high in barred:
            if offset <= low:
                break
            if offset < high:
                offset = align_up(high, records[index].alignment)
        offsets[index] = offset
    return offsets


def _sequences(records: Sequence[Record]) -> list[list[int]]:
    everything = range(len(records))
    return [
        sorted(everything, key=lambda i: (-records[i].start, -records[i].nbytes)),
        sorted(everything, key=lambda i: (records[i].start, -records[i].nbytes)),
        sorted(everything, key=lambda i: (-records[i].nbytes, -records[i].start)),
        sorted(everything, key=lambda i: (records[i].start - records[i].stop, -records[i].start)),
    ]


def _moved(
    records: Sequence[Record], sequence: Sequence[int], offsets: Sequence[int], value: int, draw: random.Random
) -> list[int]:
    """The sequence with one record at another turn: mostly one that stands at the top, or one that lives with it."""
    moved = list(sequence)
    top = [index for index in moved if offsets[index] + records[index].nbytes == value]
    chosen = draw.choice(top)
    if draw.random() < 0.5:
        start, stop = records[chosen].start, records[chosen].stop
        chosen = draw.choice([i for i in moved if records[i].start < stop + 1 and start < records[i].stop + 1])
    moved.remove(chosen)
    moved.insert(draw.randrange(len(moved) + 1), chosen)
    return moved
