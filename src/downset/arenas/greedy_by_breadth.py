"""Greedy by breadth: the operator with most bytes live first; its tensors, largest first, into the smallest gaps.

Source: "Efficient Memory Management for Deep Neural Net Inference", section 5.3.
Names: the breadth of an operator is the bytes live while it runs (`records.breadths`).
Complexity: O(n² log n).
Deviations: ties="paper" takes the later of two operators of equal breadth, ties="tflite" the earlier; among tensors of
    equal size the earlier produced goes first in both.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset.arenas.gaps import place_in_order
from downset.plans import Found
from downset.records import Record, breadth_bound, breadths

__all__ = ["greedy_by_breadth"]


def greedy_by_breadth(records: Sequence[Record], *, ties: str = "tflite", time_limit_s: float = 10.0) -> Found:
    """Offsets by decreasing breadth of the steps."""
    del time_limit_s
    later_first = -1 if ties == "paper" else 1
    profile = sorted(breadths(records), key=lambda item: (-item[1], later_first * item[0]))
    sequence: dict[int, None] = {}
    for step, _ in profile:
        alive = [i for i, record in enumerate(records) if record.start <= step < record.stop and i not in sequence]
        sequence.update(dict.fromkeys(sorted(alive, key=lambda index: (-records[index].nbytes, index))))
    return Found(place_in_order(records, list(sequence)), breadth_bound(records))
