"""A largest-block limit: one arena split into several blocks, none larger than the allocator can give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from downset.arenas.best import best
from downset.arenas.breadth_order import breadth_order
from downset.arenas.gaps import height, lowest_gap
from downset.errors import InfeasibleError, UsageError
from downset.plans import Evidence
from downset.records import Record, breadth_bound

__all__ = ["Blocks", "plan_blocks"]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Record i lies in block `block_of[i]` at `offsets[i]`; `block_bytes` are the blocks' sizes."""

    block_of: tuple[int, ...]
    offsets: tuple[int, ...]
    block_bytes: tuple[int, ...]
    evidence: Evidence


def plan_blocks(records: Sequence[Record], largest_bytes: int) -> Blocks:
    """Blocks of at most `largest_bytes`, of least total size found; proven where it is the most bytes live at once.

    Raises InfeasibleError if one record alone is larger. Each record goes where the total grows least, the first such
    block; by size, by breadth, in order of production and by the portfolio's single arena, the best of all.
    """
    for record in records:
        if record.offset is not None:
            raise UsageError(f"record {record.id!r} is pinned: with several blocks, an offset alone says nothing")
        if record.nbytes > largest_bytes:
            raise InfeasibleError(
                f"record {record.id!r} of {record.nbytes} bytes is larger than the largest block, {largest_bytes}"
            )
    everything = range(len(records))
    sequences = (
        sorted(everything, key=lambda i: (-records[i].nbytes, i)),
        breadth_order(records),
        breadth_order(records, later_step_first=True),
        sorted(everything, key=lambda i: (records[i].start, i)),
        sorted(everything, key=lambda i: (records[i].start - records[i].stop, i)),
    )
    candidates = [_fill(records, sequence, largest_bytes) for sequence in sequences]
    single = best(records)
    if height(records, single.solution) <= largest_bytes:
        zeros = (0,) * len(records)
        candidates.insert(0, (zeros, single.solution, (height(records, single.solution),) if records else ()))
    block_of, offsets, block_bytes = min(candidates, key=lambda item: sum(item[2]))
    value, bound = sum(block_bytes), breadth_bound(records)
    return Blocks(block_of, offsets, block_bytes, Evidence("blocks", value, bound, value == bound))


def _fill(
    records: Sequence[Record], sequence: Sequence[int], largest_bytes: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    block_of, offsets = [-1] * len(records), [0] * len(records)
    blocks: list[list[tuple[Record, int]]] = []
    sizes: list[int] = []
    for index in sequence:
        record = records[index]
        choices = []
        for block, held in enumerate([*blocks, []]):
            at = lowest_gap(record, held)
            if at + record.nbytes <= largest_bytes:
                grown = max(0, at + record.nbytes - (sizes[block] if block < len(sizes) else 0))
                choices.append((grown, block, at))
        _, block, at = min(choices)
        if block == len(blocks):
            blocks.append([])
            sizes.append(0)
        blocks[block].append((record, at))
        sizes[block] = max(sizes[block], at + record.nbytes)
        block_of[index], offsets[index] = block, at
    return tuple(block_of), tuple(offsets), tuple(sizes)
