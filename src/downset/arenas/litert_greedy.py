"""LiteRT's own planner: what its CPU arena does with the tensors of a network when no delegate takes them.

Source: LiteRT, tflite/arena_planner.cc (the sequence of tensors) and tflite/simple_memory_arena.cc (the smallest gap).
Names: an allocation is a `Record`, its size is `exact_bytes`: only offsets are rounded up. Without it the size is
    `nbytes`.
Complexity: O(n² log n).
Deviations: of equal size and start, as the parts of a split are, the first record comes first. LiteRT leaves their
    sequence to std::sort; the records of a graph are in that sequence (`memory.litert_sequence`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from downset.arenas.gaps import place_in_order
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.memory.records import Record
from downset.results.plans import Found

__all__ = ["litert_greedy"]


def litert_greedy(records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite") -> Found:
    """Place records that live from the first step to the end, then the others by decreasing size, each into the
    smallest gap; ties by first use."""
    check_ties(ties)
    records = [replace(one, nbytes=one.nbytes if one.exact_bytes is None else one.exact_bytes) for one in records]
    begin, end = min((r.start for r in records), default=0), max((r.stop for r in records), default=0)

    def key(index: int) -> tuple[bool, int, int, int]:
        whole = records[index].start == begin and records[index].stop == end
        return (not whole, 0 if whole else -records[index].nbytes, 0 if whole else records[index].start, index)

    return place_in_order(records, sorted(range(len(records)), key=key), clock=clock, gap="unrounded")
