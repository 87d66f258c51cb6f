"""Steps that a user can take next, with computed numbers, the best first: one list for the terminal, JSON and pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from downset.graph.core import Graph
from downset.graph.edit import WORKSPACE
from downset.memory.bounds import breadths
from downset.memory.liveness import lifetimes, order_problem, profile
from downset.memory.models import MemoryModel, memory_model
from downset.memory.overlaps import KERNELS
from downset.memory.records import Record
from downset.messages import Call, Message, Part, Setting, joined
from downset.reports.fit import stopped_by
from downset.reports.more_search import larger_limit, search_setting
from downset.results.fit import Fit, NextStep
from downset.results.plans import Arena, Evidence, Order, SharedObjects
from downset.results.sessions import SessionTaken
from downset.text import format_bytes, format_seconds, printable, shortened

__all__ = [
    "arena_next_steps",
    "listed",
    "next_steps",
    "objects_next_steps",
    "order_next_steps",
    "ranked",
    "remedy_lines",
    "step_lines",
    "steps_json",
    "without_small",
]

_LARGEST = 3
"""The most tensors at the peak for which a step is computed."""
_LISTED = 5
"""The most steps in a message."""
_LEAST_SHARE = 0.01
"""Where bytes are missing, steps that gain less than this share of them are left out."""
_QUARTER = ("tflm", "litert")
"""Targets that run int8 networks of a quarter of the bytes."""


def ranked(steps: Iterable[NextStep]) -> list[NextStep]:
    """The best first: steps that make the network fit, then those that gain most bytes, then most seconds."""
    return sorted(steps, key=lambda step: (not step.suffices, -(step.gained_bytes or 0), -(step.gained_s or 0.0)))


def listed(steps: Sequence[NextStep]) -> Message:
    """The first of the steps on one line, for a message that something does not fit."""
    return joined(
        "; ",
        (
            Message(f"{head}{': ' if head else ''}({number}) ", step.text.removesuffix("."))
            for number, (head, step) in enumerate(_headed(steps[:_LISTED]), start=1)
        ),
    )


def remedy_lines(steps: Sequence[NextStep]) -> list[str]:
    """The first of the steps, a line each, under headings that say what they are for."""
    lines: list[str] = []
    for number, (head, step) in enumerate(_headed(steps[:_LISTED]), start=1):
        lines += [f"{head}:"] if head else []
        lines.append(Message(f"  {number}. ", step.text))
    return lines


def _headed(steps: Sequence[NextStep]) -> Iterator[tuple[str, NextStep]]:
    """Each step with its heading; empty if the step before has the same one."""
    before: bool | None = None
    for step in steps:
        head = "to make it fit" if step.suffices else "to need less"
        yield ("" if step.suffices == before else head), step
        before = step.suffices


def step_lines(steps: Sequence[NextStep]) -> list[str]:
    """The steps as lines for a terminal, under a heading; empty if there are none."""
    if not steps:
        return []
    numbered = enumerate(steps, start=1)
    return ["next, the best first:", *(Message(f"  {number}. ", step.text) for number, step in numbered)]


def steps_json(steps: Sequence[NextStep]) -> list[dict[str, Any]]:
    """`next_steps` of the JSON forms."""
    return [
        {
            "text": step.text,
            "settings": [_setting_json(setting) for setting in Message(step.text).settings],
            "gained_bytes": step.gained_bytes,
            "gained_s": step.gained_s,
            "suffices": step.suffices,
        }
        for step in steps
    ]


def _setting_json(setting: Setting) -> dict[str, Any]:
    return {"name": setting.name, **({} if setting.value is ... else {"value": setting.value})}


def next_steps(fit: Fit) -> list[NextStep]:
    """Steps after a fit: ways to keep a limit that is exceeded, more search if the arena is not proven least, smaller
    tensors at the peak, another form of the file, other settings, or segments in strips. Where bytes are missing, none
    that gain next to nothing."""
    steps = fit.shipped_steps
    lacking = None  # bytes, if they are known
    if fit.ram is not None and fit.ram.state != "fits" and not fit.not_measured:
        lacking = max(fit.ram.needed_bytes - fit.ram.limit_bytes, 0) or None
    sure = [
        *_smaller_tensors(fit.graph, steps, fit.shipped_memory, original=fit.original),
        *_quantised(fit),
        *_overlaps(fit, steps),
        *_strips(fit),
        *([] if fit.in_strips is None else [fit.in_strips]),
    ]
    if lacking is not None:
        sure = [replace(step, suffices=(step.gained_bytes or 0) >= lacking) for step in sure]
    steps_by_gain = ranked(
        [
            *(fit.ram.remedies if fit.ram is not None else ()),
            *sure,
            *_further_search(fit, lacking),
            *_other_sessions(fit),
        ]
    )
    if lacking is not None:
        steps_by_gain = without_small(steps_by_gain, lacking)
    return [*_exact_int8(fit), *steps_by_gain]  # without its int8 form TFLite Micro does not run the file


def _further_search(fit: Fit, lacking: int | None) -> list[NextStep]:
    """The step to more search after a fit. Where a plan in strips keeps a limit there is none: it was chosen because
    it costs least."""
    within = fit.ram is not None and fit.ram.state == "fits" and any(one.kind == "row-wise" for one in fit.rewrites)
    setting = None
    if not within and not _searched_out(fit):
        setting = larger_limit(stopped_by(fit), fit.time_limit_s, fit.work_limit or 0)
    return _more_search(fit.arena.after, fit.arena.bound, setting, lacking=lacking)


def _searched_out(fit: Fit) -> bool:
    """Whether no search can find a smaller arena: the best plan has the bytes of the bound, though the runtime may take
    less memory in all for a file without it."""
    return fit.arena.proven or fit.together.arena.arena_bytes <= fit.arena.bound


def without_small(steps: Sequence[NextStep], lacking: int) -> list[NextStep]:
    """The steps without those that gain less than a hundredth of the bytes that are missing. Where only more memory is
    left, a line says so."""
    kept = [
        step
        for step in steps
        if step.suffices or step.gained_bytes is None or step.gained_bytes >= _LEAST_SHARE * lacking
    ]
    if len(kept) < len(steps) and all(step.suffices and not step.gained_bytes for step in kept):
        text = f"Nothing else that was computed gains {_LEAST_SHARE:.0%} of the {format_bytes(lacking)} B missing."
        kept.append(NextStep(text))
    return kept


def order_next_steps(
    order: Order, graph: Graph | None = None, *, longer: Part | None = None, memory: MemoryModel | None = None
) -> list[NextStep]:
    """Steps after an order: more search if its peak is not proven least, and smaller tensors at its peak. `longer`:
    what searches longer where another function than `plan_order` made the order. `memory`: its model, where that is not
    a built-in one."""
    evidence = order.evidence
    setting = longer or search_setting(evidence, "optimal")
    steps = [] if evidence.proven else _more_search(order.peak_bytes, int(evidence.bound), setting, what="peak")
    if graph is not None:
        steps += _smaller_tensors(graph, order.steps, memory or order.memory)
    return ranked(steps)


def arena_next_steps(arena: Arena, capacity_bytes: int | None = None) -> list[NextStep]:
    """Steps after a placement of records: more search, or smaller records at the step of the most live bytes."""
    evidence = arena.evidence
    steps = _more_placing(evidence, capacity_bytes)
    return ranked([*steps, *(_smaller_records(arena.records, arena.arena_bytes) if evidence.proven else ())])


def objects_next_steps(shared: SharedObjects) -> list[NextStep]:
    """Steps after sharing objects: more search, or offsets in one arena, which can need less."""
    live = max(_live(shared.records).values(), default=0)
    steps = _more_placing(shared.evidence, None)
    if live < shared.total_bytes:
        gained = shared.total_bytes - live
        steps.append(
            NextStep(
                Message(
                    "Place offsets in one arena (",
                    Call("plan_arena"),
                    f"): it needs {format_bytes(live)} B or more, at most {format_bytes(gained)} B less.",
                ),
                gained,
            )
        )
    return ranked(steps)


def _more_placing(evidence: Evidence, capacity_bytes: int | None) -> list[NextStep]:
    gap = int(evidence.value - evidence.bound)
    if evidence.proven or gap <= 0:
        return []
    searched = capacity_bytes is None or evidence.value > capacity_bytes
    setting = search_setting(evidence, "best") if searched else Setting("capacity_bytes", None)
    if setting is None:
        return []
    bound = format_bytes(evidence.bound)
    more = f": at most {format_bytes(gap)} B may be saved; the lower bound is {bound} B."
    return [NextStep(Message(*_how(setting), more), gap)]


def _how(setting: Part) -> tuple[Part, ...]:
    return f"Search {'longer' if 'limit' in str(setting) else 'for the least'} (", setting, ")"


def _more_search(
    value: int, bound: int, setting: Part | None, *, what: str = "arena", lacking: int | None = None
) -> list[NextStep]:
    """The step to more search by a setting; none without one or a gap. `lacking`: bytes that are missing; they are told
    in place of the bound."""
    gap = value - bound
    if setting is None or gap <= 0:
        return []
    beside = f"the bound is {format_bytes(bound)} B" if lacking is None else f"{format_bytes(lacking)} B are missing"
    most = f", at most {format_bytes(gap)} B may still be saved; {beside}" if bound > 0 else ""  # 0: no bound is known
    return [NextStep(Message(*_how(setting), f": the {what} is not proven least{most}."), gap)]


def _smaller_tensors(
    graph: Graph, steps: Sequence[int], memory: str | MemoryModel, *, original: Graph | None = None
) -> list[NextStep]:
    """Steps that halve a tensor at the peak, with the peak that this order then has. `original`: the network before
    rewriting; tensors that only the rewritten one has are left out, because users cannot change them."""
    needs = profile(order_problem(graph, memory), steps)
    if not needs:
        return []
    peak = max(needs)
    step = needs.index(peak)
    live = [record for record in lifetimes(graph, steps, memory).records if record.start <= step < record.stop]
    live = [record for record in live if not record.id.endswith(WORKSPACE)]  # what kernels hold is not the user's
    if original is not None:
        names = {tensor.name for tensor in original.tensors}
        live = [record for record in live if record.id in names]
    wishes = []
    for record in sorted(live, key=lambda one: -one.nbytes)[:_LARGEST]:
        half = record.nbytes // 2
        left = max(need - half if record.start <= step < record.stop else need for step, need in enumerate(needs))
        if left < peak:
            wishes.append(
                NextStep(
                    f"Halve tensor {shortened(printable(record.id), 60)} ({format_bytes(record.nbytes)} B; fewer "
                    f"channels or a smaller input): this order would peak at {format_bytes(left)} B, "
                    f"{format_bytes(peak - left)} B less (analytic).",
                    peak - left,
                )
            )
    return wishes


def _live(records: Sequence[Record], halved: Record | None = None) -> dict[int, int]:
    """The live bytes of records from each step on at which they change, with one record halved."""
    return dict(
        breadths([replace(one, nbytes=one.nbytes - one.nbytes // 2) if one is halved else one for one in records])
    )


def _smaller_records(records: Sequence[Record], arena_bytes: int) -> list[NextStep]:
    """Records at the step of the most live bytes, with the bytes that every placement gains if one is halved. Empty
    unless the arena is as small as the live bytes: otherwise a better placement might gain more."""
    live = _live(records)
    peak = max(live.values(), default=0)
    if peak != arena_bytes or not live:
        return []
    step = max(live, key=live.__getitem__)
    there = [record for record in records if any(start <= step < stop for start, stop in record.active())]
    steps = []
    for record in sorted(there, key=lambda one: -one.nbytes)[:_LARGEST]:
        left = max(_live(records, record).values())
        if left < peak:
            steps.append(
                NextStep(
                    f"Halve record {shortened(printable(record.id), 60)} ({format_bytes(record.nbytes)} B): the most "
                    f"bytes live at a step fall to {format_bytes(left)} B, {format_bytes(peak - left)} B less.",
                    peak - left,
                )
            )
    return steps


def _quantised(fit: Fit) -> list[NextStep]:
    kinds = {tensor.dtype for tensor in fit.graph.tensors if tensor.role == "activation" and tensor.nbytes}
    if fit.target not in _QUARTER or kinds != {"float32"}:
        return []
    gained = fit.arena.after - fit.arena.after // 4
    return [
        NextStep(
            f"Quantise to int8: the same plan takes about a quarter, {format_bytes(fit.arena.after // 4)} B (analytic; "
            "it changes results).",
            gained,
        )
    ]


def _exact_int8(fit: Fit) -> list[NextStep]:
    """The step to the exact int8 form of a uint8 file, which TFLite Micro runs, if it has one."""
    if not fit.int8_form:
        return []
    return [
        NextStep(
            Message(
                "Fit the exact int8 form (",
                Setting("int8", True),
                "): TFLite Micro runs and measures it; its tensors take the same "
                f"{format_bytes(fit.arena.after)} B, its inputs and outputs are less by 128.",
            )
        )
    ]


def _overlaps(fit: Fit, steps: Sequence[int]) -> list[NextStep]:
    """The step to results that overlap inputs, as the kernels of a library allow: the peak of the same order under its
    memory model."""
    if fit.target != "tflm" or fit.kernels is not None or not fit.ships_plan:
        return []
    by_peak: dict[int, list[str]] = {}
    for kernels in KERNELS:
        left = max(profile(order_problem(fit.graph, memory_model(f"tflm-{kernels}")), steps), default=0)
        by_peak.setdefault(left, []).append(kernels)
    return [
        NextStep(
            Message(
                "Let results lie over inputs (",
                joined(" or ", (Setting("kernels", library) for library in libraries)),
                f"): this order would peak at {format_bytes(left)} B, {format_bytes(fit.peak.after - left)} B less "
                "(analytic), and another plan may need less still; the file is then right with the named kernels only.",
            ),
            fit.peak.after - left,
        )
        for left, libraries in by_peak.items()
        if left < fit.peak.after
    ]


def _other_sessions(fit: Fit) -> list[NextStep]:
    """Steps to files and settings that were measured to be faster than what is shipped, for more bytes; where there is
    a limit, only to those that keep it at every load. Each names a `slower` that leaves out every measured candidate
    that holds less, so that `fit` ships the one that is named. None that holds about as much as a faster one."""
    shipped = fit.taken
    if fit.measured is None or shipped is None or shipped.latency is None:
        return []
    steps: list[NextStep] = []
    front = sorted(fit.measured.front, key=lambda row: math.inf if row.latency is None else row.latency.run_s)
    faster_bytes = math.inf  # what the faster ones hold that are offered
    for row in front:
        if row.latency is None or _same(row, shipped) or row.latency.run_s >= shipped.latency.run_s:
            continue
        if fit.ram is not None and (row.held_bytes > fit.ram.limit_bytes or not row.settings.follows_file):
            continue
        slower = max(math.ceil(100 * row.latency.ratio) / 100, 1.0)
        smaller = [shipped, *(one for one in front if one.held_bytes < row.held_bytes)]
        if not all(_left_out(one, slower) for one in smaller):
            continue
        if row.held_bytes > faster_bytes * (1 - _LEAST_SHARE):
            continue
        faster_bytes = row.held_bytes
        gained = shipped.latency.run_s - row.latency.run_s
        more = row.held_bytes - shipped.held_bytes
        beside = f"{format_bytes(abs(more))} B {'more' if more > 0 else 'fewer'}" if more else "as much"
        differ = "" if row.settings.follows_file else "; other loads may hold more"
        steps.append(
            NextStep(
                Message(
                    "Where time counts more, leave out what is slow (",
                    Setting("slower", slower),
                    f"): {row.file}, {row.settings.name}, runs in {format_seconds(row.latency.run_s)}, "
                    f"{format_seconds(gained)} less, and its arena holds {format_bytes(row.held_bytes)} B, "
                    f"{beside} (measured{differ}).",
                ),
                gained_s=gained,
            )
        )
    return steps


def _left_out(row: SessionTaken, slower: float) -> bool:
    """Whether `slower` leaves the candidate out: it is known to be slower."""
    return row.latency is not None and row.latency.ratio_low > slower


def _same(one: SessionTaken, other: SessionTaken) -> bool:
    return (one.file, one.settings.name) == (other.file, other.settings.name)


def _strips(fit: Fit) -> list[NextStep]:
    """The step to the plan in strips that was measured to take least, if it takes less than what is shipped."""
    totals = [(row.measured.get("total_bytes", row.arena_bytes), row) for row in fit.front if not row.ships]
    shipped = fit.arena.after
    if fit.measured is not None and fit.front and all(row.measured for row in fit.front):
        shipped = fit.measured.after
    if not totals:
        return []
    nbytes, row = min(totals, key=lambda item: (item[0], item[1].extra_macs))
    if nbytes >= shipped:
        return []
    how = "measured" if row.measured else "planned"
    return [
        NextStep(
            Message(
                "Compute segments in strips of rows (",
                Setting("ram_bytes", nbytes),
                f"): {format_bytes(nbytes)} B, {format_bytes(shipped - nbytes)} B less, for {row.extra_share:.1%} more "
                f"multiply-adds ({how}).",
            ),
            shipped - nbytes,
        )
    ]
