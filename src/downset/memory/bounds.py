"""Lower bounds on arenas and shared objects, from records alone (memory-management paper, sections 3 to 5)."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from downset import native
from downset.errors import InfeasibleError
from downset.memory.records import Record, live_pieces

__all__ = ["breadth_bound", "breadths", "check_capacity", "objects_bound", "offsets_bound", "positional_maxima"]


def breadths(records: Sequence[Record]) -> list[tuple[int, int]]:
    """(step, bytes live from that step on) at every step where the sum changes, ascending. O(n log n)."""
    steps, totals = live_pieces(records).breadths()
    return list(zip(steps, totals, strict=True))


def breadth_bound(records: Sequence[Record]) -> int:
    """The most bytes live at one step: no placement in one arena needs less (memory-management paper, section 5.1)."""
    return live_pieces(records).padded_breadth(1)  # in multiples of one byte nothing stays unused


def offsets_bound(records: Sequence[Record]) -> int:
    """A lower bound on the end of every placement in one arena: the largest of the breadth bound, the end of the
    highest pinned record, and the breadth with the bytes that common divisors of alignments leave unused between
    records. With at most 16 different alignments, a further record never lowers it. O(n log n) for each divisor."""
    pinned = max((record.offset + record.nbytes for record in records if record.offset is not None), default=0)
    padded = (
        _padded_bound([record for record in records if record.alignment % unit == 0], unit)
        for unit in _units({record.alignment for record in records})
    )
    return max(breadth_bound(records), pinned, *padded)


_FEW_ALIGNMENTS = 16


def _units(alignments: set[int]) -> set[int]:
    """The common divisors of every set of alignments; where there are many alignments, only the one of all."""
    if len(alignments) > _FEW_ALIGNMENTS:
        return {gcd(*alignments)}
    units: set[int] = set()
    for alignment in alignments:
        units |= {alignment} | {gcd(alignment, unit) for unit in units}
    return units or {1}


def _padded_bound(records: Sequence[Record], unit: int) -> int:
    """A bound for records whose offsets are all multiples of `unit`. Of the records live at one step, each but the
    topmost takes a whole multiple of `unit`. The topmost may be the one that leaves the most bytes of it unused."""
    if all(record.nbytes % unit == 0 for record in records):
        return 0  # `breadth_bound` is the same then
    return live_pieces(records).padded_breadth(unit)


def positional_maxima(records: Sequence[Record]) -> tuple[int, ...]:
    """Sort the sizes of the records live at each step, largest first; the i-th maximum is the largest i-th size of all
    steps (memory-management paper, section 3). There are as many maxima as records live at one step at most.
    O(n log n)."""
    nbytes, active = [record.nbytes for record in records], [record.active() for record in records]
    plain = native.compiled.Records(nbytes, [1] * len(nbytes), [-1] * len(nbytes), active)
    return tuple(native.compiled.positional_maxima(plain))


def objects_bound(records: Sequence[Record]) -> int:
    """The sum of the positional maxima: no set of shared objects has fewer bytes (memory-management paper, section
    4.1)."""
    return sum(positional_maxima(records))


def check_capacity(records: Sequence[Record], capacity_bytes: int) -> None:
    """Raise InfeasibleError where the breadth or a pinned record proves that no placement fits into the capacity; it
    names the step or the record, and the bound, which counts what alignments leave unused."""
    pinned = max((r for r in records if r.offset is not None), key=lambda r: (r.offset or 0) + r.nbytes, default=None)
    if pinned is not None and pinned.offset is not None and pinned.offset + pinned.nbytes > capacity_bytes:
        end = pinned.offset + pinned.nbytes
        raise InfeasibleError(
            f"the pinned record {pinned.id!r} ends at {end}, above the capacity of {capacity_bytes}; "
            f"a placement takes {offsets_bound(records)} at least",
            figures={"limit_bytes": capacity_bytes, "least_bytes": offsets_bound(records)},
        )
    step, bound = max(breadths(records), key=lambda item: (item[1], -item[0]), default=(0, 0))
    if bound > capacity_bytes:
        live = [r for r in records if any(low <= step < high for low, high in r.active())]
        largest = ", ".join(repr(r.id) for r in sorted(live, key=lambda r: -r.nbytes)[:3])
        least = offsets_bound(records)
        aligned = "with the alignments " if least > bound else ""
        raise InfeasibleError(
            f"{bound} bytes are live at step {step} ({len(live)} records, the largest {largest}): "
            f"no placement fits into {capacity_bytes}; {aligned}it takes {least} at least",
            figures={"limit_bytes": capacity_bytes, "least_bytes": least, "peak_step": step},
        )
