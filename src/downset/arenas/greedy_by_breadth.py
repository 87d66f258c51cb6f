"""Greedy by breadth: the operator with most bytes live first; its tensors, largest first, into the smallest gaps.

Source: "Efficient Memory Management for Deep Neural Net Inference", section 5.3.
Names: the breadth of an operator is the bytes live while it runs (`bounds.breadths`); its profile is what lives then.
Complexity: that of `place_in_order`, O(n²) at worst.
Deviations: ties="paper" takes the later of two operators of equal breadth, ties="tflite" the earlier; among tensors of
    equal size the earlier produced goes first in both.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset.arenas.breadth_order import breadth_order
from downset.arenas.gaps import place_in_order
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.memory.records import Record
from downset.results.plans import Found

__all__ = ["greedy_by_breadth"]


def greedy_by_breadth(records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite") -> Found:
    """Place records by decreasing breadth of the steps."""
    sequence = breadth_order(records, later_step_first=check_ties(ties) == "paper")
    return place_in_order(records, sequence, clock=clock)
