"""A step for users who did not ask for segments in strips: the call that does, and what it would gain."""

from __future__ import annotations

import math
import os
from dataclasses import fields

from downset.errors import UnsupportedError
from downset.fitting.candidates import Candidate, PlannedGraph
from downset.fitting.job import FitOptions, Job
from downset.fitting.strips import StripSearch, search_strips
from downset.formats.writing import WRITERS
from downset.graph.cost import macs
from downset.messages import Call, Message, Part, Setting
from downset.partial.front import PartialPlan
from downset.partial.search import PartialLimits
from downset.results.fit import Fit, NextStep
from downset.text import format_bytes

__all__ = ["fit_call", "offer_strips"]

_CHOICES = 2_000
"""Choices of strips that the short search prices for each form of the network."""
_OPERATORS = 5_000
"""Plans with more operators than this are not placed, which would take more time than the fit itself."""
_SHARE = 0.2
"""The share of the time limit that the short search may take."""
_LEAST_SHARE = 0.01
"""Where what a runtime takes in addition to the tensors is not known, strips are offered if tensors take this share
less."""
_PLACED_SHARE = 0.05
"""The share of the time limit that placing the plans found may take."""


def fit_call(options: FitOptions, *stated: str) -> Call:
    """The call of `fit` with these options: those that are not the defaults, and those `stated`."""
    values = {field.name: getattr(options, field.name) for field in fields(options)[1:]}
    defaults = FitOptions(options.model)
    settings = tuple(
        Setting(name, os.fspath(value) if isinstance(value, os.PathLike) else value)
        for name, value in values.items()
        if name in stated or (value != getattr(defaults, name) and value not in ((), {}))
    )
    return Call("fit", settings, (os.fspath(options.model),))


def offer_strips(
    job: Job, base: PlannedGraph | StripSearch, original: Candidate, result: Fit, call: Call
) -> NextStep | None:
    """The step to strips of rows that need less than what is shipped. `call`: to which the setting is added.

    `base` is the planned network if strips were not searched: then a short search is made, and the step has what its
    best plan takes as it is placed. It has no figure where that search was ended before it found less, or its plans
    have too many operators to place, and where its bound leaves room for less. `base` is the search where `ram_bytes`
    ships the cheapest plan in strips within it: then the step leads to the plan that needs least. None where strips
    need no less."""
    if isinstance(base, StripSearch):
        how = Message("planned; without ", job.planned_limit or "a limit", " the file of least memory is written")
        return _fewer(job, base, original, result, call, how) if _in_strips(result) else None
    if not WRITERS[job.form].in_strips:
        return None
    work = _CHOICES if job.options.work_limit is None else min(_CHOICES, job.options.work_limit)
    try:
        search = search_strips(
            job, base, PartialLimits(work_limit=work, time_limit_s=_SHARE * job.options.time_limit_s)
        )
    except UnsupportedError:
        return None
    step = _fewer(job, search, original, result, call, "planned in a short search; the fit searches longer")
    beside, needed, _ = _needed(job, original, result)
    settled = search.front.complete and all(_is_small(search, one) for one in search.front.plans)
    if step is not None or settled or search.front.bound_bytes + beside >= needed:
        return step
    return NextStep(
        Message(
            "Compute segments in strips of rows, which may need less (",
            call.adding(Setting("max_recompute", 0.0)),
            f"): in this order no strips have fewer than {format_bytes(search.front.bound_bytes)} B live.",
        )
    )


def _in_strips(result: Fit) -> bool:
    return any(rewrite.kind == "row-wise" for rewrite in result.rewrites)


def _needed(job: Job, original: Candidate, result: Fit) -> tuple[int, int, bool]:
    """(bytes outside the arena in the runtime, bytes that the shipped file needs, whether these were measured).
    A runtime that fuses operators may hold less than the plan: strips then have to need less than that."""
    if job.target.fixed_overhead and original.measured is not None and result.measured is not None:
        return max(original.measured_bytes() - original.arena_bytes, 0), result.measured.needed[1], True
    taken_bytes = result.arena.after if result.measured is None else result.measured.after
    return 0, min(result.arena.after, taken_bytes), False


def _is_small(search: StripSearch, plan: PartialPlan) -> bool:
    return plan in search.placing.files_of or len(search.graph.ops) + plan.price.extra_operators <= _OPERATORS


def _fewer(job: Job, search: StripSearch, original: Candidate, result: Fit, call: Call, how: Part) -> NextStep | None:
    """The step to the plan of the search that needs least: among those that compute no more, else among the others."""
    beside, needed, whole = _needed(job, original, result)
    allowed = [
        one
        for one in search.front.plans
        if one.segments and one.price.extra_macs <= macs(search.graph) and _is_small(search, one)
    ]
    for more in (False, True):
        group = [one for one in allowed if (one.price.extra_macs > 0) is more]
        most_s = _PLACED_SHARE * job.options.time_limit_s
        best = search.placing.least(group, lambda arena, kept: arena + kept, most_s=most_s, at_least=1)
        if best is not None:
            taken = search.needed_bytes(best) + beside
            if taken < needed * (1 if whole else 1 - _LEAST_SHARE):
                what = "more" if _in_strips(result) else "segments"
                percent = max(math.ceil(100 * best.price.extra_macs / max(macs(search.graph), 1)), 0)
                work = f"at most {percent}% more arithmetic" if percent else "no more arithmetic"
                tensors, uncounted = "tensors take ", "; what more operators take is not counted"
                if whole:
                    tensors = uncounted = ""
                text = Message(
                    f"Compute {what} in strips of rows, with {work} (",
                    call.adding(Setting("max_recompute", percent / 100)),
                    f"): {tensors}about {format_bytes(taken)} B or less, {format_bytes(needed - taken)} B less (",
                    how,
                    f"{uncounted}).",
                )
                return NextStep(text, needed - taken)
    return None
