"""The figures of a fit, and whether the network fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from downset.errors import InfeasibleError, LimitReached
from downset.fitting.candidates import NOT_MEASURED, Candidate, Job, PlannedGraph
from downset.fitting.strips import StripSearch, remedies
from downset.graph.core import Graph
from downset.graph.kinds import kind_of
from downset.memory.liveness import order_problem, peak_bytes
from downset.memory.traffic import off_chip_traffic
from downset.plans import Arena
from downset.reports.naming import kind_name
from downset.reports.next_steps import listed, next_steps
from downset.reports.peak import peak_cause
from downset.results import Comparison, Figure, Fit, Measured, NextStep, OnChip, RamVerdict
from downset.runtimes.targets import TARGETS
from downset.sessions import SessionTaken
from downset.text import format_bytes, shortened

__all__ = ["BLOCK_BYTES", "check_ram", "early_verdict", "simulate_traffic", "summarise", "with_sessions"]

BLOCK_BYTES = 1024
"""Bytes that move at a time between the chip and the memory beside it, in the simulation."""


def summarise(
    job: Job, plan: PlannedGraph, before: Arena, candidates: Sequence[Candidate], chosen: Candidate,
    outputs: Comparison, notes: Sequence[str],
) -> Fit:  # fmt: skip
    """Before and after, of what is shipped; the first of the candidates is the original. Its own note follows those
    given."""
    graph, together = plan.graph, plan.together
    if chosen.plan is not None:
        graph, together = chosen.plan.graph, chosen.plan.together
    order, arena = together.order, together.arena
    kept = chosen.plan is None
    # The original lies as the runtime places it: nothing overlaps there.
    file_peak = peak_bytes(order_problem(plan.graph, TARGETS[job.target.name].memory), range(len(plan.graph.ops)))
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
        original=plan.graph,
        kernels=job.kernels,
    )


def with_sessions(
    result: Fit, chosen: Candidate, rows: tuple[SessionTaken, ...], front: tuple[SessionTaken, ...]
) -> Fit:
    """The same with what sessions took, and the settings of the one that is shipped."""
    if result.measured is None:
        return result
    return replace(result, session=chosen.settings, measured=replace(result.measured, rows=rows, front=front))


def _bodies(graph: Graph) -> list[str]:
    """Notes on networks with operators that run bodies of their own (If, Loop, Scan)."""
    running = [op for op in graph.ops if kind_of(op.kind).category == "control flow"]
    if not running:
        return []
    others = f" and {len(running) - 1} more" if len(running) > 1 else ""
    return [
        f"{running[0].kind} {running[0].name!r}{others}: the memory of a body while it runs is in no figure of the "
        "plan, and the proof does not cover it"
    ]


def _why_not_measured(job: Job, measured: Measured | None, notes: Sequence[str]) -> str:
    if measured is not None or not job.target.measures:
        return ""
    return next((note.removeprefix(NOT_MEASURED) for note in notes if note.startswith(NOT_MEASURED)), "")


def early_verdict(before: Arena, ram_bytes: int, refused: Sequence[str]) -> str:
    """A line that says what is certain of the verdict of `check_ram` before anything is searched, where the runtime
    does not run the original. `before`: its arena as placed. Nothing that ships has a larger arena, so where that is
    within the limit, the bound is, too. `refused`: the notes that say why it was not run."""
    verdict = '"not known" (exit 6)'
    if before.arena_bytes > ram_bytes:
        verdict += ' or "does not fit" (exit 3)'
    reason = "; ".join(note.removeprefix(NOT_MEASURED) for note in refused)
    return f"the verdict about {format_bytes(ram_bytes)} B will be {verdict}: {reason}; planning goes on"


def check_ram(result: Fit, ram_bytes: int | None, searched: StripSearch | None = None) -> Fit:
    """The result with its verdict about the memory limit, which is judged by what the runtime took where it was
    measured, and by the arena where the target's runtime tells nothing. Raises InfeasibleError where it is proven not
    to fit and LimitReached where that is not known; both carry the result. `searched`: strips in which it did not
    fit; what orders need proves nothing about them."""
    if ram_bytes is None:
        return result
    needed = result.measured.after if result.measured else result.arena.after
    overhead = needed - result.arena.after if result.measured and TARGETS[result.target].fixed_overhead else 0
    in_strips = searched is not None and searched.may_be_lower
    if in_strips and result.measured:
        overhead = min(overhead, result.measured.before - result.arena.before)  # strips only add to it
    least = (_ends_bytes(result) if in_strips else result.arena.bound) + max(overhead, 0)
    if needed <= ram_bytes and not result.not_measured:
        return replace(result, ram=RamVerdict("fits", ram_bytes, needed, least))
    state: Literal["does not fit", "not known"] = "does not fit" if least > ram_bytes else "not known"
    beyond = f" for its tensors alone; {result.target} takes more, which is not known" if result.not_measured else ""
    ways = [NextStep(f"Give it {format_bytes(needed)} B of RAM{beyond}.", 0, suffices=not beyond)]
    message = _why_not(result, ram_bytes, needed, least, searched=searched is not None)
    if searched is not None and in_strips:
        message = _why_not_in_strips(result, searched, ram_bytes, needed, least)
        ways += remedies(searched, needed, ram_bytes)
    least_of: Literal["every order", "inputs or outputs alone"] = (
        "inputs or outputs alone" if in_strips else "every order"
    )
    verdict = RamVerdict(state, ram_bytes, needed, least, message, least_of, tuple(ways))
    result = replace(result, ram=verdict, output_path=None)
    message = f"{message}; {listed(next_steps(result))}"
    figures = {"limit_bytes": ram_bytes, "least_bytes": least, "best_bytes": needed, **_parts(result)}
    kind = InfeasibleError if state == "does not fit" else LimitReached
    raise kind(message, figures=figures, result=result)


def _ends_bytes(result: Fit) -> int:
    """Bytes that every way to compute the network needs: all its inputs before it begins, or all its outputs at its
    end."""
    problem = order_problem(result.graph, TARGETS[result.target].memory)
    ends = sum(storage.nbytes for storage in problem.storages if storage.kept)
    return max(problem.floor_bytes, ends)


def _why_not_in_strips(result: Fit, searched: StripSearch, limit: int, needed: int, least: int) -> str:
    """The least found, and what is proven about less."""
    bound = format_bytes(searched.front.bound_bytes)
    beside = ", with what the runtime takes beside them" if least > _ends_bytes(result) else ""
    said = (
        f"{result.model} does not fit into {format_bytes(limit)} B: its inputs or outputs alone take "
        f"{format_bytes(least)} B{beside}"
        if least > limit
        else f"{result.model}: no plan found fits into {format_bytes(limit)} B, and whether one exists is not known"
    )
    if result.not_measured:
        said += f" (not measured: {result.not_measured})"
    return (
        f"{said}; the least found takes {format_bytes(needed)} B{_at_peak(result)}; no plan in this order that "
        f"computes segments in strips of rows has fewer than {bound} B live"
    )


def _why_not(result: Fit, limit: int, needed: int, least: int, *, searched: bool) -> str:
    """Why the network does not fit, or why that is not known, with the operator at the peak. `searched`: whether strips
    were, in the order that is planned."""
    if least > limit:
        strips = ", and no strips of rows lower the peak of this one" if searched else ""
        rewritten = " of the rewritten network" if result.rewrites else ""
        tensors = " for its tensors alone" if result.not_measured else ""
        return (
            f"{result.model} does not fit into {format_bytes(limit)} B: every order{rewritten} needs at least "
            f"{format_bytes(least)} B{strips}; {format_bytes(needed)} B are enough{tensors}{_at_peak(result)}"
        )
    if result.not_measured:
        return (
            f"{result.model}: its tensors take {format_bytes(needed)} B of the {format_bytes(limit)} B; what "
            f"{result.target} takes beside them is not known, and so it is not known whether it fits "
            f"({result.not_measured})"
        )
    if result.arena.proven and result.measured:
        beside = format_bytes(needed - result.arena.after)
        return (
            f"{result.model} takes {format_bytes(needed)} B in {result.measured.runtime}, limit {format_bytes(limit)} "
            f"B: the arena of {format_bytes(result.arena.after)} B is proven least, and no search lowers the {beside} "
            "B that the runtime takes beside it"
        )
    return (
        f"{result.model}: best found {format_bytes(needed)} B, bound {format_bytes(least)} B, limit "
        f"{format_bytes(limit)} B: not known whether it fits"
    )


def _at_peak(result: Fit) -> str:
    """The operator at the peak and the largest tensors that live there."""
    steps = result.together.order.steps if result.ships_plan else range(len(result.graph.ops))
    cause = peak_cause(result.graph, steps, result.memory if result.ships_plan else result.target)
    if cause is None:
        return ""
    op = result.graph.ops[cause.operator]
    largest = ", ".join(f"{shortened(name, 60)} ({format_bytes(nbytes)} B)" for name, nbytes in cause.live[:2])
    name = shortened(op.name, 60)
    return f"; the peak is at step {cause.step}, {kind_name(result.graph, op)} {name!r}, where {largest} live"


def _parts(result: Fit) -> dict[str, int | str]:
    """The measurement of the file that would be shipped, part by part, and where its peak is."""
    parts: dict[str, int | str] = {}
    if result.measured is not None:
        taken = result.measured.details.get(result.shipped, {})
        parts |= {part: taken[part] for part in ("head_bytes", "tail_bytes") if part in taken}
    steps = result.together.order.steps if result.ships_plan else range(len(result.graph.ops))
    cause = peak_cause(result.graph, steps, result.memory if result.ships_plan else result.target)
    if cause is not None:
        parts |= {"peak_step": cause.step, "peak_operator": result.graph.ops[cause.operator].name}
    return parts


def simulate_traffic(graph: Graph, result: Fit, on_chip: Sequence[int]) -> tuple[OnChip, ...]:
    """Traffic of the order that the runtime would execute anyway, and of the order that is shipped."""
    file_order = tuple(range(len(graph.ops)))
    after = (result.graph, result.together.order.steps) if result.ships_plan else (graph, file_order)
    lines = []
    for size in on_chip:
        one, other = (
            off_chip_traffic(item, steps, size, block_bytes=BLOCK_BYTES) for item, steps in ((graph, file_order), after)
        )
        lines.append(OnChip(size, one, other))
    return tuple(lines)
