"""Steps that a user can take after a fit, with computed numbers, the best first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from downset.memory.liveness import order_problem, profile
from downset.memory.models import memory_model
from downset.memory.overlaps import KERNELS
from downset.messages import Message, Setting, joined
from downset.reports.fit_sentences import stopped_by
from downset.reports.more_search import larger_limit
from downset.reports.next_steps import more_search, ranked, smaller_tensors
from downset.results.fit import Fit
from downset.results.next_step import NextStep
from downset.results.sessions import SessionTaken
from downset.text import format_bytes, format_seconds

__all__ = ["fit_next_steps", "without_small"]

_LEAST_SHARE = 0.01
"""Where bytes are missing, steps that gain less than this share of them are left out."""
_QUARTER = ("tflm", "litert")
"""Targets that run int8 networks of a quarter of the bytes."""


def fit_next_steps(fit: Fit) -> list[NextStep]:
    """Steps after a fit: ways to keep a limit that is exceeded, more search if the arena is not proven least, smaller
    tensors at the peak, another form of the file, other settings, or segments in strips. Where bytes are missing, none
    that gain next to nothing."""
    steps = fit.shipped_steps
    missing_bytes = None  # bytes, if they are known
    if fit.ram is not None and fit.ram.state != "fits" and not fit.not_measured:
        missing_bytes = max(fit.ram.needed_bytes - fit.ram.limit_bytes, 0) or None
    sure = [
        *smaller_tensors(fit.graph, steps, fit.shipped_memory, original=fit.original),
        *_quantised(fit),
        *_overlaps(fit, steps),
        *_strips(fit),
        *([] if fit.in_strips is None else [fit.in_strips]),
    ]
    if missing_bytes is not None:
        sure = [replace(step, suffices=(step.gained_bytes or 0) >= missing_bytes) for step in sure]
    steps_by_gain = ranked(
        [
            *(fit.ram.remedies if fit.ram is not None else ()),
            *sure,
            *_further_search(fit, missing_bytes),
            *_other_sessions(fit),
            *_smaller_session(fit),
        ]
    )
    if missing_bytes is not None:
        steps_by_gain = without_small(steps_by_gain, missing_bytes)
    return [*_exact_int8(fit), *steps_by_gain]  # without its int8 form TFLite Micro does not run the file


def _further_search(fit: Fit, missing_bytes: int | None) -> list[NextStep]:
    """The step to more search after a fit. Where a plan in strips keeps a limit there is none: it was chosen because
    it costs least."""
    within = fit.ram is not None and fit.ram.state == "fits" and any(one.kind == "row-wise" for one in fit.rewrites)
    setting = None
    if not within and not _searched_out(fit):
        setting = larger_limit(stopped_by(fit), fit.time_limit_s, fit.work_limit or 0)
    return more_search(fit.arena.after, fit.arena.bound, setting, missing_bytes=missing_bytes)


def _searched_out(fit: Fit) -> bool:
    """Whether no search can find a smaller arena: the best plan has the bytes of the bound, though the runtime may take
    less memory in all for a file without it."""
    return fit.arena.proven or fit.together.arena.arena_bytes <= fit.arena.bound


def without_small(steps: Sequence[NextStep], missing_bytes: int) -> list[NextStep]:
    """The steps without those that gain less than a hundredth of the bytes that are missing. Where only more memory is
    left, a line says so."""
    kept = [
        step
        for step in steps
        if step.suffices or step.gained_bytes is None or step.gained_bytes >= _LEAST_SHARE * missing_bytes
    ]
    if len(kept) < len(steps) and all(step.suffices and not step.gained_bytes for step in kept):
        text = (
            f"Nothing else that was computed gains {_LEAST_SHARE:.0%} of the {format_bytes(missing_bytes)} B missing."
        )
        kept.append(NextStep(text))
    return kept


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
        slower = max(math.ceil(100 * row.latency.ratio_high) / 100, 1.0)
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


def _smaller_session(fit: Fit) -> list[NextStep]:
    """The step to the file and settings that hold least, where the limit of time left them out."""
    shipped, limit = fit.taken, fit.policy.slower
    front = fit.measured.front if fit.measured is not None else ()
    least = min(front, key=lambda row: row.held_bytes, default=None)
    if shipped is None or limit is None or least is None or not _left_out(least, limit):
        return []
    gained = shipped.held_bytes - least.held_bytes
    if least.latency is None or gained <= _LEAST_SHARE * shipped.held_bytes:
        return []
    slower = math.ceil(100 * least.latency.ratio_high) / 100
    what = f"{least.file}, {least.settings.name}, holds {format_bytes(least.held_bytes)} B in its arena"
    text = Message(
        "Where memory counts more, allow more time (",
        Setting("slower", slower),
        f"): {what}, {format_bytes(gained)} B less, and runs in {format_seconds(least.latency.run_s)} (measured).",
    )
    return [NextStep(text, gained)]


def _left_out(row: SessionTaken, slower: float) -> bool:
    """Whether `slower` leaves the candidate out: it may be slower."""
    return row.latency is not None and row.latency.ratio_high > slower


def _same(one: SessionTaken, other: SessionTaken) -> bool:
    return (one.file, one.settings.name) == (other.file, other.settings.name)


def _strips(fit: Fit) -> list[NextStep]:
    """The step to the plan in strips that was measured to take least, if it takes less than what is shipped."""
    totals = [
        (row.measured.get("total_bytes", row.arena_bytes) + row.measured.get("kernel_bytes", 0), row)
        for row in fit.front
        if not row.ships
    ]
    shipped = fit.arena.after
    if fit.measured is not None and fit.front and all(row.measured for row in fit.front):
        shipped = fit.measured.needed[1]
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
                Setting("arena_bytes" if fit.target == "ort" else "ram_bytes", nbytes),
                f"): {format_bytes(nbytes)} B, {format_bytes(shipped - nbytes)} B less, for {row.extra_share:.1%} more "
                f"multiply-adds ({how}).",
            ),
            shipped - nbytes,
        )
    ]
