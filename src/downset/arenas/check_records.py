"""Checks placements of bare records: independent of every planner, and it says why one is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from downset.errors import InvalidPlan
from downset.memory.records import Record, collisions
from downset.plans import Arena, Evidence, SharedObjects

__all__ = ["check_objects", "check_placement", "verify_objects", "verify_placement"]


def check_placement(records: Sequence[Record], offsets: Sequence[int], *, capacity: int | None = None) -> None:
    """Raise InvalidPlan naming the first record that is out of place, or the first two, by step, that collide."""
    if len(offsets) != len(records):
        raise InvalidPlan(f"{len(offsets)} offsets for {len(records)} records")
    for record, offset in zip(records, offsets, strict=True):
        if offset < 0 or offset % record.alignment:
            raise InvalidPlan(f"record {record.id!r} lies at {offset}, not at a multiple of {record.alignment}")
        if record.offset is not None and offset != record.offset:
            raise InvalidPlan(f"record {record.id!r} is pinned at {record.offset} but lies at {offset}")
        if capacity is not None and offset + record.nbytes > capacity:
            raise InvalidPlan(f"record {record.id!r} ends at {offset + record.nbytes}, above the capacity {capacity}")
    for step, *pair in collisions(records, offsets):
        one, other = sorted(pair)
        low = max(offsets[one], offsets[other])
        high = min(offsets[one] + records[one].nbytes, offsets[other] + records[other].nbytes)
        raise InvalidPlan(
            f"records {records[one].id!r} and {records[other].id!r} overlap in bytes [{low}, {high}) from step {step}"
        )


def check_objects(records: Sequence[Record], object_of: Sequence[int]) -> None:
    """Raise InvalidPlan naming two records that share an object while both live."""
    if len(object_of) != len(records):
        raise InvalidPlan(f"{len(object_of)} objects for {len(records)} records")
    for record, held in zip(records, object_of, strict=True):
        if held < 0:
            raise InvalidPlan(f"record {record.id!r} has no object")
    uses = [(held, *piece, i) for i, held in enumerate(object_of) for piece in records[i].active()]
    uses.sort()
    # Of the uses of one object by ascending begin, two overlap if any two neighbours do.
    for (held, _, stop, one), (next_held, start, _, other) in pairwise(uses):
        if held == next_held and start < stop and one != other:
            first, second = sorted((one, other))
            raise InvalidPlan(
                f"records {records[first].id!r} and {records[second].id!r} share object {held} and both live at step "
                f"{start}"
            )


def verify_placement(arena: Arena) -> None:
    """The laws of an arena by itself: records are aligned, inside and apart, and its evidence is that of its offsets.
    Raises InvalidPlan naming the first one broken."""
    check_placement(arena.records, arena.offsets, capacity=arena.arena_bytes)
    ends = (offset + record.nbytes for record, offset in zip(arena.records, arena.offsets, strict=True))
    _check_evidence(arena.evidence, max(ends, default=0), "arena")


def verify_objects(shared: SharedObjects) -> None:
    """The laws of shared objects: no two records of one object live at once, each object is as large as the largest of
    its records, and the evidence is that of their sizes. Raises InvalidPlan naming the first one broken."""
    check_objects(shared.records, shared.object_of)
    for record, held in zip(shared.records, shared.object_of, strict=True):
        if held >= len(shared.object_bytes) or record.nbytes > shared.object_bytes[held]:
            raise InvalidPlan(f"record {record.id!r} of {record.nbytes} bytes is larger than its object {held}")
    _check_evidence(shared.evidence, shared.total_bytes, "objects")


def _check_evidence(evidence: Evidence, actual: int, what: str) -> None:
    if evidence.value != actual:
        raise InvalidPlan(f"the {what} state {evidence.value} bytes, but take {actual}")
    if evidence.bound > evidence.value:
        raise InvalidPlan(f"the bound {evidence.bound} is above the value {evidence.value}")
    if evidence.proven and evidence.bound != evidence.value:
        raise InvalidPlan(f"called proven with value {evidence.value} and bound {evidence.bound}")
