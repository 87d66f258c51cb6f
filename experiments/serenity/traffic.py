"""Off-chip traffic of an order for a given on-chip memory, under clairvoyant replacement.

Source: "Ordering Chaos", section 4.2 and figure 11, which counts traffic under Belady's clairvoyant algorithm; Belady,
"A study of replacement algorithms for a virtual-storage computer" (1966).
Names: a *cache block* is the unit that moves. A dead block, which no later operator reads, is never written back.
Complexity: O(accesses · log accesses).
Deviations: the paper states no unit. With `block_bytes` all cache blocks have one size; evicting the block that is used
    farthest in the future then needs the fewest fetches of all policies. Without it whole tensors move, and the rule is
    a heuristic. Fetches and write-backs together are least where every tensor is read once. Otherwise a policy may
    need fewer that prefers to evict blocks that need no write-back. An operator reads all of its inputs and then writes
    its outputs. A block is freed as soon as it is dead, so an input and an output need not be on chip together, and the
    traffic can be 0 with a memory somewhat smaller than the peak.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from downset.errors import UsageError
from downset.graph.core import ABSENT, Graph

__all__ = ["Traffic", "off_chip_traffic"]

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that cross the chip's border: fetched and written back. `dead_bytes_dropped`: bytes not written back
    because they were dead."""

    read_bytes: int
    written_bytes: int
    dead_bytes_dropped: int

    @property
    def total_bytes(self) -> int:
        return self.read_bytes + self.written_bytes


def off_chip_traffic(
    graph: Graph,
    steps: Sequence[int],
    on_chip_bytes: int,
    *,
    block_bytes: int | None = None,
    boundary: bool = False,
) -> Traffic:
    """Traffic of running the operators in the order `steps` with `on_chip_bytes` of memory for activations.

    With `boundary` graph inputs start off chip and graph outputs must end there. Without it, as in the paper, inputs
    are produced on chip and outputs are consumed there, so a network whose peak fits has no traffic. `block_bytes`:
    size of a cache block (None: whole tensors). Raises UsageError for a memory smaller than one block.
    """
    if on_chip_bytes <= 0 or (block_bytes is not None and not 0 < block_bytes <= on_chip_bytes):
        raise UsageError(f"on-chip memory of {on_chip_bytes} bytes does not hold a cache block of {block_bytes} bytes")
    blocks = _blocks(graph, block_bytes)
    accesses = _accesses(graph, steps, blocks, boundary)
    return _belady(accesses, blocks.nbytes, on_chip_bytes, _kept(graph, blocks, boundary))


@dataclass(frozen=True, slots=True)
class _CacheBlocks:
    of_tensor: tuple[range, ...]
    nbytes: tuple[int, ...]


def _blocks(graph: Graph, block_bytes: int | None) -> _CacheBlocks:
    """Every activation cut into cache blocks; a last, partial block takes the room of a whole one, as in a cache."""
    of_tensor: list[range] = []
    nbytes: list[int] = []
    for tensor in graph.tensors:
        count = 0
        if tensor.role == "activation" and tensor.nbytes:
            count = 1 if block_bytes is None else -(-tensor.nbytes // block_bytes)
        of_tensor.append(range(len(nbytes), len(nbytes) + count))
        nbytes += [block_bytes or tensor.nbytes] * count
    return _CacheBlocks(tuple(of_tensor), tuple(nbytes))


@dataclass(frozen=True, slots=True)
class _BlockAccess:
    block: int
    writes: bool


def _accesses(graph: Graph, steps: Sequence[int], blocks: _CacheBlocks, boundary: bool) -> list[_BlockAccess]:
    accesses = []
    if not boundary:
        accesses = [_BlockAccess(block, True) for tensor in graph.inputs for block in blocks.of_tensor[tensor]]
    for operator in steps:
        op = graph.ops[operator]
        read = dict.fromkeys(tensor for tensor in op.inputs if tensor != ABSENT)
        accesses += [_BlockAccess(block, False) for tensor in read for block in blocks.of_tensor[tensor]]
        written = (tensor for tensor in op.outputs if tensor != ABSENT)
        accesses += [_BlockAccess(block, True) for tensor in written for block in blocks.of_tensor[tensor]]
    return accesses


def _kept(graph: Graph, blocks: _CacheBlocks, boundary: bool) -> frozenset[int]:
    """The cache blocks of graph outputs where these must end off chip: they are never dead."""
    if not boundary:
        return frozenset()
    return frozenset(block for tensor in graph.outputs for block in blocks.of_tensor[tensor])


def _belady(accesses: Sequence[_BlockAccess], nbytes: Sequence[int], capacity: int, kept: frozenset[int]) -> Traffic:
    next_use = [_NEVER] * len(accesses)
    upcoming: dict[int, int] = {}
    for position in range(len(accesses) - 1, -1, -1):
        next_use[position] = upcoming.get(accesses[position].block, _NEVER)
        upcoming[accesses[position].block] = position
    resident: dict[int, int] = {}  # by block on chip: the position of its next use
    dirty: set[int] = set()
    farthest: list[tuple[int, int]] = []  # (-next use, block), stale entries skipped
    fill = read = written = dropped = 0

    def leave(block: int) -> None:
        nonlocal fill, written, dropped
        needed = resident.pop(block) != _NEVER or block in kept
        fill -= nbytes[block]
        if block in dirty:
            dirty.discard(block)
            written += nbytes[block] if needed else 0
            dropped += 0 if needed else nbytes[block]

    for position, access in enumerate(accesses):
        block = access.block
        if block not in resident:
            if not access.writes:
                read += nbytes[block]
            if nbytes[block] > capacity:  # a tensor larger than the chip is read or written without being held
                needed = next_use[position] != _NEVER or block in kept
                written += nbytes[block] if access.writes and needed else 0
                continue
            while fill + nbytes[block] > capacity:
                use, victim = heapq.heappop(farthest)
                if resident.get(victim) == -use:
                    leave(victim)
            fill += nbytes[block]
        resident[block] = next_use[position]
        heapq.heappush(farthest, (-next_use[position], block))
        if access.writes:
            dirty.add(block)
        if next_use[position] == _NEVER and block not in kept:
            leave(block)  # dead: its room is free at once
    for block in [block for block in resident if block in dirty]:
        leave(block)
    return Traffic(read, written, dropped)
