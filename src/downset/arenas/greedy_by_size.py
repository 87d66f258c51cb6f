"""Greedy by size: the largest tensor first, each into the smallest gap.

Source: "Efficient Memory Management for Deep Neural Net Inference", section 5.2, Algorithm 3.
Names: a tensor usage record is `Record`; a gap lies between records that live at the same time.
Complexity: that of `place_in_order`, O(n²) at worst.
Deviations: ties by order of production, which gives the paper's tables and LiteRT's tests alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset.arenas.gaps import place_in_order
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.memory.records import Record
from downset.results.plans import Found

__all__ = ["greedy_by_size"]


def greedy_by_size(records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite") -> Found:
    """Place records by decreasing size."""
    check_ties(ties)  # both sources break ties alike here
    sequence = sorted(range(len(records)), key=lambda index: (-records[index].nbytes, index))
    return place_in_order(records, sequence, clock=clock)
