"""The sequence of greedy by breadth, which both forms of the problem share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from downset.memory.bounds import breadths
from downset.memory.records import Record

__all__ = ["breadth_order"]


def breadth_order(
    records: Sequence[Record], *, later_step_first: bool = False, later_record_first: bool = False
) -> list[int]:
    """Records in the turn in which steps of decreasing breadth first name them; within a step by decreasing size.

    `later_step_first` and `later_record_first` break ties between steps of equal breadth and records of equal size
    towards the end instead of the beginning. O(n log n).
    """
    if not records:
        return []
    profile = breadths(records)
    number = {step: place for place, (step, _) in enumerate(profile)}
    toward = -1 if later_step_first else 1
    ranked = sorted(range(len(profile)), key=lambda place: (-profile[place][1], toward * place))
    turn = np.empty(len(profile), dtype=np.int64)
    turn[ranked] = np.arange(len(profile))
    # A record's turn is the earliest turn of its steps: minima over ranges, by tables of doubled width.
    tables = [turn]
    while 2 << (len(tables) - 1) <= len(turn):
        last, half = tables[-1], 1 << (len(tables) - 1)
        tables.append(np.minimum(last[:-half], last[half:]))

    def first_turn(record: Record) -> int:
        turns = []
        for low, high in record.active():
            begin, end = number[low], number[high]
            level = (end - begin).bit_length() - 1
            turns.append(min(int(tables[level][begin]), int(tables[level][end - (1 << level)])))
        return min(turns)

    later = -1 if later_record_first else 1
    return sorted(range(len(records)), key=lambda i: (first_turn(records[i]), -records[i].nbytes, later * i))
