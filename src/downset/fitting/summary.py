"""What `fit` found, in figures, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from downset.errors import InfeasibleError, LimitReached
from downset.fitting.candidates import NOT_MEASURED, Candidate, Job, Planned
from downset.graph.core import Graph
from downset.graph.kinds import kind_of
from downset.memory.liveness import order_problem, peak_bytes
from downset.memory.traffic import off_chip_traffic
from downset.plans import Arena
from downset.reports.peak import peak_cause
from downset.results import Comparison, Figure, Fit, Measured, OnChip
from downset.runtimes.targets import TARGETS
from downset.sessions import SessionTaken
from downset.text import format_bytes

__all__ = ["BLOCK_BYTES", "check_ram", "simulate_traffic", "summarise", "with_sessions"]

BLOCK_BYTES = 1024
"""What moves at a time between the chip and the memory beside it, in the simulation."""


def summarise(
    job: Job, plan: Planned, before: Arena, candidates: Sequence[Candidate], chosen: Candidate, outputs: Comparison,
    notes: Sequence[str],
) -> Fit:  # fmt: skip
    """Before and after, of what is shipped; the first of the candidates is the original. Its own note follows those
    given."""
    graph, together = plan.graph, plan.together
    if chosen.plan is not None:
        graph, together = chosen.plan.graph, chosen.plan.together
    order, arena = together.order, together.arena
    kept = chosen.plan is None
    file_peak = peak_bytes(order_problem(plan.graph, job.target.memory), range(len(plan.graph.ops)))
    after_peak = file_peak if kept else order.peak_bytes
    bound = int(order.evidence.bound)
    peak = Figure(file_peak, after_peak, min(bound, after_peak), after_peak <= bound)
    arena_figure = Figure(
        before.arena_bytes, chosen.arena_bytes, min(bound, chosen.arena_bytes), chosen.arena_bytes <= bound
    )
    if arena.arena_bytes < chosen.arena_bytes:
        exists = f"a plan of {format_bytes(arena.arena_bytes)} B exists, but "
        if job.target.place is not None and not job.target.offsets:
            notes = [*notes, f"{exists}{job.target.name} places tensors by itself and cannot be told where"]
        else:
            notes = [*notes, f"{exists}the runtime took less memory in all for the {chosen.name} file"]
    notes = [*notes, *_bodies(graph)]
    measured = None
    first = candidates[0].measured
    if first is not None and chosen.measured is not None:
        details = {item.label: item.measured for item in candidates if item.measured is not None}
        details[chosen.label] = chosen.measured
        measured = Measured(job.target.name, first["total_bytes"], chosen.measured["total_bytes"], details)
    return Fit(
        str(job.path),
        job.target.name,
        graph,
        before,
        together,
        peak,
        arena_figure,
        chosen.name,
        measured,
        outputs,
        None,
        tuple(notes),
        chosen.rewrites,
        not_measured=_why_not_measured(job, measured, notes),
    )


def with_sessions(
    result: Fit, chosen: Candidate, rows: tuple[SessionTaken, ...], front: tuple[SessionTaken, ...]
) -> Fit:
    """The same with what sessions took, and the settings of the one that is shipped."""
    if result.measured is None:
        return result
    return replace(result, session=chosen.settings, measured=replace(result.measured, rows=rows, front=front))


def _bodies(graph: Graph) -> list[str]:
    """What to say of networks with operators that run bodies of their own (If, Loop, Scan)."""
    running = [op for op in graph.ops if kind_of(op.kind).category == "control flow"]
    if not running:
        return []
    others = f" and {len(running) - 1} more" if len(running) > 1 else ""
    return [
        f"{running[0].kind} {running[0].name!r}{others}: what a body keeps while it runs is in no figure of the plan, "
        "and the proof is of what is outside"
    ]


def _why_not_measured(job: Job, measured: Measured | None, notes: Sequence[str]) -> str:
    if measured is not None or (job.target.measure is None and job.target.sessions is None):
        return ""
    return next((note.removeprefix(NOT_MEASURED) for note in notes if note.startswith(NOT_MEASURED)), "")


def check_ram(result: Fit, ram_bytes: int | None) -> None:
    """Judge the memory limit by what the runtime took where it was measured, and by the arena where the target's
    runtime tells nothing. Where it could have told but does not run the file, it is not known whether it fits."""
    if ram_bytes is None:
        return
    needed = result.measured.after if result.measured else result.arena.after
    if needed <= ram_bytes and not result.not_measured:
        return
    overhead = needed - result.arena.after if result.measured and TARGETS[result.target].fixed_overhead else 0
    least = result.arena.bound + max(overhead, 0)
    figures = {"limit_bytes": ram_bytes, "least_bytes": least, "best_bytes": needed, **_parts(result)}
    if least > ram_bytes:
        raise InfeasibleError(
            f"{result.model} cannot run in {format_bytes(ram_bytes)} B: every order"
            f"{' of the rewritten network' if result.rewrites else ''} needs at least "
            f"{format_bytes(least)} B; {format_bytes(needed)} B would do"
            f"{' for its tensors alone' if result.not_measured else ''}",
            figures=figures,
        )
    if result.not_measured:
        raise LimitReached(
            f"{result.model}: its tensors take {format_bytes(needed)} B of the {format_bytes(ram_bytes)} B; what "
            f"{result.target} takes beside them is not known, so neither is whether it fits ({result.not_measured})",
            figures=figures,
        )
    if result.arena.proven and result.measured:
        beside = format_bytes(needed - result.arena.after)
        raise LimitReached(
            f"{result.model} takes {format_bytes(needed)} B in {result.measured.runtime}, limit "
            f"{format_bytes(ram_bytes)} B: the arena of {format_bytes(result.arena.after)} B is proven least, and no "
            f"search lowers the {beside} B that the runtime takes beside it",
            figures=figures,
        )
    raise LimitReached(
        f"{result.model}: best found {format_bytes(needed)} B, bound {format_bytes(least)} B, limit "
        f"{format_bytes(ram_bytes)} B: not known whether it fits; a longer --time-limit may tell",
        figures=figures,
    )


def _parts(result: Fit) -> dict[str, int | str]:
    """What was measured of what would be shipped, part by part, and where its peak is."""
    parts: dict[str, int | str] = {}
    if result.measured is not None:
        taken = result.measured.details.get(result.shipped, {})
        parts |= {part: taken[part] for part in ("head_bytes", "tail_bytes") if part in taken}
    steps = result.together.order.steps if result.ships_plan else range(len(result.graph.ops))
    cause = peak_cause(result.graph, steps, result.target)
    if cause is not None:
        parts |= {"peak_step": cause.step, "peak_operator": result.graph.ops[cause.operator].name}
    return parts


def simulate_traffic(graph: Graph, result: Fit, on_chip: Sequence[int]) -> tuple[OnChip, ...]:
    """Of the order the runtime would execute anyway, and of what is shipped."""
    file_order = tuple(range(len(graph.ops)))
    after = (result.graph, result.together.order.steps) if result.ships_plan else (graph, file_order)
    found = []
    for size in on_chip:
        one, other = (
            off_chip_traffic(item, steps, size, block_bytes=BLOCK_BYTES) for item, steps in ((graph, file_order), after)
        )
        found.append(OnChip(size, one, other))
    return tuple(found)
