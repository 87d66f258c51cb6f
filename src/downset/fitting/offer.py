"""A step for users who did not ask for segments in strips: the command that does, and what it would gain."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping

from downset.clock import DEFAULT_TIME_LIMIT_S
from downset.errors import UnsupportedError
from downset.fitting.candidates import Candidate, Job, PlannedGraph
from downset.fitting.strips import StripSearch, search_strips
from downset.formats.writing import WRITERS
from downset.graph.cost import macs
from downset.partial.front import PartialPlan
from downset.partial.search import PartialLimits
from downset.results import Fit, NextStep
from downset.text import format_bytes, printable

__all__ = ["fit_command", "offer_strips"]

_CHOICES = 3_000
"""Choices of strips that the short search prices for each form of the network."""
_SHARE = 0.2
"""The share of the time limit that the short search may take."""
_PLACED_SHARE = 0.05
"""The share of the time limit that placing the plans found may take."""


def fit_command(
    model: str | os.PathLike[str],
    options: Mapping[str, object],
    *,
    shapes: Mapping[str, tuple[int, ...]] | None,
    time_limit_s: float,
) -> str:
    """The command that fits `model` with these options, ready for a shell. Options that are None or False are left out,
    True stands for a flag."""
    words = ["downset", "fit", os.fspath(model)]
    for name, shape in (shapes or {}).items():
        words += ["--shape", f"{name}={','.join(map(str, shape))}"]
    if time_limit_s not in (DEFAULT_TIME_LIMIT_S, math.inf):
        words += ["--time-limit", f"{time_limit_s:g}s"]
    for option, value in options.items():
        if value is not None and value is not False:
            words += [option] if value is True else [option, str(value)]
    return " ".join(shlex.quote(printable(word)) for word in words)


def offer_strips(job: Job, plan: PlannedGraph, original: Candidate, result: Fit, command: str) -> NextStep | None:
    """The step to strips of rows in the planned order, with what the best plan of a short search takes as it is placed.
    Without a figure where that search was ended before it found less, and where its bound leaves room for less. None
    where strips need no less. `command`: to which the option is added."""
    if not WRITERS[job.form].in_strips:
        return None
    work = _CHOICES if job.work_limit is None else min(_CHOICES, job.work_limit)
    try:
        search = search_strips(job, plan, PartialLimits(work_limit=work, time_limit_s=_SHARE * job.time_limit_s))
    except UnsupportedError:
        return None
    beside, needed, whole = 0, result.arena.after, False
    if job.target.fixed_overhead and original.measured is not None and result.measured is not None:
        beside = max(original.measured["total_bytes"] - original.arena_bytes, 0)
        needed, whole = result.measured.after, True
    allowed = [one for one in search.front.plans if one.segments and one.price.extra_macs <= macs(search.graph)]
    for more in (False, True):  # what computes no more comes first
        group = [one for one in allowed if (one.price.extra_macs > 0) is more]
        most_s = _PLACED_SHARE * job.time_limit_s
        best = search.placing.least(group, lambda arena, kept: arena + kept, most_s=most_s, at_least=2)
        if best is not None:
            taken = search.placing.placed(best)[1].arena_bytes + best.price.persistent_bytes + beside
            if taken < needed:
                return _step(search, best, taken, needed, command, measured=whole)
    if search.front.complete or search.front.bound_bytes + beside >= needed:
        return None
    return NextStep(
        f"Compute segments in strips of rows, which may need less ({command} --max-recompute 0%): in this order no "
        f"strips have fewer than {format_bytes(search.front.bound_bytes)} B live."
    )


def _step(search: StripSearch, plan: PartialPlan, taken: int, needed: int, command: str, *, measured: bool) -> NextStep:
    percent = max(math.ceil(100 * plan.price.extra_macs / max(macs(search.graph), 1)), 0)
    work = f"at most {percent}% more arithmetic" if percent else "no more arithmetic"
    what = "" if measured else "tensors take "
    return NextStep(
        f"Compute segments in strips of rows, with {work} ({command} --max-recompute {percent}%): {what}about "
        f"{format_bytes(taken)} B or less, {format_bytes(needed - taken)} B less (planned in a short search; the "
        "command searches longer).",
        needed - taken,
    )
