"""Where TFLite Micro puts its kernels' scratch, which is not a tensor and has no offset in a file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from downset.arenas.check import verify_arena
from downset.arenas.gaps import height
from downset.arenas.tflm_greedy import tflm_greedy
from downset.budget import Budget
from downset.graph.core import Graph
from downset.memory.liveness import Lifetimes, lifetimes
from downset.memory.models import MemoryModel
from downset.results.plans import Arena, Found

__all__ = ["lower", "place_scratch", "scratch_in_gaps"]


def place_scratch(living: Lifetimes, tensors: Mapping[str, int] | None) -> Found:
    """Offsets of all records, with scratch. `tensors`: by id, the offsets of the other records in a file that states
    them: the scratch goes into the gaps that these leave. None: a file without offsets. The scratch is then placed
    among the tensors by size, may move them and cost more than its bytes."""
    rank, records = living.first_tensors(), living.records
    if tensors is not None:
        records = tuple(
            record if record_rank >= len(living.record_of) else replace(record, offset=tensors[record.id])
            for record, record_rank in zip(records, rank, strict=True)
        )
    return tflm_greedy(records, clock=Budget(math.inf).start(), rank=rank)


def scratch_in_gaps(graph: Graph, steps: Sequence[int], arena: Arena, model: MemoryModel) -> Arena:
    """The arena of this order with the scratch of `model`, in the gaps of an arena of its tensors alone."""
    living = lifetimes(graph, steps, model)
    placed = place_scratch(living, dict(zip((record.id for record in arena.records), arena.offsets, strict=True)))
    offsets, value = tuple(map(int, placed.solution)), height(living.records, placed.solution)
    evidence = replace(arena.evidence, value=value, bound=min(value, arena.evidence.bound), proven=False)
    placed_arena = Arena(living.records, offsets, evidence, model.name, living.tensor_offsets(offsets), living.overlaps)
    verify_arena(graph, steps, placed_arena, memory=model)
    return placed_arena


def lower(arena: Arena, other: Arena) -> Arena:
    """The lower of two arenas of the same records, with the bound of the first."""
    if other.arena_bytes >= arena.arena_bytes:
        return arena
    bound = min(arena.evidence.bound, other.arena_bytes)
    proven = other.arena_bytes <= bound
    stopped_by = "" if proven else arena.evidence.stopped_by
    return replace(
        other,
        evidence=replace(arena.evidence, value=other.arena_bytes, bound=bound, proven=proven, stopped_by=stopped_by),
    )
