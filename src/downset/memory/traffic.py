"""Off-chip traffic of an order when only so many bytes fit on chip, under clairvoyant replacement.

Source: "Ordering Chaos", section 4.2 and figure 11, which counts traffic under Belady's clairvoyant algorithm; Belady,
"A study of replacement algorithms for a virtual-storage computer" (1966).
Names: a *block* is the unit that moves; dead data (read by nobody any more) is never written back.
Complexity: O(accesses · log accesses).
Deviations: the paper names no unit. `block_bytes` gives blocks of one size, for which evicting what is used farthest in
    the future needs the fewest fetches of all policies; without it whole tensors move, where the rule is a heuristic.
    Fetches and write-backs together are least where every tensor is read once. Elsewhere they can be more than another
    policy needs: one that lets go of what lies off chip already, rather than of what must be written back first.
    An operator reads all of its inputs and then writes its outputs; blocks that die there make room, so an input and an
    output need not be on chip together and the traffic can be 0 somewhat below the peak of live bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from downset.errors import LimitReached, UsageError
from downset.graph.core import ABSENT, Graph

__all__ = ["Traffic", "off_chip_traffic"]

_NEVER = 1 << 62
_MOST_ACCESSES = 4_000_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes over the chip's border: fetched, written back, and what was not written back because it was dead."""

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
    """Traffic of running the operators in this order with `on_chip_bytes` of memory for activations.

    Each operator reads its inputs and writes its outputs, in turn. With `boundary` graph inputs start off chip and
    outputs must end there; without, as in the paper, inputs are produced on chip and outputs consumed there, so a
    network whose peak fits has no traffic. Raises UsageError for a memory that holds not even one block, LimitReached
    where there are more accesses than can be simulated.
    """
    if on_chip_bytes <= 0 or (block_bytes is not None and not 0 < block_bytes <= on_chip_bytes):
        raise UsageError(f"on-chip memory of {on_chip_bytes} bytes does not hold a block of {block_bytes} bytes")
    _check_size(graph, steps, block_bytes)
    blocks = _blocks(graph, block_bytes)
    accesses = _accesses(graph, steps, blocks, boundary)
    return _belady(accesses, blocks.nbytes, on_chip_bytes, _kept(graph, blocks, boundary))


def _check_size(graph: Graph, steps: Sequence[int], block_bytes: int | None) -> None:
    """Before any memory is taken: an access takes about 200 bytes and a few microseconds."""
    if block_bytes is None:
        return
    counts = [-(-tensor.nbytes // block_bytes) if tensor.role == "activation" else 0 for tensor in graph.tensors]
    accesses = sum(counts[t] for op in steps for t in (*graph.ops[op].inputs, *graph.ops[op].outputs) if t != ABSENT)
    if accesses > _MOST_ACCESSES:
        raise LimitReached(
            f"{graph.name}: its traffic is {accesses:,} accesses to blocks of {block_bytes} bytes, and at most "
            f"{_MOST_ACCESSES:,} are simulated; leave --on-chip away"
        )


@dataclass(frozen=True, slots=True)
class _CacheBlocks:
    of_tensor: tuple[range, ...]
    nbytes: tuple[int, ...]


def _blocks(graph: Graph, block_bytes: int | None) -> _CacheBlocks:
    """Every activation cut into blocks; a last, partial block takes a whole one, as in a cache."""
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
class _Access:
    block: int
    writes: bool


def _accesses(graph: Graph, steps: Sequence[int], blocks: _CacheBlocks, boundary: bool) -> list[_Access]:
    accesses = []
    if not boundary:
        accesses = [_Access(block, True) for tensor in graph.inputs for block in blocks.of_tensor[tensor]]
    for operator in steps:
        op = graph.ops[operator]
        read = dict.fromkeys(tensor for tensor in op.inputs if tensor != ABSENT)
        accesses += [_Access(block, False) for tensor in read for block in blocks.of_tensor[tensor]]
        written = (tensor for tensor in op.outputs if tensor != ABSENT)
        accesses += [_Access(block, True) for tensor in written for block in blocks.of_tensor[tensor]]
    return accesses


def _kept(graph: Graph, blocks: _CacheBlocks, boundary: bool) -> frozenset[int]:
    """Blocks of graph outputs: not dead at the end."""
    if not boundary:
        return frozenset()
    return frozenset(block for tensor in graph.outputs for block in blocks.of_tensor[tensor])


def _belady(accesses: Sequence[_Access], nbytes: Sequence[int], capacity: int, kept: frozenset[int]) -> Traffic:
    next_use = [_NEVER] * len(accesses)
    upcoming: dict[int, int] = {}
    for position in range(len(accesses) - 1, -1, -1):
        next_use[position] = upcoming.get(accesses[position].block, _NEVER)
        upcoming[accesses[position].block] = position
    resident: dict[int, int] = {}  # block -> when it is used next
    dirty: set[int] = set()
    farthest: list[tuple[int, int]] = []  # (-next use, block), stale entries skipped
    held = read = written = dropped = 0

    def leave(block: int) -> None:
        nonlocal held, written, dropped
        needed = resident.pop(block) != _NEVER or block in kept
        held -= nbytes[block]
        if block in dirty:
            dirty.discard(block)
            written += nbytes[block] if needed else 0
            dropped += 0 if needed else nbytes[block]

    for position, access in enumerate(accesses):
        block = access.block
        if block not in resident:
            if not access.writes:
                read += nbytes[block]
            if nbytes[block] > capacity:  # a tensor larger than the chip streams through it
                needed = next_use[position] != _NEVER or block in kept
                written += nbytes[block] if access.writes and needed else 0
                continue
            while held + nbytes[block] > capacity:
                use, victim = heapq.heappop(farthest)
                if resident.get(victim) == -use:
                    leave(victim)
            held += nbytes[block]
        resident[block] = next_use[position]
        heapq.heappush(farthest, (-next_use[position], block))
        if access.writes:
            dirty.add(block)
        if next_use[position] == _NEVER and block not in kept:
            leave(block)  # dead: its room is free at once
    for block in [block for block in resident if block in dirty]:
        leave(block)
    return Traffic(read, written, dropped)
