"""Greedy in order: tensors as they are produced, each into the smallest gap. Prior work in the paper's comparison.

Source: Lee et al. 2019, as compared in "Efficient Memory Management for Deep Neural Net Inference", table 2, with the
    placement step of its algorithm 3.
Names: a tensor usage record is `Record`; order of production is order of `start`.
Complexity: that of `place_in_order`, O(n²) at worst.
Deviations: records that start at one step go in the given order.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset.arenas.gaps import place_in_order
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.memory.records import Record
from downset.results.plans import Found

__all__ = ["greedy_in_order"]


def greedy_in_order(records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite") -> Found:
    """Place records in order of production."""
    check_ties(ties)
    sequence = sorted(range(len(records)), key=lambda index: (records[index].start, index))
    return place_in_order(records, sequence, clock=clock)
