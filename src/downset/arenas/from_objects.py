"""Shared objects laid one after the other: the conversion between the two forms of the problem.

Source: "Efficient Memory Management for Deep Neural Net Inference", section 5, second paragraph.
Names: a shared object becomes a memory block of the arena, as large as its largest record.
Complexity: that of the object strategies converted, O(k n log n) for k objects.
Deviations: converts the best of greedy by size, improved, by breadth and in order, by the size of the arena that comes
    out; the improved one up to 2,000 records, for it takes quadratic time. Blocks begin at the largest alignment of
    their records, above the pinned records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import lcm

from downset.arenas.gaps import height
from downset.arenas.objects_by_breadth import objects_by_breadth
from downset.arenas.objects_by_size import objects_by_size
from downset.arenas.objects_by_size_improved import objects_by_size_improved
from downset.arenas.objects_in_order import objects_in_order
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.memory.bounds import offsets_bound
from downset.memory.records import Record, align_up
from downset.results.plans import Found

__all__ = ["from_objects", "objects_to_offsets", "stacked"]

_MOST_IMPROVED = 2000


def from_objects(records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite") -> Found:
    """Offsets of the shared objects that take least when laid one after the other."""
    check_ties(ties)
    clock = clock.timed()

    def placed_by(planner: Callable[..., Found]) -> tuple[int, ...]:
        return stacked(records, lambda free: planner(free, clock=clock, ties=ties).solution)

    strategies = [objects_by_breadth, objects_in_order]
    if len(records) <= _MOST_IMPROVED:
        strategies.append(objects_by_size_improved)
    placements = [placed_by(objects_by_size)]
    placements += [placed_by(planner) for planner in strategies if clock.left_s() > 0]
    lowest = min(placements, key=lambda offsets: height(records, offsets))
    return Found(lowest, offsets_bound(records), stopped_by=clock.stopped_by())


def objects_to_offsets(
    object_of: Sequence[int], object_bytes: Sequence[int], *, alignments: Sequence[int] = (), base: int = 0
) -> tuple[int, ...]:
    """The offset of each record whose object is given, with the objects one after the other from `base` on."""
    starts, cursor = [], base
    for number, size in enumerate(object_bytes):
        cursor = align_up(cursor, alignments[number] if alignments else 1)
        starts.append(cursor)
        cursor += size
    return tuple(starts[number] for number in object_of)


def stacked(records: Sequence[Record], assign: Callable[[Sequence[Record]], Sequence[int]]) -> tuple[int, ...]:
    """Pinned records at their offsets, the others in objects above them."""
    base = max((r.offset + r.nbytes for r in records if r.offset is not None), default=0)
    free = [index for index, record in enumerate(records) if record.offset is None]
    object_of = assign([records[index] for index in free])
    count = max(object_of, default=-1) + 1
    sizes, alignments = [0] * count, [1] * count
    for index, number in zip(free, object_of, strict=True):
        sizes[number] = max(sizes[number], records[index].nbytes)
        alignments[number] = lcm(alignments[number], records[index].alignment)
    offsets = [record.offset or 0 for record in records]
    for index, offset in zip(free, objects_to_offsets(object_of, sizes, alignments=alignments, base=base), strict=True):
        offsets[index] = offset
    return tuple(offsets)
