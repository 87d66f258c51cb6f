"""Naive placement: every record has bytes of its own. No method takes more.

Source: "Efficient Memory Management for Deep Neural Net Inference", tables 1 and 2, row "Naïve".
Names: none.
Complexity: O(n).
Deviations: pinned records keep their offsets; the others are stacked above the highest of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset.arenas.ties import TiesName, check_ties
from downset.memory.bounds import objects_bound, offsets_bound
from downset.memory.records import Record, align_up
from downset.results.plans import Found

__all__ = ["naive", "naive_objects"]


def naive(records: Sequence[Record], *, ties: TiesName = "tflite") -> Found:
    """Place the records one after the other, above the pinned ones."""
    check_ties(ties)
    cursor = max((r.offset + r.nbytes for r in records if r.offset is not None), default=0)
    offsets = []
    for record in records:
        if record.offset is not None:
            offsets.append(record.offset)
            continue
        cursor = align_up(cursor, record.alignment)
        offsets.append(cursor)
        cursor += record.nbytes
    return Found(tuple(offsets), offsets_bound(records))


def naive_objects(records: Sequence[Record], *, ties: TiesName = "tflite") -> Found:
    """Give every record an object of its own."""
    check_ties(ties)
    return Found(tuple(range(len(records))), objects_bound(records))
