"""Greedy by size for shared objects: the largest tensor first, into an object that is free during its lifetime.

Source: "Efficient Memory Management for Deep Neural Net Inference", section 4.3, Algorithm 2.
Names: a tensor usage record is `Record`; an object's interval tree is a sorted list of busy intervals.
Complexity: O(k n log n) for k objects.
Deviations: the text takes the smallest suitable object, the figures of table 1 arise from the first one made, which is
    the largest: that is what this does. Equal sizes go in order of production.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset.arenas.objects_fit import assign_in_order
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.memory.records import Record
from downset.results.plans import Found

__all__ = ["objects_by_size"]


def objects_by_size(records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite") -> Found:
    """Assign records to objects, by decreasing size."""
    check_ties(ties)
    sequence = sorted(range(len(records)), key=lambda index: (-records[index].nbytes, index))
    return assign_in_order(records, sequence, clock=clock, first=True)
