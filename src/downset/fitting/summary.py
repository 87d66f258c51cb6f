"""What `fit` found, in figures, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from downset.errors import InfeasibleError, LimitReached
from downset.fitting.candidates import Candidate, Job, Planned
from downset.graph.core import Graph
from downset.memory.liveness import order_problem, peak_bytes
from downset.memory.traffic import off_chip_traffic
from downset.plans import Arena
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
        missed = f"a plan of {format_bytes(arena.arena_bytes)} B exists, but the runtime took less memory in all for "
        notes = [*notes, f"{missed}the {chosen.name} file"]
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
    )


def with_sessions(
    result: Fit, chosen: Candidate, rows: tuple[SessionTaken, ...], front: tuple[SessionTaken, ...]
) -> Fit:
    """The same with what sessions took, and the settings of the one that is shipped."""
    if result.measured is None:
        return result
    return replace(result, session=chosen.settings, measured=replace(result.measured, rows=rows, front=front))


def check_ram(result: Fit, ram_bytes: int | None) -> None:
    """Judge the memory limit by what the runtime took where it was measured, by the arena elsewhere."""
    if ram_bytes is None:
        return
    needed = result.measured.after if result.measured else result.arena.after
    if needed <= ram_bytes:
        return
    overhead = needed - result.arena.after if result.measured and TARGETS[result.target].fixed_overhead else 0
    least = result.arena.bound + max(overhead, 0)
    if least > ram_bytes:
        raise InfeasibleError(
            f"{result.model} cannot run in {format_bytes(ram_bytes)} B: every order"
            f"{' of the rewritten network' if result.rewrites else ''} needs at least "
            f"{format_bytes(least)} B; {format_bytes(needed)} B would do"
        )
    if result.arena.proven and result.measured:
        beside = format_bytes(needed - result.arena.after)
        raise LimitReached(
            f"{result.model} takes {format_bytes(needed)} B in {result.measured.runtime}, limit "
            f"{format_bytes(ram_bytes)} B: the arena of {format_bytes(result.arena.after)} B is proven least, and no "
            f"search lowers the {beside} B that the runtime takes beside it"
        )
    raise LimitReached(
        f"{result.model}: best found {format_bytes(needed)} B, bound {format_bytes(least)} B, limit "
        f"{format_bytes(ram_bytes)} B: not known whether it fits; a longer --time-limit may tell"
    )


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
