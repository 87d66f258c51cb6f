"""Checks placements of bare records: independent of every planner, quadratic, and it says why one is wrong."""

from __future__ import annotations

from collections.abc import Sequence

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
    for index, one in enumerate(records):
        low, high = offsets[index], offsets[index] + one.nbytes
        for at in range(index):
            other = records[at]
            if low < offsets[at] + other.nbytes and offsets[at] < high:
                together = overlap(one, other)
                if together is not None:
                    raise InvalidPlan(
                        f"records {other.id!r} and {one.id!r} overlap in bytes "
                        f"[{max(low, offsets[at])}, {min(high, offsets[at] + other.nbytes)}) from step {together[0]}"
                    )


def check_objects(records: Sequence[Record], object_of: Sequence[int]) -> None:
    """Raise InvalidPlan naming two records that share an object while both live. O(n²)."""
    if len(object_of) != len(records):
        raise InvalidPlan(f"{len(object_of)} objects for {len(records)} records")
    for index, one in enumerate(records):
        if object_of[index] < 0:
            raise InvalidPlan(f"record {one.id!r} has no object")
        for at in range(index):
            if object_of[at] == object_of[index]:
                together = overlap(one, records[at])
                if together is not None:
                    raise InvalidPlan(
                        f"records {records[at].id!r} and {one.id!r} share object {object_of[at]} and both live at step "
                        f"{together[0]}"
                    )
