"""The result of a fit to two memories: plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from downset.graph.core import Graph
from downset.messages import Call
from downset.results.comparisons import Comparison
from downset.results.memories import MemoriesPlan
from downset.results.two_memories import TwoMemories

__all__ = ["CopySpan", "MemoriesFit", "MovedCopy", "OtherPlan"]


class CopySpan(NamedTuple):
    """The bytes of a tensor in one memory: from `start` to `stop` in the steps of the file, moves included. `offset`
    counts from the first byte of that memory."""

    name: str
    fast: bool
    offset: int
    nbytes: int
    start: int
    stop: int


class MovedCopy(NamedTuple):
    """A move: the step of the file at which it runs, the offsets of its ends in their memories."""

    name: str
    step: int
    into_fast: bool
    nbytes: int
    source: int
    target: int


class OtherPlan(NamedTuple):
    """Bytes of the plan of another method for the same memories, with offsets."""

    method: str
    moved_bytes: int
    direct_bytes: int


@dataclass(frozen=True, slots=True)
class MemoriesFit:
    """A network in fast and slow memory. `graph` and `plan`: the network and the plan of the file. `tail_bytes`: the
    persistent part of the written file, measured on this host. `kernels`: the library whose scratch has room;
    `stated_kernels`: whether the user named it. `outputs`: the comparison with the original, run over both memories
    with what lies between. `ran_at`: the distance at which that was run, where the file's own is too long for a run
    here. `cost`: by the prices given; None without. `original_operators`: of the original, where segments of the file
    are computed in strips; else 0. `extra_macs`: multiply-accumulates that strips add, as a share of the original's."""

    model: str
    graph: Graph
    plan: MemoriesPlan
    memories: TwoMemories
    spans: tuple[CopySpan, ...]
    moves: tuple[MovedCopy, ...]
    others: tuple[OtherPlan, ...]
    outputs: Comparison
    tail_bytes: int
    kernels: str
    stated_kernels: bool
    output_path: str | None
    ran_at: int | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    cost: float | None = None
    original_operators: int = 0
    extra_macs: float = 0.0
    notes: tuple[str, ...] = ()
    disk_bytes: tuple[int, int] = (0, 0)
    time_limit_s: float = math.inf
    work_limit: int | None = None
    seed: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    command: Call | None = None

    def __repr__(self) -> str:
        return f"<MemoriesFit of {Path(self.model).name!r:.80}: {self.plan!r}>"

    @property
    def fast_taken_bytes(self) -> int:
        """Bytes of fast memory with tensors, scratch where it lies lower, and the persistent part where it has that."""
        return self.plan.fast_bytes + self.memories.fast_scratch_bytes + self.memories.fast_persistent_bytes

    @property
    def slow_taken_bytes(self) -> int:
        return self.plan.slow_bytes + self.memories.slow_scratch_bytes + self.memories.slow_persistent_bytes

    @property
    def slow_traffic_bytes(self) -> int:
        """Bytes to and from slow memory: moved, and accessed directly."""
        return self.plan.moved_bytes + self.plan.direct_bytes
