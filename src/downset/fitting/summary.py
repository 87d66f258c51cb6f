"""The figures of a fit, and whether the network fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from downset.errors import InfeasibleError, LimitReached
from downset.fitting.candidates import NOT_MEASURED, Candidate, Job, PlannedGraph
from downset.fitting.loads import other_loads, within_in_some_loads
from downset.fitting.strips import StripSearch, remedies
from downset.formats.kernel_scratch import kernel_scratch
from downset.graph.core import Graph
from downset.graph.kinds import kind_of
from downset.memory.liveness import order_problem, peak_bytes
from downset.memory.traffic import off_chip_traffic
from downset.messages import Message, Setting, joined
from downset.reports.fit import peak_lines
from downset.reports.naming import kind_name
from downset.reports.next_steps import listed, next_steps, remedy_lines
from downset.reports.peak import peak_cause
from downset.results.fit import Comparison, Figure, Fit, Measured, NextStep, OnChip, RamVerdict
from downset.results.plans import Arena
from downset.results.sessions import SessionTaken
from downset.runtimes.targets import TARGETS
from downset.text import format_bytes, shortened

__all__ = ["BLOCK_BYTES", "check_ram", "early_verdict", "simulate_traffic", "summarise", "with_sessions"]

BLOCK_BYTES = 1024
"""The size of a cache block in the simulation of off-chip traffic, in bytes."""


def summarise(
    job: Job,
    plan: PlannedGraph,
    before: Arena,
    candidates: Sequence[Candidate],
    chosen: Candidate,
    outputs: Comparison,
    notes: Sequence[str],
) -> Fit:
    """The result of a fit for the candidate `chosen`; the first of the candidates is the original."""
    graph, together = plan.graph, plan.together
    if chosen.plan is not None:
        graph, together = chosen.plan.graph, chosen.plan.together
    order, arena = together.order, together.arena
    kept = chosen.plan is None
    # Nothing overlaps in the original, which the runtime places.
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
        time_limit_s=job.time_limit_s,
        work_limit=job.work_limit,
    )


def with_sessions(
    result: Fit, chosen: Candidate, rows: tuple[SessionTaken, ...], front: tuple[SessionTaken, ...]
) -> Fit:
    """The result with the measurements of sessions, and the settings of the shipped one."""
    if result.measured is None:
        return result
    return replace(result, session=chosen.settings, measured=replace(result.measured, rows=rows, front=front))


def _bodies(graph: Graph) -> list[str]:
    """A note for networks with operators that run bodies (If, Loop, Scan)."""
    running = _running_bodies(graph)
    if not running:
        return []
    return [
        f"{running}: the memory of a body while it runs is in no figure of the plan, and the proof does not cover it"
    ]


def _running_bodies(graph: Graph) -> str:
    """The first operator that runs bodies, and how many more there are; empty where there is none."""
    running = [op for op in graph.ops if kind_of(op.kind).category == "control flow"]
    if not running:
        return ""
    others = f" and {len(running) - 1} more" if len(running) > 1 else ""
    return f"{running[0].kind} {shortened(running[0].name, 60)!r}{others}"


def _why_not_measured(job: Job, measured: Measured | None, notes: Sequence[str]) -> str:
    if measured is not None or not job.target.measures:
        return ""
    return next((note.removeprefix(NOT_MEASURED) for note in notes if note.startswith(NOT_MEASURED)), "")


def early_verdict(before: Arena, ram_bytes: int, refused: Sequence[str]) -> str:
    """A line about the possible verdicts of `check_ram`, before anything is searched, where the runtime does not run
    the original. `before`: the arena of the original as placed. No shipped file has a larger arena, so if it is within
    the limit, so is the bound. `refused`: notes that say why the original was not run."""
    verdict = '"not known" (exit 6)'
    if before.arena_bytes > ram_bytes:
        verdict += ' or "does not fit" (exit 3)'
    reason = joined("; ", (note.removeprefix(NOT_MEASURED) for note in refused))
    return Message(f"the verdict about {format_bytes(ram_bytes)} B will be {verdict}: ", reason, "; planning goes on")


def check_ram(result: Fit, ram_bytes: int | None, searched: StripSearch | None = None) -> Fit:
    """The result with its verdict about the memory limit. It is judged by the measured bytes, or by the arena where the
    target's runtime reports nothing. Raises InfeasibleError where it is proven not to fit, and LimitReached where that
    is not known, as for networks whose values choose which bodies run; both hold the result. `searched`: the search for
    strips in which it did not fit; bounds for orders do
    not hold for strips."""
    if ram_bytes is None:
        return result
    scratch = kernel_scratch(result, result.kernels).added_bytes
    taken = result.measured.after if result.measured else result.arena.after
    needed = taken + scratch
    overhead = taken - result.arena.after if result.measured and TARGETS[result.target].fixed_overhead else 0
    # The bodies' tensors may be ordered, too; and the scratch of named kernels is an upper bound, which proves nothing.
    if overhead and result.measured and (_running_bodies(result.graph) or result.kernels not in (None, "reference")):
        overhead = result.measured.details[result.shipped].get("tail_bytes", 0)
    in_strips = searched is not None and searched.may_be_lower
    if in_strips and result.measured:
        overhead = min(overhead, result.measured.before - result.arena.before)  # strips never take less overhead
    least = (_ends_bytes(result) if in_strips else result.arena.bound) + max(overhead, 0)
    beyond = _beyond(result)
    if needed <= ram_bytes and not beyond:
        return replace(result, ram=RamVerdict("fits", ram_bytes, needed, least, scratch_bytes=scratch))
    state: Literal["does not fit", "not known"] = "does not fit" if least > ram_bytes else "not known"
    ways = []
    if not beyond:
        give = Message(f"Give it {format_bytes(needed)} B of RAM (", Setting("ram_bytes", needed), ").")
        ways.append(NextStep(give, 0, suffices=True))
    if beyond and needed > ram_bytes:
        ways = [NextStep(f"Give it {format_bytes(needed)} B of RAM{beyond}.", 0)]
    if ram_bytes < 1024 and needed <= 1024 * ram_bytes and not beyond:
        meant = f" if KB were meant: {ram_bytes} are bytes."
        ways.append(NextStep(Message("Write ", Setting("ram_bytes", 1024 * ram_bytes), meant), 0, suffices=True))
    if beyond and needed <= ram_bytes:
        said = _why_not_known(result, ram_bytes, needed)
    elif searched is not None and in_strips:
        said = _why_not_in_strips(result, searched, ram_bytes, needed, least)
        ways += remedies(searched, needed, ram_bytes)
    else:
        said = _why_not(result, ram_bytes, needed, least, searched=searched is not None)
    if state == "not known":
        said += within_in_some_loads(result, ram_bytes)
    message = joined("; ", [*said, *_at_peak(result)])
    least_of: Literal["every order", "inputs or outputs alone"] = (
        "inputs or outputs alone" if in_strips else "every order"
    )
    in_order = _least_in_order(result, searched, least) if searched is not None and in_strips else None
    verdict = RamVerdict(state, ram_bytes, needed, least, message, least_of, tuple(ways), scratch, in_order)
    result = replace(result, ram=verdict, output_path=None)
    steps = next_steps(result)
    message = Message(message, "; ", listed(steps))
    lines = [*said, *peak_lines(result), *remedy_lines(steps)]
    figures = {"limit_bytes": ram_bytes, "least_bytes": least, "best_bytes": needed, **_parts(result)}
    kind = InfeasibleError if state == "does not fit" else LimitReached
    raise kind(message, figures=figures, result=result, lines=lines)


def _beyond(result: Fit) -> str:
    """Tells what the bytes of a verdict leave out, as the end of a sentence; empty where they are all that it needs."""
    if result.not_measured:
        return f" for its tensors alone; {result.target} takes more, which is not known"
    if others := other_loads(result):
        return f" as measured; {others}"
    # TFLite Micro gives the tensors of all bodies their places before it runs anything.
    if result.target != "tflm" and (bodies := _running_bodies(result.graph)):
        runs = "the inputs that were run" if result.measured else "what runs in every case"
        return f" for {runs} alone; {bodies} runs what values choose, and other values may take more"
    if unknown := kernel_scratch(result, result.kernels).unknown:
        others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        asks = shortened(unknown[0], 60) + others
        return f" without what the {result.kernels} kernels take for {asks}, whose formula is not known"
    return ""


def _ends_bytes(result: Fit) -> int:
    """Bytes that every way to compute the network needs: all inputs before it begins, or all outputs at its end."""
    problem = order_problem(result.graph, TARGETS[result.target].memory)
    ends = sum(storage.nbytes for storage in problem.storages if storage.kept)
    return max(problem.floor_bytes, ends)


def _least_in_order(result: Fit, searched: StripSearch, least: int) -> int:
    """Bytes that every plan in the planned order needs, also in strips, with what the runtime takes in addition."""
    return searched.front.bound_bytes + least - _ends_bytes(result)


def _why_not_in_strips(result: Fit, searched: StripSearch, limit: int, needed: int, least: int) -> list[str]:
    """The lines for a network that does not fit in strips: the verdict, with the bound of every plan where that proves
    it, else the bound of plans in this order; then the least bytes found. All include what the runtime
    takes in addition."""
    beside_bytes = least - _ends_bytes(result)
    beside = ", with what the runtime takes in addition" if beside_bytes else ""
    in_order = _least_in_order(result, searched, least)
    cost = next((f"; {note}" for note in result.notes if note.startswith("in strips the network computes")), "")
    bounds = []
    if least <= limit and in_order < needed:
        only = ", so that only another order may fit" if in_order > limit else ""
        bounds = [f"every plan in this order, also in strips of rows, takes at least {format_bytes(in_order)} B{only}"]
    said = (
        f"{result.model} does not fit into {format_bytes(limit)} B: its inputs or outputs alone take "
        f"{format_bytes(least)} B{beside}"
        if least > limit
        else f"{result.model}: no plan found fits into {format_bytes(limit)} B, and whether one exists is not known"
    )
    return [
        said,
        *([f"not measured: {result.not_measured}"] if result.not_measured else []),
        *bounds,
        f"the least found takes {format_bytes(needed)} B, {format_bytes(needed - limit)} B above the limit{cost}"
        if needed > limit
        else f"the least found takes {format_bytes(needed)} B{cost}",
    ]


def _why_not_known(result: Fit, limit: int, needed: int) -> list[str]:
    """The lines for a network whose known bytes are within the limit, and that takes others, which are not known."""
    said = [f"{result.model}: not known whether it fits into {format_bytes(limit)} B"]
    if not result.not_measured:
        return [*said, f"it takes {format_bytes(needed)} B{_beyond(result)}"]
    return [
        *said,
        f"its tensors take {format_bytes(needed)} B; what {result.target} takes in addition is not known",
        f"not measured: {result.not_measured}",
    ]


def _why_not(result: Fit, limit: int, needed: int, least: int, *, searched: bool) -> list[str]:
    """The lines on why the network does not fit, or why that is not known; the verdict is first. `searched`: whether
    strips were searched in the planned order."""
    rewritten, bodies = " of the rewritten network" if result.rewrites else "", _running_bodies(result.graph)
    if least > limit:
        strips = ["no strips of rows lower the peak of this order"] if searched else []
        return [
            f"{result.model} does not fit into {format_bytes(limit)} B: every order{rewritten} needs at least "
            f"{format_bytes(least)} B",
            *strips,
            f"{format_bytes(needed)} B are enough{_beyond(result)}",
        ]
    if result.not_measured:
        return _why_not_known(result, limit, needed)
    if result.arena.proven and result.measured:
        return [
            f"{result.model}: not known whether it fits into {format_bytes(limit)} B",
            f"it takes {format_bytes(needed)} B in {result.measured.runtime}",
            f"the arena of {format_bytes(result.arena.after)} B is proven least",
            f"no search lowers the {format_bytes(needed - result.arena.after)} B that the runtime takes in addition"
            + (f", in which the bodies of {bodies} have their tensors" if bodies else ""),
        ]
    return [
        f"{result.model}: not known whether it fits into {format_bytes(limit)} B",
        f"every order{rewritten} takes at least {format_bytes(least)} B",
        f"the least found takes {format_bytes(needed)} B",
    ]


def _at_peak(result: Fit) -> list[str]:
    """Lines about the operator at the peak and the largest tensors that are live there."""
    steps = result.together.order.steps if result.ships_plan else range(len(result.graph.ops))
    cause = peak_cause(result.graph, steps, result.memory if result.ships_plan else result.target)
    if cause is None:
        return []
    op = result.graph.ops[cause.operator]
    largest = ", ".join(f"{shortened(name, 60)} ({format_bytes(nbytes)} B)" for name, nbytes in cause.live[:2])
    name = shortened(op.name, 60)
    return [f"the peak is at step {cause.step}, {kind_name(result.graph, op)} {name!r}, where {largest} live"]


def _parts(result: Fit) -> dict[str, int | str]:
    """The measured parts of the file that would be shipped, and the step and operator of its peak."""
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
    """Traffic of the original's order and of the shipped order, for each size of on-chip memory."""
    file_order = tuple(range(len(graph.ops)))
    after = (result.graph, result.together.order.steps) if result.ships_plan else (graph, file_order)
    lines = []
    for size in on_chip:
        one, other = (
            off_chip_traffic(item, steps, size, block_bytes=BLOCK_BYTES) for item, steps in ((graph, file_order), after)
        )
        lines.append(OnChip(size, one, other))
    return tuple(lines)
