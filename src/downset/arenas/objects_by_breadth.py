"""Greedy by breadth for shared objects: the operator with most bytes live first, its tensors by decreasing size.

Source: "Efficient Memory Management for Deep Neural Net Inference", section 4.2, Algorithm 1, in the variant with an
    interval tree for each object.
Names: the breadth of an operator is the bytes live while it runs; an object's interval tree is a sorted list.
Complexity: O(k n log n) for k objects.
Deviations: ties="paper" takes the later operator of equal breadth and the later record of equal size, which gives table
    1; ties="tflite" the earlier of both, which gives LiteRT's tests.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset.arenas.breadth_order import breadth_order
from downset.arenas.objects_fit import assign_in_order
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.memory.records import Record
from downset.results.plans import Found

__all__ = ["objects_by_breadth"]


def objects_by_breadth(records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite") -> Found:
    """Assign records to objects, by decreasing breadth of the steps."""
    later = check_ties(ties) == "paper"
    sequence = breadth_order(records, later_step_first=later, later_record_first=later)
    return assign_in_order(records, sequence, clock=clock)
