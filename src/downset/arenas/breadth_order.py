"""The sequence of greedy by breadth, which both forms of the problem share."""

from __future__ import annotations

from collections.abc import Sequence

from downset.memory.records import Record, live_pieces

__all__ = ["breadth_order"]


def breadth_order(
    records: Sequence[Record], *, later_step_first: bool = False, later_record_first: bool = False
) -> list[int]:
    """Records in the turn in which steps of decreasing breadth first name them; within a step by decreasing size.

    `later_step_first` and `later_record_first` break ties between steps of equal breadth and records of equal size
    towards the end instead of the beginning. O(n log n).
    """
    turns = live_pieces(records).breadth_turns(later_step_first)
    later = -1 if later_record_first else 1
    return sorted(range(len(records)), key=lambda i: (turns[i], -records[i].nbytes, later * i))
