"""Checks placements of bare records: independent of every planner, and it says why one is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from numbers import Integral

from downset.errors import InvalidPlan
from downset.memory.records import MOST, Overlap, Record, collisions
from downset.results.plans import Arena, Evidence, SharedObjects
from downset.text import brief

__all__ = ["check_objects", "check_placement", "verify_objects", "verify_placement"]


def check_placement(
    records: Sequence[Record],
    offsets: Sequence[int],
    *,
    capacity: int | None = None,
    overlaps: Sequence[Overlap] = (),
) -> None:
    """Raise InvalidPlan naming the first record that is out of place, or the first two, by step, that collide where
    none of `overlaps` lets them."""
    _check_numbers(records, offsets, "offsets")
    for record, offset in zip(records, offsets, strict=True):
        if offset < 0 or offset % record.alignment:
            raise InvalidPlan(f"record {record.id!r} lies at {offset}, not at a multiple of {record.alignment}")
        if offset >= MOST:
            raise InvalidPlan(f"record {record.id!r} lies at {offset}, which no arena holds: 64 bits are too few")
        if record.offset is not None and offset != record.offset:
            raise InvalidPlan(f"record {record.id!r} is pinned at {record.offset} but lies at {offset}")
        if capacity is not None and offset + record.nbytes > capacity:
            raise InvalidPlan(f"record {record.id!r} ends at {offset + record.nbytes}, above the capacity {capacity}")
    clashes = collisions(records, offsets, most=1) if not overlaps else _clashes(records, offsets, overlaps)
    for step, *pair in clashes:
        one, other = sorted(pair)
        low = max(offsets[one], offsets[other])
        high = min(offsets[one] + records[one].nbytes, offsets[other] + records[other].nbytes)
        raise InvalidPlan(
            f"records {records[one].id!r} and {records[other].id!r} overlap in bytes [{low}, {high}) from step {step}"
        )


def _clashes(
    records: Sequence[Record], offsets: Sequence[int], overlaps: Sequence[Overlap]
) -> Iterator[tuple[int, int, int]]:
    """(step, earlier record, later record): every two that hold the same bytes without an overlap that lets them. All
    pairs of records that live at one step are compared: with overlaps, comparing neighbours is not enough."""
    allowed = set()
    for overlap in overlaps:
        read, written = records[overlap.read], records[overlap.written]
        if read.stop != written.start + 1 or read.gaps or written.gaps:
            raise InvalidPlan(f"records {read.id!r} and {written.id!r} live together for more than one step")
        if overlap.allows(offsets):
            allowed.add(frozenset((overlap.read, overlap.written)))
    live: list[int] = []
    for index in sorted(range(len(records)), key=lambda index: records[index].start):
        record = records[index]
        live = [other for other in live if records[other].stop > record.start]
        for other in live:
            bytes_meet = (
                offsets[other] < offsets[index] + record.nbytes
                and offsets[index] < offsets[other] + records[other].nbytes
            )
            steps = [
                max(low, start)
                for low, high in record.active()
                for start, stop in records[other].active()
                if low < stop and start < high
            ]
            if bytes_meet and steps and frozenset((index, other)) not in allowed:
                yield min(steps), other, index
        live.append(index)


def _check_numbers(records: Sequence[Record], numbers: Sequence[int], what: str) -> None:
    """Raise InvalidPlan unless there is a whole number for each record."""
    if not isinstance(numbers, Sequence) or not all(
        type(number) is int or isinstance(number, Integral) for number in numbers
    ):
        raise InvalidPlan(f"the {what} are {brief(repr(numbers))}; give a whole number for each record")
    if len(numbers) != len(records):
        raise InvalidPlan(f"{len(numbers)} {what} for {len(records)} records")


def check_objects(records: Sequence[Record], object_of: Sequence[int]) -> None:
    """Raise InvalidPlan naming two records that share an object while both live."""
    _check_numbers(records, object_of, "objects")
    for record, number in zip(records, object_of, strict=True):
        if number < 0:
            raise InvalidPlan(f"record {record.id!r} has no object")
    uses = [(number, *piece, i) for i, number in enumerate(object_of) for piece in records[i].active()]
    uses.sort()
    # Of the uses of one object by ascending begin, two overlap if any two neighbours do.
    for (number, _, stop, one), (next_number, start, _, other) in pairwise(uses):
        if number == next_number and start < stop and one != other:
            first, second = sorted((one, other))
            raise InvalidPlan(
                f"records {records[first].id!r} and {records[second].id!r} share object {number} and both live at step "
                f"{start}"
            )


def verify_placement(arena: Arena) -> None:
    """The laws of an arena by itself: records are aligned, inside and apart, and its evidence is that of its offsets.
    Raises InvalidPlan naming the first one broken."""
    check_placement(arena.records, arena.offsets, capacity=arena.arena_bytes, overlaps=arena.overlaps)
    ends = (offset + record.nbytes for record, offset in zip(arena.records, arena.offsets, strict=True))
    _check_evidence(arena.evidence, max(ends, default=0), "arena")


def verify_objects(shared: SharedObjects) -> None:
    """The laws of shared objects: no two records of one object live at once, each object is as large as the largest of
    its records, and the evidence is that of their sizes. Raises InvalidPlan naming the first one broken."""
    check_objects(shared.records, shared.object_of)
    for record, number in zip(shared.records, shared.object_of, strict=True):
        if number >= len(shared.object_bytes) or record.nbytes > shared.object_bytes[number]:
            raise InvalidPlan(f"record {record.id!r} of {record.nbytes} bytes is larger than its object {number}")
    _check_evidence(shared.evidence, shared.total_bytes, "objects")


def _check_evidence(evidence: Evidence, actual: int, what: str) -> None:
    if evidence.value != actual:
        raise InvalidPlan(f"the {what} state {evidence.value} bytes, but take {actual}")
    if evidence.bound > evidence.value:
        raise InvalidPlan(f"the bound {evidence.bound} is above the value {evidence.value}")
    if evidence.proven and evidence.bound != evidence.value:
        raise InvalidPlan(
            f"the plan is called proven, but its value is {evidence.value} and its bound {evidence.bound}"
        )
