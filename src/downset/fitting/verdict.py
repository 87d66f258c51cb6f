"""Judges whether the network fits a memory limit, by what was measured or else by its arena.

A session that runs the nodes in the file's order asks its arena for the same bytes in the same sequence at every load.
So a first region that was large enough is always large enough. Where ONNX Runtime orders nodes by itself, nothing that
was measured holds at another load. Runs of the written program never supply the number; they can refute it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from downset.errors import InfeasibleError, LimitReached
from downset.fitting.job import Job
from downset.fitting.strip_notes import remedies
from downset.fitting.strips import StripSearch
from downset.formats.kernel_scratch import file_needs, kernel_scratch
from downset.graph.core import Graph
from downset.graph.kinds import kind_of
from downset.memory.kernel_libraries import kernel_library
from downset.memory.kernel_needs import kernel_needs
from downset.memory.liveness import order_problem
from downset.memory.models import memory_model
from downset.messages import Message, Setting, joined
from downset.reports.fit_steps import fit_next_steps
from downset.reports.next_steps import listed, remedy_lines
from downset.reports.peak import PeakCause, peak_cause, peak_lines, peak_words
from downset.results.fit import Fit, RamVerdict
from downset.results.next_step import NextStep
from downset.results.plans import Arena
from downset.runtimes.targets import TARGETS
from downset.text import format_bytes, shortened

__all__ = ["check_process", "check_ram", "early_verdict", "running_bodies", "within_in_some_loads"]


def early_verdict(before: Arena | None, ram_bytes: int, reason: str) -> str:
    """A line about the possible verdicts of `check_ram`, before anything is searched, where the runtime does not run
    the original. `before`: the arena of the original as placed. No shipped file has a larger arena, so if it is within
    the limit, so is the bound; None where the limit is that of a process, of which nothing is proven. `reason`: why the
    original was not run."""
    verdict = '"not known" (exit 6)'
    if before is not None and before.arena_bytes > ram_bytes:
        verdict += ' or "does not fit" (exit 3)'
    return Message(f"the verdict about {format_bytes(ram_bytes)} B will be {verdict}: ", reason, "; planning goes on")


def check_ram(result: Fit, limit: Setting | None, searched: StripSearch | None = None) -> Fit:
    """The result with its verdict about the memory limit. It is judged by the measured bytes, or by the arena where the
    target's runtime reports nothing. Raises InfeasibleError where it is proven not to fit, and LimitReached where that
    is not known, as for networks whose values choose which bodies run; both hold the result. `searched`: the search for
    strips in which it did not fit; bounds for orders do
    not hold for strips."""
    if limit is None:
        return result
    ram_bytes, of_arena = int(limit.value), limit.name == "arena_bytes"  # type: ignore[call-overload]
    scratch = result.measured.kernel_bytes[1] if result.measured else _unmeasured_scratch(result)
    taken = result.measured.after if result.measured else result.arena.after
    needed = taken + scratch
    overhead = taken - result.arena.after if result.measured and TARGETS[result.target].fixed_overhead else 0
    # The bodies' tensors may be ordered, too; and the scratch of named kernels is an upper bound, which proves nothing.
    if overhead and result.measured and (running_bodies(result.graph) or result.kernels not in (None, "reference")):
        overhead = result.measured.details[result.shipped].get("tail_bytes", 0)
    in_strips = any(one.kind == "row-wise" for one in result.rewrites)
    in_strips = in_strips or (searched is not None and searched.may_be_lower)
    if in_strips and result.measured:
        before = result.measured.needed[0] - result.arena.before
        overhead = min(overhead, before)  # strips never take less overhead
    least = (_ends_bytes(result) if in_strips else _tensors_bound(result)) + max(overhead, 0)
    beyond = _beyond(result)
    if needed <= ram_bytes and not beyond:
        fits = RamVerdict("fits", ram_bytes, needed, least, scratch_bytes=scratch, setting=limit.name)
        return replace(result, ram=fits)
    state: Literal["does not fit", "not known"] = "does not fit" if least > ram_bytes else "not known"
    ways = []
    if not beyond:
        what = "an arena of " if of_arena else ""
        room = "" if of_arena else " of RAM"
        give = Message(f"Give it {what}{format_bytes(needed)} B{room} (", Setting(limit.name, needed), ").")
        ways.append(NextStep(give, 0, suffices=True))
    if result.not_in_tflm:
        judged = ": the limit is then held to what LiteRT takes on this host."
        ways.append(NextStep(Message("Name the target (", Setting("target", result.target), ")", judged)))
    elif beyond and needed > ram_bytes:
        ways = [NextStep(f"Give it {format_bytes(needed)} B of RAM{beyond}.", 0)]
    if ram_bytes < 1024 and needed <= 1024 * ram_bytes and not beyond:
        meant = f" if KB were meant: {ram_bytes} are bytes."
        ways.append(NextStep(Message("Write ", Setting(limit.name, 1024 * ram_bytes), meant), 0, suffices=True))
    if beyond and needed <= ram_bytes:
        lines = _why_not_known(result, ram_bytes, needed)
    elif searched is not None and in_strips:
        lines = _why_not_in_strips(result, searched, ram_bytes, needed, least)
        ways += remedies(searched, needed, ram_bytes)
    else:
        lines = _why_not(result, ram_bytes, needed, least, searched=searched is not None)
    if state == "not known":
        lines += within_in_some_loads(result, ram_bytes)
    cause = peak_cause(result.graph, result.shipped_steps, result.shipped_memory)
    message = joined("; ", [*lines, *peak_words(cause)])
    least_of: Literal["every order", "inputs or outputs alone"] = (
        "inputs or outputs alone" if in_strips else "every order"
    )
    in_order = _least_in_order(result, searched, least) if searched is not None and in_strips else None
    verdict = RamVerdict(state, ram_bytes, needed, least, message, least_of, tuple(ways), scratch, in_order, limit.name)
    result = replace(result, ram=verdict, output_path=None)
    steps = fit_next_steps(result)
    message = Message(message, "; ", listed(steps))
    lines = [*lines, *peak_lines(cause, most=3), *remedy_lines(steps)]
    figures = {"limit_bytes": ram_bytes, "least_bytes": least, "best_bytes": needed, **_parts(result, cause)}
    kind = InfeasibleError if state == "does not fit" else LimitReached
    raise kind(message, figures=figures, result=result, lines=lines)


def check_process(job: Job, result: Fit) -> Fit:
    """The result with its verdict about the growth of the process, where a session has such a limit. Raises
    LimitReached, with the result, where the process grew by more, or was not measured."""
    limit = job.options.ram_bytes
    if job.target.sessions is None or limit is None:
        return result
    bodies = running_bodies(result.graph)
    if result.process is None or bodies:
        reason = result.not_measured or "the growth of the process was not measured"
        if result.process is not None:
            reason = f"it was measured for the inputs that were run alone; {bodies} runs what values choose"
        verdict = RamVerdict("not known", limit, 0, 0, reason, of="process")
        message = Message(f"{result.model}: not known whether it fits into {format_bytes(limit)} B: ", reason)
        raise LimitReached(message, result=replace(result, ram=verdict, output_path=None))
    needed = result.process.shipped.growth.most_bytes
    if needed <= limit:
        return replace(result, ram=RamVerdict("fits", limit, needed, 0, of="process"))
    reason = (
        f"{result.model}: no file and settings were found by which a process grows by no more than "
        f"{format_bytes(limit)} B; the least was {format_bytes(needed)} B (measured)"
    )
    ways = (
        NextStep(Message(f"Give it {format_bytes(needed)} B (", Setting("ram_bytes", needed), ")."), 0, suffices=True),
    )
    verdict = RamVerdict("not known", limit, needed, 0, reason, remedies=ways, of="process")
    result = replace(result, ram=verdict, output_path=None)
    steps = fit_next_steps(result)
    figures = {"limit_bytes": limit, "least_bytes": 0, "best_bytes": needed}
    message, lines = Message(reason, "; ", listed(steps)), [reason, *remedy_lines(steps)]
    raise LimitReached(message, figures=figures, result=result, lines=lines)


def running_bodies(graph: Graph) -> str:
    """The first operator that runs bodies, and how many more there are; empty where there is none."""
    running = [op for op in graph.ops if kind_of(op.kind).category == "control flow"]
    if not running:
        return ""
    others = f" and {len(running) - 1} more" if len(running) > 1 else ""
    return f"{running[0].kind} {shortened(running[0].name, 60)!r}{others}"


def _beyond(result: Fit) -> str:
    """Tells what the bytes of a verdict leave out, as the end of a sentence; empty where they are all that it needs."""
    if result.not_measured:
        return f" for its tensors alone; {result.target} takes more, which is not known"
    if result.not_in_tflm:
        return Message(" in LiteRT on this host; what a microcontroller takes is not known: ", result.not_in_tflm)
    if others := _other_loads(result):
        return f" as measured; {others}"
    # TFLite Micro gives the tensors of all bodies their places before it runs anything.
    if result.target != "tflm" and (bodies := running_bodies(result.graph)):
        runs = "the inputs that were run" if result.measured else "what runs in every case"
        return f" for {runs} alone; {bodies} runs what values choose, and other values may take more"
    if unknown := file_needs(result.output_path or result.model, result.graph, result.kernels).unknown:
        others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        asks = shortened(unknown[0], 60) + others
        return f" without what the {result.kernels} kernels take for {asks}, whose formula is not known"
    return ""


def _tensors_bound(result: Fit) -> int:
    """The bound of the plan's bytes. Where the scratch in the plan is an upper bound, as for CMSIS-NN and for the most
    of several versions, the kernels may take none."""
    kernels = result.kernels
    if kernels is None or not memory_model(result.memory).scratch or kernel_library(kernels).exact:
        return result.arena.bound
    return max(0, result.arena.bound - kernel_needs(result.graph, kernels).scratch_bytes)


def _unmeasured_scratch(result: Fit) -> int:
    """The bytes that named kernels take beyond the arena, where nothing is measured."""
    taken = kernel_scratch(result, result.kernels)
    return taken.above_bytes + taken.kept_bytes


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
        *([Message("not measured: ", result.not_measured)] if result.not_measured else []),
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
        Message("not measured: ", result.not_measured),
    ]


def _why_not(result: Fit, limit: int, needed: int, least: int, *, searched: bool) -> list[str]:
    """The lines on why the network does not fit, or why that is not known; the verdict is first. `searched`: whether
    strips were searched in the planned order."""
    rewritten, bodies = " of the rewritten network" if result.rewrites else "", running_bodies(result.graph)
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


def _parts(result: Fit, cause: PeakCause | None) -> dict[str, int | str]:
    """The measured parts of the file that would be shipped, and the step and operator of its peak."""
    parts: dict[str, int | str] = {}
    if result.measured is not None:
        taken = result.measured.details.get(result.shipped, {})
        parts |= {part: taken[part] for part in ("head_bytes", "tail_bytes") if part in taken}
    if cause is not None:
        parts |= {"peak_step": cause.step, "peak_operator": cause.operator}
    return parts


def _other_loads(result: Fit) -> str:
    """Why the measured bytes of a session may not be those of every load; empty where they are, and where no session
    was measured."""
    if result.session is None or result.measured is None:
        return ""
    loads = result.measured.loads
    if loads is None:
        return "the program that opens it did not run"
    if loads.at_every_load:
        return ""
    said = f"{loads.processes} fresh processes that opened the file held up to {format_bytes(loads.most_bytes)} B"
    if result.session.follows_file:
        return f"{said}, others {format_bytes(loads.least_bytes)}"
    return f"{said}, and by the settings {result.session.name!r} ONNX Runtime orders nodes again at every load"


def within_in_some_loads(result: Fit, limit_bytes: int) -> list[str]:
    """A line for a session that held no more than the limit when it was measured, though other loads may hold more;
    none where there is none."""
    front = result.measured.front if result.measured is not None else ()
    rows = [row for row in front if not row.settings.follows_file and row.held_bytes <= limit_bytes]
    if not rows:
        return []
    row = min(rows, key=lambda row: row.held_bytes)
    return [
        f"{row.file}, {row.settings.name}, held {format_bytes(row.held_bytes)} B where measured, but other loads "
        "may hold more"
    ]
