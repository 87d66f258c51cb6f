"""The bytes that CMSIS-NN's kernels take of TFLite Micro's arena for a fitted file, beyond those measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from downset.arenas.gaps import height
from downset.arenas.tflm_greedy import tflm_greedy
from downset.budget import Budget
from downset.formats.tflite.read import body_operators
from downset.graph.core import Graph
from downset.memory.kernel_needs import KernelNeeds, kernel_needs
from downset.memory.liveness import lifetimes
from downset.memory.models import TFLM_WITHOUT_OFFSETS
from downset.memory.overlaps import KernelsName
from downset.memory.records import Record
from downset.results.fit import Fit

__all__ = ["KernelScratch", "kernel_scratch", "placed_with_scratch"]


@dataclass(frozen=True, slots=True)
class KernelScratch:
    """The bytes that a library's kernels take, at most.

    `above_bytes`: above the tensors, in place of the scratch of the reference kernels. `kept_bytes`: in the tail.
    `added_bytes`: beyond the measured bytes. `unknown`: the operators that are left out, as their formulas are not
    known."""

    above_bytes: int = 0
    kept_bytes: int = 0
    added_bytes: int = 0
    unknown: tuple[str, ...] = ()


def kernel_scratch(fit: Fit, kernels: KernelsName | None) -> KernelScratch:
    """The bytes that these kernels take for the shipped file of a fit for TFLite Micro; none for the reference
    kernels."""
    needs = _needs_of_file(fit, kernels)
    arena_bytes = fit.arena.after
    measured = None if fit.measured is None else fit.measured.details.get(fit.shipped)
    head_bytes = arena_bytes if measured is None else measured.get("head_bytes", arena_bytes)
    top = arena_bytes + needs.scratch_bytes
    if needs.buffers and not _holds_offsets(fit):
        top = max(top, placed_with_scratch(fit.graph, fit.shipped_steps, needs.buffers))
    added = needs.kept_bytes + max(0, top - max(head_bytes, arena_bytes))
    return KernelScratch(top - arena_bytes, needs.kept_bytes, added, needs.unknown)


def _needs_of_file(fit: Fit, kernels: KernelsName | None) -> KernelNeeds:
    """The needs of these kernels for the shipped network, with the operators in the bodies of its file."""
    if kernels is None or kernels == "reference":
        return KernelNeeds()
    path = Path(fit.output_path or fit.model)
    return kernel_needs(fit.graph, kernels, body_operators(path) if path.exists() else ())


def _holds_offsets(fit: Fit) -> bool:
    return fit.ships_plan and fit.shipped not in ("order", "rewritten", "strips")


def placed_with_scratch(graph: Graph, steps: Sequence[int], buffers: Mapping[int, Sequence[int]]) -> int:
    """The head of a file without offsets whose operators ask for these buffers (by operator), in bytes. TFLite Micro
    places them among the tensors by size, so that a buffer may move tensors and cost more than its bytes."""
    living = lifetimes(graph, steps, TFLM_WITHOUT_OFFSETS)
    step_of = {operator: step for step, operator in enumerate(steps)}
    scratch = [
        Record(f"scratch {operator} {place}", step_of[operator], step_of[operator] + 1, nbytes)
        for operator, sizes in buffers.items()
        for place, nbytes in enumerate(sizes)
    ]
    beyond = len(graph.tensors)  # TFLite Micro lists scratch after all tensors
    records = [*living.records, *scratch]
    rank = [*living.first_tensors(), *range(beyond, beyond + len(scratch))]
    placement = tflm_greedy(records, clock=Budget(math.inf).start(), rank=rank)
    return height(records, placement.solution)
