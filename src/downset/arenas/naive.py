"""No reuse: every record has bytes of its own. The upper end of every comparison."""

from __future__ import annotations

from collections.abc import Sequence

from downset.plans import Found
from downset.records import Record, align_up, breadth_bound

__all__ = ["naive"]


def naive(records: Sequence[Record], *, ties: str = "tflite", time_limit_s: float = 10.0) -> Found:
    """One after the other, above the pinned ones. O(n)."""
    del ties, time_limit_s
    cursor = max((r.offset + r.nbytes for r in records if r.offset is not None), default=0)
    offsets = []
    for record in records:
        if record.offset is not None:
            offsets.append(record.offset)
            continue
        cursor = align_up(cursor, record.alignment)
        offsets.append(cursor)
        cursor += record.nbytes
    return Found(tuple(offsets), breadth_bound(records))
