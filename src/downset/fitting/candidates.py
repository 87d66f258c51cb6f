"""The candidates of `fit`: their files, their measured memory, and whether they compute what the original computes.

The original is always the first candidate, so the result is never worse. Figures of different runtimes are not
compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from downset.arenas.plan import plan_arena
from downset.equivalence.prove import prove
from downset.errors import InvalidPlan, UnsupportedError
from downset.formats.writing import WRITERS
from downset.graph.core import Graph
from downset.memory.overlaps import KernelsName
from downset.messages import Message, joined
from downset.reports.comparisons import difference
from downset.results.fit import Comparison, Proof, Rewrite
from downset.results.plans import Arena, Together
from downset.results.sessions import DEFAULT, FILE_ORDER, Latency, SessionSettings
from downset.runtimes.compare import RuntimeName, compare_outputs, with_offsets
from downset.runtimes.differences import not_compared
from downset.runtimes.targets import Target

__all__ = [
    "NOT_MEASURED",
    "Candidate",
    "Job",
    "PlannedGraph",
    "arena_as_placed",
    "compare",
    "differences_elsewhere",
    "list_candidates",
    "write_planned",
]

NOT_MEASURED = "not measured: "
"""The beginning of the note that says why nothing was measured."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Job:
    """A network, the target that it is fitted to, and the folder in which candidates are written."""

    path: Path
    target: Target
    shapes: Shapes | None
    seed: int
    scratch: Path
    trust: bool = False
    """Whether PyTorch may load the file, which runs code that the file contains."""
    time_limit_s: float = 10.0
    work_limit: int | None = None
    kernels: KernelsName | None = None
    """The library whose kernels run the network, where results may overlap inputs; None where nothing overlaps."""

    @property
    def form(self) -> str:
        """The suffix of the file, in small letters."""
        return self.path.suffix.lower()


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
    """original, optimised, order, rewritten, strips or front; the last four also with "+offsets"."""
    path: Path
    arena_bytes: int
    plan: PlannedGraph | None = None
    measured: Mapping[str, int] | None = None
    settings: SessionSettings | None = None
    process_bytes: int | None = None
    latency: Latency | None = None
    workspaces: Mapping[int, int] = field(default_factory=dict)
    """Bytes by operator, as in `Taken`."""

    @property
    def rewrites(self) -> tuple[Rewrite, ...]:
        return self.plan.rewrites if self.plan is not None else ()

    @property
    def label(self) -> str:
        """Its name, and the name of its settings unless they are the usual ones for such a file."""
        usual = DEFAULT if self.name == "original" else FILE_ORDER
        told = self.settings is not None and self.settings.name != usual.name
        return f"{self.name}, {self.settings.name}" if self.settings is not None and told else self.name

    def cost(self) -> tuple[int, int]:
        return (self.measured_bytes(), self.arena_bytes)

    def measured_bytes(self) -> int:
        return self.measured["total_bytes"] if self.measured else 0

    def head_grew(self, original: Candidate) -> bool:
        if self.measured is None or original.measured is None:
            return False
        return self.measured.get("head_bytes", 0) > original.measured.get("head_bytes", 0)


def arena_as_placed(graph: Graph, steps: Sequence[int], target: Target, time_limit_s: float) -> Arena:
    """The arena of an order as the runtime places it, if its planner is known; else the best placement found."""
    if target.place is not None:
        return target.place(graph, steps, time_limit_s)
    return plan_arena(graph, steps, method="best", memory=target.memory, time_limit_s=0.2 * time_limit_s)


def list_candidates(job: Job, executed: Path, plan: PlannedGraph, before: Arena) -> list[Candidate]:
    """The candidates without rewriting: the plan's files, and the runtime's optimised form of the original."""
    candidates = write_planned(job, plan, "order")
    if executed != job.path:
        candidates.append(Candidate("optimised", executed, before.arena_bytes))
    return candidates


def write_planned(job: Job, plan: PlannedGraph, name: str) -> list[Candidate]:
    """Write the files that hold a plan: its graph in its order, and another with its offsets if the target follows
    them."""
    order, arena, writer = plan.together.order, plan.together.arena, WRITERS[job.form]
    candidates = []
    if plan.rewrites or order.steps != tuple(range(len(order.steps))):
        reordered = job.scratch / f"{name}{job.form}"
        writer.write(reordered, plan.graph, order, None)
        # Without offsets in a file that could hold them, the runtime places the tensors.
        placed = arena_as_placed(plan.graph, order.steps, job.target, job.time_limit_s) if writer.offsets else arena
        candidates.append(Candidate(name, reordered, placed.arena_bytes, plan))
    if writer.offsets and job.target.offsets:
        with_offsets = job.scratch / f"{name}_placed{job.form}"
        writer.write(with_offsets, plan.graph, order, arena)
        candidates.append(Candidate(f"{name}+offsets", with_offsets, arena.arena_bytes, plan))
    return candidates


def compare(job: Job, candidates: Sequence[Candidate], chosen: Candidate) -> Comparison:
    """Prove that the chosen file holds the original's network, and run both on the same inputs. For a rewritten network
    the target's runtime is tried first, since LiteRT's optimised integer kernels round by a channel's place among all.

    For ONNX Runtime, where there is no proof against the original, it is against the optimised form of the original,
    which is compared with the original by runs only. Raises InvalidPlan where the files differ by more than rounding,
    where offsets are wrong, and where there is neither a proof nor an output that depends on the input.
    """
    original = candidates[0]
    if chosen.name == original.name:
        return Comparison(True, 0.0, "", "the file is shipped as it is", proof=Proof(True), runs=0)
    proof = _proof(job, candidates, chosen)
    reasons = []
    for name in reversed(job.target.runners) if chosen.rewrites else job.target.runners:
        try:
            comparison = _outputs_of(job, original, chosen, name, proof)
        except UnsupportedError as error:
            reasons.append(Message(f"{name}: ", error.message))
            continue
        if not job.shapes:
            comparison = with_offsets(original.path, chosen.path, comparison, seed=job.seed)
        return _judged(original, chosen, comparison)
    if chosen.rewrites and not proof.proven:
        raise InvalidPlan(
            f"the {chosen.name} file could not be compared with the original (", joined("; ", reasons), ")"
        )
    return replace(not_compared("; ".join(reasons)), proof=proof)


def _proof(job: Job, candidates: Sequence[Candidate], chosen: Candidate) -> Proof:
    proof = prove(candidates[0].path, chosen.path, shapes=job.shapes)
    optimised = next((item for item in candidates if item.name == "optimised"), None)
    if proof.proven or optimised is None:
        return proof
    if chosen.name == optimised.name:
        return Proof(True, optimised=True)
    return replace(prove(optimised.path, chosen.path, shapes=job.shapes), optimised=True)


def _judged(original: Candidate, chosen: Candidate, comparison: Comparison) -> Comparison:
    """The comparison, if the file may be shipped. Raises InvalidPlan otherwise."""
    inexact = chosen.plan is not None and chosen.plan.inexact
    if not comparison.equal and inexact and comparison.max_abs_error is not None:
        return replace(comparison, note="rounded part by part, as asked for")
    if not comparison.rounds_alike or (comparison.inside_note and not inexact):
        raise _differs(original, chosen, comparison)
    proven = comparison.proof is not None and comparison.proof.proven
    if not proven and not comparison.telling:
        reason = comparison.proof.reason if comparison.proof is not None else ""
        raise InvalidPlan(
            f"{original.path}: the {chosen.name} file is not proven the same ({reason}), and the outputs are the same "
            "for every input tried; nothing written"
        )
    return comparison


def _outputs_of(
    job: Job, original: Candidate, chosen: Candidate, runtime: RuntimeName, proof: Proof | None = None
) -> Comparison:
    ordered = job.target.file_order if chosen.settings is None else chosen.settings.follows_file
    return compare_outputs(
        original.path, chosen.path, runtime=runtime, shapes=job.shapes, seed=job.seed, ordered=ordered, proof=proof
    )


def differences_elsewhere(job: Job, original: Candidate, chosen: Candidate, outputs: Comparison) -> list[str]:
    """A note where the outputs of a rewritten file equal the original's in TFLite Micro, but not in LiteRT."""
    if not (chosen.rewrites and outputs.equal and outputs.runtime == "tflm"):
        return []
    try:
        comparison = _outputs_of(job, original, chosen, "litert")
    except UnsupportedError:
        return []
    if comparison.equal or comparison.max_abs_error is None:
        return []
    return [
        f"equal in TFLite Micro; in LiteRT's optimised kernels outputs differ by up to {comparison.max_abs_error:.3g}: "
        "its integer DEPTHWISE_CONV_2D rounds by a channel's place among all (its reference kernels do not)"
    ]


def _differs(original: Candidate, chosen: Candidate, comparison: Comparison) -> InvalidPlan:
    return InvalidPlan(
        f"{original.path}: the {chosen.name} file gave other outputs in {comparison.runtime} "
        f"({difference(comparison)}); nothing written"
    )
