"""Checks placements of bare records: independent of every planner, quadratic, and it says why one is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from downset.errors import InvalidPlan
from downset.records import Record

__all__ = ["check_objects", "check_placement", "overlap"]


def overlap(one: Record, other: Record) -> tuple[int, int] | None:
    """The first interval of steps in which both hold their bytes, or None."""
    for low, high in one.active():
        for other_low, other_high in other.active():
            if max(low, other_low) < min(high, other_high):
                return max(low, other_low), min(high, other_high)
    return None


def check_placement(records: Sequence[Record], offsets: Sequence[int], *, capacity: int | None = None) -> None:
    """Raise InvalidPlan naming the first record that is out of place, or the first two that collide. O(n²)."""
    if len(offsets) != len(records):
        raise InvalidPlan(f"{len(offsets)} offsets for {len(records)} records")
    for record, offset in zip(records, offsets, strict=True):
        if offset < 0 or offset % record.alignment:
            raise InvalidPlan(f"record {record.id!r} lies at {offset}, not at a multiple of {record.alignment}")
        if record.offset is not None and offset != record.offset:
            raise InvalidPlan(f"record {record.id!r} is pinned at {record.offset} but lies at {offset}")
        if capacity is not None and offset + record.nbytes > capacity:
            raise InvalidPlan(f"record {record.id!r} ends at {offset + record.nbytes}, above the capacity {capacity}")
    begins, ends = _integers(offsets), _integers([at + r.nbytes for at, r in zip(offsets, records, strict=True)])
    starts, stops = _integers([record.start for record in records]), _integers([record.stop for record in records])
    for index, one in enumerate(records):
        # All earlier records that meet it in bytes and in lifetime; the gaps of a lifetime may still keep them apart.
        meets = (begins[:index] < ends[index]) & (begins[index] < ends[:index])
        meets &= (starts[:index] < stops[index]) & (starts[index] < stops[:index])
        for at in map(int, np.flatnonzero(meets)):
            together = overlap(one, records[at])
            if together is not None:
                raise InvalidPlan(
                    f"records {records[at].id!r} and {one.id!r} overlap in bytes "
                    f"[{max(begins[index], begins[at])}, {min(ends[index], ends[at])}) from step {together[0]}"
                )


def _integers(values: Sequence[int]) -> Any:
    """An array of whole numbers of any size."""
    small = all(-(1 << 62) < value < 1 << 62 for value in values)
    return np.array(values, dtype=np.int64 if small else object)


def check_objects(records: Sequence[Record], object_of: Sequence[int]) -> None:
    """Raise InvalidPlan naming two records that share an object while both live. O(n²)."""
    if len(object_of) != len(records):
        raise InvalidPlan(f"{len(object_of)} objects for {len(records)} records")
    held, starts = _integers(object_of), _integers([record.start for record in records])
    stops = _integers([record.stop for record in records])
    for index, one in enumerate(records):
        if object_of[index] < 0:
            raise InvalidPlan(f"record {one.id!r} has no object")
        meets = (held[:index] == held[index]) & (starts[:index] < stops[index]) & (starts[index] < stops[:index])
        for at in map(int, np.flatnonzero(meets)):
            together = overlap(one, records[at])
            if together is not None:
                raise InvalidPlan(
                    f"records {records[at].id!r} and {one.id!r} share object {object_of[index]} and both live at step "
                    f"{together[0]}"
                )
