"""A largest-block limit: one arena split into several memory blocks, none larger than the allocator can give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from downset.arenas.best import best
from downset.arenas.breadth_order import breadth_order
from downset.arenas.constrained.spread import split
from downset.arenas.gaps import height
from downset.budget import Budget
from downset.errors import InfeasibleError, UsageError
from downset.memory.bounds import breadth_bound
from downset.memory.records import Record, check_records
from downset.results.plans import Evidence

__all__ = ["plan_blocks"]


@dataclass(frozen=True, slots=True)
class MemoryBlocks:
    """Record i lies in memory block `block_of[i]` at `offsets[i]`; `block_bytes` are the blocks' sizes."""

    block_of: tuple[int, ...]
    offsets: tuple[int, ...]
    block_bytes: tuple[int, ...]
    evidence: Evidence


def plan_blocks(records: Sequence[Record], largest_bytes: int) -> MemoryBlocks:
    """Memory blocks of at most `largest_bytes`, of the least total size found. The total is proven least where it is
    the most bytes live at once.

    Each record goes into the first block by which the total grows least. That is done in several sequences of the
    records (by size, by breadth, in order of production, and as they lie in the portfolio's single arena), and the best
    result is returned. Raises InfeasibleError if one record alone is larger than a memory block."""
    check_records(records)
    for record in records:
        if record.offset is not None:
            raise UsageError(f"record {record.id!r} is pinned: an offset names no place among several memory blocks")
        if record.nbytes > largest_bytes:
            raise InfeasibleError(
                f"record {record.id!r} of {record.nbytes} bytes is larger than a memory block, {largest_bytes}"
            )
    everything = range(len(records))
    sequences = (
        sorted(everything, key=lambda i: (-records[i].nbytes, i)),
        breadth_order(records),
        breadth_order(records, later_step_first=True),
        sorted(everything, key=lambda i: (records[i].start, i)),
        sorted(everything, key=lambda i: (records[i].start - records[i].stop, i)),
    )
    candidates = [split(records, sequence, largest_bytes) for sequence in sequences]
    single = best(records, clock=Budget().start())
    if height(records, single.solution) <= largest_bytes:
        candidates.insert(0, ((0,) * len(records), single.solution))
    sizes = [_block_bytes(records, *candidate) for candidate in candidates]
    chosen = min(range(len(candidates)), key=lambda index: sum(sizes[index]))
    block_of, offsets = candidates[chosen]
    value, bound = sum(sizes[chosen]), breadth_bound(records)
    return MemoryBlocks(block_of, offsets, sizes[chosen], Evidence("blocks", value, bound, value == bound))


def _block_bytes(records: Sequence[Record], block_of: Sequence[int], offsets: Sequence[int]) -> tuple[int, ...]:
    sizes = [0] * (max(block_of, default=-1) + 1)
    for record, block, offset in zip(records, block_of, offsets, strict=True):
        sizes[block] = max(sizes[block], offset + record.nbytes)
    return tuple(sizes)
