"""LiteRT's own planner: what its CPU arena does with the tensors of a network when no delegate takes them.

Source: LiteRT, tflite/arena_planner.cc (the sequence of tensors) and tflite/simple_memory_arena.cc (the smallest gap).
Names: an allocation is a `Record`; sizes are rounded up to 64 bytes by the memory model `litert`.
Complexity: O(n² log n).
Deviations: sizes are rounded up before they are compared, where LiteRT rounds offsets only. It also places what kernels
    ask for in addition to the tensors (im2col buffers), which no graph tells: `runtimes.litert.measure` asks for the
    whole.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    begin, end = min((r.start for r in records), default=0), max((r.stop for r in records), default=0)

    def key(index: int) -> tuple[bool, int, int, int]:
        whole = records[index].start == begin and records[index].stop == end
        return (not whole, 0 if whole else -records[index].nbytes, 0 if whole else records[index].start, index)

    return place_in_order(records, sorted(range(len(records)), key=key), clock=clock)
