"""Tensor usage records: the input of an arena planner. `formats.records_csv` reads and writes them as CSV files.

The term is that of the memory-management paper (section 3). Intervals here are half-open: the paper's [first, last] is
[first, last + 1). Steps may be far apart: only their order matters.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm
from numbers import Integral
from typing import TYPE_CHECKING

from downset import native
from downset.errors import UnsupportedError, UsageError
from downset.text import abridged, brief

if TYPE_CHECKING:
    from downset import _native

__all__ = [
    "MOST",
    "Overlap",
    "Record",
    "align_up",
    "aligned",
    "check_records",
    "collisions",
    "faults",
    "live_pieces",
]

MOST = 1 << 61
"""Steps and sums of sizes are below it, so that every sum and difference fits into 64 bits."""


_WHOLE = ("start", "stop", "nbytes", "alignment")


@dataclass(frozen=True, slots=True)
class Record:
    """A buffer of `nbytes` that must keep its contents from step `start` up to, not including, step `stop`.

    `offset` pins it to one place. `gaps` are half-open intervals inside the lifetime in which other records may use its
    bytes. `hint` is kept from a file and means nothing to planners. `exact_bytes`: how many of the bytes a runtime uses
    that rounds up where a buffer begins and not how large it is; its own planner goes by them.
    """

    id: str
    start: int
    stop: int
    nbytes: int
    alignment: int = 1
    offset: int | None = None
    gaps: tuple[tuple[int, int], ...] = ()
    hint: int | None = None
    exact_bytes: int | None = None

    __repr__ = abridged

    def active(self) -> tuple[tuple[int, int], ...]:
        """The lifetime without its gaps, as ascending half-open intervals."""
        if not self.gaps and self.start < self.stop:
            return ((self.start, self.stop),)
        pieces, cursor = [], self.start
        for low, high in sorted(self.gaps):
            if low > cursor:
                pieces.append((cursor, low))
            cursor = max(cursor, high)
        if cursor < self.stop:
            pieces.append((cursor, self.stop))
        return tuple(pieces)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two records, by index, that are live together for one step: the last step of `read` is the first of `written`.
    They may overlap if `written` begins `lag` bytes or more below `read`."""

    read: int
    written: int
    lag: int

    def allows(self, offsets: Sequence[int]) -> bool:
        """Whether these offsets of all records keep the lag."""
        return offsets[self.read] - offsets[self.written] >= self.lag


def align_up(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def aligned(records: Sequence[Record], alignment: int) -> tuple[Record, ...]:
    """The records, whose offsets must now also be multiples of `alignment`. Raises UsageError as `check_records` does,
    for example for a pinned offset that is not such a multiple."""
    if alignment == 1:
        return tuple(records)
    records_aligned = tuple(replace(record, alignment=lcm(record.alignment, alignment)) for record in records)
    check_records(records_aligned)
    return records_aligned


def faults(records: Sequence[Record]) -> Iterator[tuple[int, str, str]]:
    """The faults of records as (index, field, reason): in the order of the records, then pinned records that collide,
    in the order of the steps. O(n log n)."""
    if _all_plain(records):
        return
    seen: dict[str, int] = {}
    pinned: list[int] = []
    for index, record in enumerate(records):
        wrong = _wrong_type(record)
        if wrong is not None:
            yield index, *wrong
            continue
        if record.id in seen:
            yield index, "id", f"id {record.id!r} is taken by record {seen[record.id]}"
        seen.setdefault(record.id, index)
        if record.start >= record.stop:
            yield index, "stop", f"the lifetime [{record.start}, {record.stop}) of {record.id!r} is empty or reversed"
            continue
        if record.nbytes <= 0:
            yield index, "nbytes", f"the size {record.nbytes} of {record.id!r} is not positive"
        if record.alignment <= 0:
            yield index, "alignment", f"the alignment {record.alignment} of {record.id!r} is not positive"
            continue
        for low, high in record.gaps:
            if not record.start <= low < high <= record.stop:
                yield index, "gaps", f"the gap [{low}, {high}) of {record.id!r} is not inside its lifetime"
        if record.gaps and not record.active():
            yield index, "gaps", f"the gaps of {record.id!r} leave nothing of its lifetime"
            continue
        if record.offset is None:
            continue
        if record.offset < 0 or record.offset % record.alignment:
            reason = f"{record.id!r} is pinned at {record.offset}, not at a multiple of {record.alignment}"
            yield index, "offset", reason
        if record.nbytes > 0:
            pinned.append(index)
    for _, one, other in collisions([records[i] for i in pinned], [records[i].offset or 0 for i in pinned]):
        first, second = sorted((pinned[one], pinned[other]))
        yield (
            second,
            "offset",
            f"{records[second].id!r} is pinned over {records[first].id!r}, which lives at the same time",
        )


def _wrong_type(record: Record) -> tuple[str, str] | None:
    """(field, reason) of the first field of a record that holds a value of another type."""
    if type(record.id) is str and _is_plain(record):
        return None
    if not isinstance(record.id, str):
        return "id", f"the id {brief(repr(record.id))} is not a text; give a str"
    for name in _WHOLE:
        value = getattr(record, name)
        if not _is_integer(value):
            return name, f"{brief(repr(value))} as {name} of {record.id!r} is not a whole number"
    for name in ("offset", "hint", "exact_bytes"):
        value = getattr(record, name)
        if value is not None and not _is_integer(value):
            return name, f"{brief(repr(value))} as {name} of {record.id!r} is not a whole number, or None"
    if not isinstance(record.gaps, Sequence) or not all(
        isinstance(gap, Sequence) and len(gap) == 2 and all(map(_is_integer, gap)) for gap in record.gaps
    ):
        return "gaps", (
            f"the gaps {brief(repr(record.gaps))} of {record.id!r} are not intervals; give ((start, stop), ...)"
        )
    return None


def _is_plain(record: Record) -> bool:
    """Whether a record holds ints alone, and no offset, hint or gaps: as nearly all do."""
    return (
        type(record.start) is type(record.stop) is type(record.nbytes) is type(record.alignment) is int
        and record.offset is record.hint is None
        and record.gaps == ()
    )


def _all_plain(records: Sequence[Record]) -> bool:
    """Whether all records are plain and without faults, in one pass: there may be millions."""
    return all(
        type(r.id) is str
        and type(r.start) is type(r.stop) is type(r.nbytes) is type(r.alignment) is int
        and r.start < r.stop
        and r.nbytes > 0
        and r.alignment > 0
        and r.offset is r.hint is None
        and r.gaps == ()
        for r in records
    ) and len({r.id for r in records}) == len(records)


def _is_integer(value: object) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def collisions(
    records: Sequence[Record], offsets: Sequence[int], *, most: int | None = None
) -> list[tuple[int, int, int]]:
    """(step, one record, another): the step at which the second record becomes live on bytes that the first holds.

    They come in the order of the steps, at least one for every record that becomes live on bytes in use, unless `most`
    are enough. O(n log n). Raises UnsupportedError for numbers that 64 bits do not hold.
    """
    return live_pieces(records).collisions(_int64s(offsets), MOST if most is None else most)


def live_pieces(records: Sequence[Record]) -> _native.LivePieces:
    """The records for the native sweeps. Raises UnsupportedError where 64 bits do not hold their steps, or the sum of
    their sizes. O(n)."""
    sizes = [record.nbytes for record in records]
    if sum(sizes) >= MOST or min(sizes, default=0) < 0:
        raise UnsupportedError(
            f"sizes of {len(records):,} records from {min(sizes):,} to {max(sizes):,} bytes together do not fit into "
            "64 bits; check their units"
        )
    if all(not record.gaps and record.start < record.stop for record in records):
        low, high = [record.start for record in records], [record.stop for record in records]
        owners: Sequence[int] = range(len(records))
    else:
        pieces = [(*piece, index) for index, record in enumerate(records) for piece in record.active()]
        low, high, owners = ([piece[k] for piece in pieces] for k in range(3))
    return native.compiled.LivePieces(_int64s(low), _int64s(high), _int64s(owners), _int64s(sizes))


def _int64s(numbers: Sequence[int]) -> array[int]:
    """The numbers, bytes or steps, as 64-bit integers; raises UnsupportedError where one is not within MOST."""
    most = max(max(numbers, default=0), -min(numbers, default=0))
    if most >= MOST:
        raise UnsupportedError(f"{most:,} bytes or steps do not fit into 64 bits; check their units")
    return array("q", numbers)


def check_records(records: Iterable[Record]) -> tuple[Record, ...]:
    """The records, which can all be planned, with whole numbers of other libraries as int. Raises UsageError that names
    the first that cannot, and why, and for a value that is not a list of records."""
    if isinstance(records, (str, bytes)) or not isinstance(records, Iterable):
        raise UsageError(
            f"{brief(repr(records))} is not a list of records; give some ds.Record(id, start, stop, nbytes)"
        )
    listed = tuple(records)
    for index, record in enumerate(listed):
        if not isinstance(record, Record):
            raise UsageError(f"record {index} is {brief(repr(record))}; give a ds.Record(id, start, stop, nbytes)")
    if _all_plain(listed):
        return listed
    for index, _, reason in faults(listed):
        raise UsageError(f"record {index}: {reason}")
    return tuple(map(_with_ints, listed))


def _with_ints(record: Record) -> Record:
    """The record with ints, which files of plans can hold, in place of numbers of other integer types."""
    if _is_plain(record):
        return record
    start, stop, nbytes, alignment = (int(getattr(record, name)) for name in _WHOLE)
    gaps = tuple((int(low), int(high)) for low, high in record.gaps)
    offset, hint, exact = (
        None if value is None else int(value) for value in (record.offset, record.hint, record.exact_bytes)
    )
    return Record(record.id, start, stop, nbytes, alignment, offset, gaps, hint, exact)
