"""The candidates of `fit`: plans, the files that hold them, and what was measured of these.

The original is always the first candidate, so the result is never worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from downset.arenas.plan import plan_arena
from downset.fitting.job import Job
from downset.formats.writing import WRITERS
from downset.graph.core import Graph
from downset.results.fit import Rewrite
from downset.results.plans import Arena, Together
from downset.results.processes import ProcessorBound
from downset.results.sessions import DEFAULT, FILE_ORDER, Latency, SessionSettings
from downset.runtimes.targets import Target

__all__ = ["Candidate", "Original", "PlannedGraph", "arena_as_placed", "write_planned"]


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """A graph with its order, its arena and the rewrites in it."""

    graph: Graph
    together: Together
    rewrites: tuple[Rewrite, ...] = ()
    inexact: bool = False
    """Whether a rewrite rounds parts of quantised sums, which changes results; the difference is only measured."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that could be shipped, with its arena under the memory model and its measurement, if there is one. A
    candidate without a plan is the original, or the runtime's optimised form of it. `settings`: those of the session in
    which it was measured."""

    name: str
    """original, optimised, order, rewritten, strips or front, the last four also with "+offsets"; "strips 2" and so on
    of fewer operators; mapped or "mapped, not ordered", or the name of another candidate with ", mapped"."""
    path: Path
    arena_bytes: int
    plan: PlannedGraph | None = None
    measured: Mapping[str, int] | None = None
    settings: SessionSettings | None = None
    process_bytes: int | None = None
    latency: Latency | None = None
    workspaces: Mapping[int, int] = field(default_factory=dict)
    """Bytes by operator, as in `Taken`."""
    mapped: bool = False
    """Its weights lie in a file of their own beside it, which ONNX Runtime maps."""
    bound: ProcessorBound | None = None
    """The processor for which the file is; None for any."""

    @property
    def rewrites(self) -> tuple[Rewrite, ...]:
        return self.plan.rewrites if self.plan is not None else ()

    @property
    def label(self) -> str:
        """Its name, and the name of its settings unless they are the usual ones for such a file."""
        usual = DEFAULT if self.name == "original" else FILE_ORDER
        other = self.settings is not None and self.settings.name != usual.name
        return f"{self.name}, {self.settings.name}" if self.settings is not None and other else self.name

    def cost(self) -> tuple[int, int]:
        return (self.measured_bytes(), self.arena_bytes)

    def measured_bytes(self) -> int:
        """The measured bytes with those that named kernels take beyond them; 0 without a measurement."""
        return self._taken("total_bytes")

    def head_grew(self, original: Candidate) -> bool:
        """Whether the head is larger than the original's. States in place lie there, and not in the tail."""
        if self.plan is not None and self.plan.graph.states:
            return False
        return self._taken("head_bytes") > original._taken("head_bytes") > 0

    def _taken(self, part: str) -> int:
        return self.measured.get(part, 0) + self.measured.get("kernel_bytes", 0) if self.measured else 0


@dataclass(frozen=True, slots=True)
class Original:
    """The network that is fitted. `executed`: the file that the runtime executes. `before`: the arena as the runtime
    places it. `files`: the original as candidates, one for each of the settings in which it was measured, which took
    `measured_in_s`. `int8_form`: TFLite Micro refuses the file, which computes on uint8 and has an exact int8 form."""

    executed: Path
    graph: Graph
    before: Arena
    files: tuple[Candidate, ...]
    measured_in_s: float = 0.0
    int8_form: bool = False

    @property
    def file(self) -> Candidate:
        return self.files[0]


def arena_as_placed(graph: Graph, steps: Sequence[int], target: Target, time_limit_s: float) -> Arena:
    """The arena of an order as the runtime places it, if its planner is known; else the best placement found."""
    if target.place is not None:
        return target.place(graph, steps, time_limit_s)
    return plan_arena(graph, steps, method="best", memory=target.memory, time_limit_s=0.2 * time_limit_s)


def write_planned(job: Job, plan: PlannedGraph, name: str) -> list[Candidate]:
    """Write the files that hold a plan: its graph in its order, and another with its offsets if the target follows
    them."""
    order, arena, writer = plan.together.order, plan.together.arena, WRITERS[job.form]
    candidates = []
    moved = bool(plan.rewrites) or order.steps != tuple(range(len(order.steps)))
    if moved and not plan.graph.states:  # states in place need offsets
        reordered = _unused(job.scratch / f"{name}{job.form}")
        writer.write(reordered, plan.graph, order, None)
        # Without offsets in a file that could hold them, the runtime places the tensors.
        placed = arena
        if writer.offsets:
            with job.search_time.running():
                placed = arena_as_placed(plan.graph, order.steps, job.target, job.search_time.left_s)
        candidates.append(Candidate(name, reordered, placed.arena_bytes, plan))
    if writer.offsets and job.target.offsets:
        with_offsets = _unused(job.scratch / f"{name}_placed{job.form}")
        writer.write(with_offsets, plan.graph, order, arena)
        candidates.append(Candidate(f"{name}+offsets", with_offsets, arena.arena_bytes, plan))
    return candidates


def _unused(path: Path) -> Path:
    """The path, or one beside it where a candidate has that name."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_stem(f"{path.stem}_{number}")
    return free
