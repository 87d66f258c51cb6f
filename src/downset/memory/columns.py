"""Records as pieces of lifetimes in 64-bit integers: what the native sweeps over their steps read."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from downset import native
from downset.errors import UnsupportedError

if TYPE_CHECKING:
    from downset import _native
    from downset.memory.records import Record

__all__ = ["MOST", "int64s", "live_pieces"]

MOST = 1 << 61
"""Steps and sums of sizes are below it, so that every sum and difference fits into 64 bits."""


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
    return native.compiled.LivePieces(int64s(low), int64s(high), int64s(owners), int64s(sizes))


def int64s(numbers: Sequence[int]) -> array[int]:
    """The numbers as 64-bit integers; raises UnsupportedError where they are too large."""
    try:
        return array("q", numbers)
    except OverflowError:
        most = max(map(abs, numbers))
        raise UnsupportedError(f"{most:,} does not fit into 64 bits; check the unit of steps and bytes") from None
