"""TFLite Micro's own planner: how the runtime places tensors of a file without offsets.

Source: tflite-micro, GreedyMemoryPlanner: buffers by decreasing size, each at the lowest offset that is free during its
    lifetime.
Names: a buffer requirement is a `Record`; sizes are rounded up to 16 bytes by the memory model `tflm`.
Complexity: O(n² log n).
Deviations: none known; measured heads of files without scratch buffers are equal to the byte. Among equal sizes the
    runtime takes the later tensor of the file first; `rank` gives the tensor indices where the records came from a
    graph, else the record produced last goes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from downset.arenas.gaps import place_in_order
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.errors import UsageError
from downset.memory.records import Record
from downset.results.plans import Found
from downset.text import brief

__all__ = ["tflm_greedy"]


def tflm_greedy(
    records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite", rank: Sequence[int] | None = None
) -> Found:
    """Place records by decreasing size, each at the lowest free offset. `rank[i]`: the tensor index of record i."""
    check_ties(ties)
    if rank is not None:
        whole = isinstance(rank, Sequence) and all(isinstance(index, Integral) for index in rank)
        if not whole or len(rank) != len(records):
            raise UsageError(f"rank is {brief(repr(rank))}; give a whole number for each of the {len(records)} records")
    place = list(rank) if rank is not None else list(range(len(records)))
    sequence = sorted(range(len(records)), key=lambda index: (-records[index].nbytes, -place[index]))
    return place_in_order(records, sequence, clock=clock, gap="lowest")
