"""The bytes that a library's kernels take of TFLite Micro's arena for a file, beyond those of the reference kernels,
which are measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from downset.arenas.gaps import height
from downset.arenas.tflm_greedy import tflm_greedy
from downset.budget import Budget
from downset.formats.tflite.read import body_operators, states_offsets
from downset.graph.core import Graph
from downset.memory.kernel_needs import KernelNeeds, kernel_needs
from downset.memory.liveness import lifetimes
from downset.memory.models import TFLM_WITHOUT_OFFSETS, MemoryModel, memory_model
from downset.memory.records import Record
from downset.results.fit import Fit
from downset.results.plans import Arena

__all__ = ["KernelScratch", "file_needs", "kernel_bytes", "kernel_scratch", "placed_with_scratch"]


@dataclass(frozen=True, slots=True)
class KernelScratch:
    """The bytes that a library's kernels take, at most.

    `above_bytes`: above the plan's arena, in place of the scratch of the reference kernels. `kept_bytes`: in the tail.
    `unknown`: the operators that are left out, as their formulas are not known. `overruns`: the operators whose kernels
    may write beyond their scratch."""

    above_bytes: int = 0
    kept_bytes: int = 0
    unknown: tuple[str, ...] = ()
    overruns: tuple[str, ...] = ()


def kernel_scratch(fit: Fit, kernels: str | None) -> KernelScratch:
    """The bytes that these kernels take for the shipped file of a fit for TFLite Micro; none for the reference
    kernels."""
    needs = file_needs(fit.output_path or fit.model, fit.graph, kernels)
    arena = fit.together.arena if fit.ships_offsets else None
    measured = None if fit.measured is None else fit.measured.details.get(fit.shipped)
    head_bytes = fit.arena.after if measured is None else measured.get("head_bytes", fit.arena.after)
    top = _head(fit.output_path or fit.model, fit.graph, fit.shipped_steps, arena, needs, head_bytes)
    return KernelScratch(max(0, top - fit.arena.after), needs.kept_bytes, needs.unknown, needs.overruns)


def kernel_bytes(
    path: str | Path, graph: Graph, steps: Sequence[int], arena: Arena | None, kernels: str, head_bytes: int
) -> int:
    """The bytes that a file takes with these kernels beyond those that it takes with the reference kernels, by formula.
    `arena`: the plan of its offsets; None for a file that states none, or others. `head_bytes`: as measured with the
    reference kernels."""
    needs = file_needs(path, graph, kernels)
    return needs.kept_bytes + max(0, _head(path, graph, steps, arena, needs, head_bytes) - head_bytes)


def file_needs(path: str | Path, graph: Graph, kernels: str | None) -> KernelNeeds:
    """The needs of these kernels for a network, with the operators in the bodies of its file."""
    if kernels is None or kernels == "reference":
        return KernelNeeds()
    return kernel_needs(graph, kernels, body_operators(path) if Path(path).exists() else ())


def _head(
    path: str | Path, graph: Graph, steps: Sequence[int], arena: Arena | None, needs: KernelNeeds, head_bytes: int
) -> int:
    """The head of a file with the scratch of these kernels: as TFLite Micro places it, or above the head where the
    file states offsets that are not those of a plan."""
    if not needs.buffers:
        return 0
    if arena is not None:
        offsets = dict(zip((record.id for record in arena.records), arena.offsets, strict=True))
        return placed_with_scratch(graph, steps, needs.buffers, arena.memory, offsets)
    if Path(path).exists() and states_offsets(path):
        return head_bytes + needs.scratch_bytes
    return placed_with_scratch(graph, steps, needs.buffers)


def placed_with_scratch(
    graph: Graph,
    steps: Sequence[int],
    buffers: Mapping[int, Sequence[int]],
    memory: str | MemoryModel = TFLM_WITHOUT_OFFSETS,
    offsets: Mapping[str, int] | None = None,
) -> int:
    """The head of a file whose operators ask for these buffers (by operator), in bytes. `offsets`: of the records under
    the memory model `memory`, by id, in a file that states offsets. TFLite Micro then places the buffers into the gaps
    that these leave. Without offsets it places them among the tensors by size, so that a buffer may move tensors and
    cost more than its bytes."""
    living = lifetimes(graph, steps, replace(memory_model(memory), name="tensors alone", scratch=""))
    step_of = {operator: step for step, operator in enumerate(steps)}
    scratch = [
        Record(f"scratch {operator} {place}", step_of[operator], step_of[operator] + 1, nbytes)
        for operator, sizes in buffers.items()
        for place, nbytes in enumerate(sizes)
    ]
    beyond = len(graph.tensors)  # TFLite Micro lists scratch after all tensors
    tensors = living.records
    ranks = living.first_tensors() if offsets is None else range(len(tensors))
    if offsets is not None:
        tensors = tuple(replace(record, offset=offsets[record.id]) for record in tensors)
    records = [*tensors, *scratch]
    rank = [*ranks, *range(beyond, beyond + len(scratch))]
    placement = tflm_greedy(records, clock=Budget(math.inf).start(), rank=rank)
    return height(records, placement.solution)
