"""The bytes that a library's kernels take of TFLite Micro's arena for a file, beyond those of the reference kernels,
which are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from downset.arenas.gaps import height
from downset.arenas.scratch import place_scratch
from downset.formats.tflite.read import body_operators, states_offsets
from downset.graph.core import Graph
from downset.memory.kernel_needs import KernelNeeds, kernel_needs
from downset.memory.liveness import lifetimes
from downset.memory.models import TFLM_WITHOUT_OFFSETS, memory_model
from downset.results.fit import Fit
from downset.results.plans import Arena

__all__ = ["KernelScratch", "file_needs", "kernel_bytes", "kernel_scratch"]


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
    top = _head(fit.output_path or fit.model, fit.graph, fit.shipped_steps, arena, kernels, head_bytes)
    return KernelScratch(max(0, top - fit.arena.after), needs.kept_bytes, needs.unknown, needs.overruns)


def kernel_bytes(
    path: str | Path, graph: Graph, steps: Sequence[int], arena: Arena | None, kernels: str, head_bytes: int
) -> int:
    """The bytes that a file takes with these kernels beyond those that it takes with the reference kernels, by formula.
    `arena`: the plan of its offsets; None for a file that states none, or others. `head_bytes`: as measured with the
    reference kernels."""
    needs = file_needs(path, graph, kernels)
    return needs.kept_bytes + max(0, _head(path, graph, steps, arena, kernels, head_bytes) - head_bytes)


def file_needs(path: str | Path, graph: Graph, kernels: str | None) -> KernelNeeds:
    """The needs of these kernels for a network, with the operators in the bodies of its file."""
    if kernels is None or kernels == "reference":
        return KernelNeeds()
    return kernel_needs(graph, kernels, body_operators(path) if Path(path).exists() else ())


def _head(
    path: str | Path, graph: Graph, steps: Sequence[int], arena: Arena | None, kernels: str | None, head_bytes: int
) -> int:
    """The head of a file with the scratch of these kernels: as TFLite Micro places it, or above the head where the
    file states offsets that are not those of a plan."""
    scratch_bytes = kernel_needs(graph, kernels).scratch_bytes
    if kernels is None or not scratch_bytes:
        return 0
    if arena is None and Path(path).exists() and states_offsets(path):
        return head_bytes + scratch_bytes
    model = TFLM_WITHOUT_OFFSETS if arena is None else memory_model(arena.memory)
    living = lifetimes(graph, steps, replace(model, name="with scratch", scratch=kernels))
    stated = None if arena is None else dict(zip((r.id for r in arena.records), arena.offsets, strict=True))
    return height(living.records, place_scratch(living, stated).solution)
