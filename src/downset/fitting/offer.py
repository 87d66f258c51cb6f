"""A step to segments in strips that do not keep to the policy: the call that asks for them, and what it would gain."""

from __future__ import annotations

import math
from collections.abc import Sequence

from downset.fitting.candidates import Candidate
from downset.fitting.cheap_strips import LEAST_SHARE
from downset.fitting.choosing import Candidates
from downset.fitting.job import FitOptions, Job, call_of, policy_of
from downset.fitting.strips import StripSearch
from downset.graph.cost import macs
from downset.messages import Call, Message, Part, Setting
from downset.partial.front import PartialPlan
from downset.results.fit import Fit
from downset.results.next_step import NextStep
from downset.text import format_bytes

__all__ = ["fit_call", "offer_strips"]

_PLACED_SHARE = 0.05
"""The share of the time limit that placing a group of plans may take."""
_PLACED_OPERATORS, _PLACED_TIMES = 2_000, 2
"""Plans of short searches are placed up to so many operators, or so many times those of the network: to place one takes
time with its operators, and the fit to which the step leads searches longer."""


def fit_call(options: FitOptions, *stated: str) -> Call:
    """The call of `fit` with these options: those that are not the defaults, and those `stated`."""
    return call_of("fit", options, FitOptions(options.model), *stated)


def offer_strips(job: Job, candidates: Candidates, result: Fit, call: Call) -> NextStep | None:
    """The step to strips of rows that need less than what is shipped. `call`: to which the settings are added.

    Where a memory limit shipped the cheapest plan within it, the step leads to the plan that needs least. Else it leads
    to a plan that was refused for its file or its time, or to the least of the short searches, whatever it costs. It
    has no figure where a search was ended before it found less, or its plans have too many operators to place, and
    where its bound leaves room for less. None where strips need no less."""
    original = candidates.original
    if candidates.strips is not None:
        how = Message("planned; without ", job.planned_limit or "a limit", " the file of least memory is written")
        searches = [(candidates.strips, candidates.strips.in_strips)]
        return _fewer(job, searches, original, result, call, how) if _in_strips(result) else None
    searches = [(one, [plan for plan in one.in_strips if _is_small(one, plan)]) for one in candidates.searches]
    if not searches:
        return None
    step = _within_larger_limits(job, candidates, result, call)
    if step is None:
        step = _fewer(job, searches, original, result, call, "planned in a short search; the fit searches longer")
    beside, needed, _ = _needed(job, original, result)
    settled = all(one.front.complete and not one.left_out for one in candidates.searches) and not any(
        one.price_bytes(plan) + beside < needed
        for one in candidates.searches
        for plan in one.in_strips
        if not _is_small(one, plan)
    )
    bound = min(one.front.bound_bytes for one in candidates.searches)
    if step is not None or settled or bound + beside >= needed:
        return step
    what = "more" if _in_strips(result) else "segments"
    return NextStep(
        Message(
            f"Compute {what} in strips of rows, which may need less (",
            call.adding(Setting("max_recompute", 0.0)),
            f"): in this order no strips have fewer than {format_bytes(bound)} B live.",
        )
    )


def _within_larger_limits(job: Job, candidates: Candidates, result: Fit, call: Call) -> NextStep | None:
    """The step to the least plan in strips that was refused, with the limits to which it keeps."""
    least = min(candidates.refused, key=lambda one: one.nbytes, default=None)
    needed = _needed(job, candidates.original, result)[1]
    if least is None or least.nbytes >= (1 - LEAST_SHARE) * needed:
        return None
    policy, settings, costs = policy_of(job.options, job.target), [], []
    if policy.larger is not None and least.larger > policy.larger:
        settings.append(Setting("larger", math.ceil(100 * least.larger) / 100))
        costs.append(f"the file is {least.larger:.2f} times as large")
    if policy.slower is not None and least.slower is not None and least.slower > policy.slower:
        settings.append(Setting("slower", math.ceil(100 * least.slower) / 100))
        costs.append(f"a run takes up to {least.slower:.2f} times as long")
    if not settings:
        return None
    untimed = "" if least.slower is not None else "; its time was not measured"
    text = Message(
        "Where memory counts more, allow more (",
        call.adding(*settings),
        f"): strips of rows take about {format_bytes(least.nbytes)} B, {format_bytes(needed - least.nbytes)} B less, "
        f"and {' and '.join(costs)}{untimed}.",
    )
    return NextStep(text, needed - least.nbytes)


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
    """Whether a plan in strips has few enough operators to be placed."""
    return search.operators(plan) <= max(_PLACED_OPERATORS, _PLACED_TIMES * len(search.graph.ops))


def _fewer(
    job: Job,
    searches: Sequence[tuple[StripSearch, Sequence[PartialPlan]]],
    original: Candidate,
    result: Fit,
    call: Call,
    how: Part,
) -> NextStep | None:
    """The step to the plan that needs least among these of the searches: among those that compute no more, else among
    the others."""
    beside, needed, whole = _needed(job, original, result)
    whole_macs = max(macs(searches[0][0].graph), 1)
    most = needed * (1 if whole else 1 - LEAST_SHARE)
    for more in (False, True):
        plans = []
        for search, chosen in searches:
            least = set(search.front.plans)
            group = [
                one
                for one in chosen
                if one in least and one.price.extra_macs <= whole_macs and (one.price.extra_macs > 0) is more
            ]
            most_s = _PLACED_SHARE * job.options.time_limit_s
            promising = _promising(search, group, most - beside)
            best = search.placing.least(promising, lambda arena, kept: arena + kept, most_s=most_s, at_least=1)
            plans += [] if best is None else [(search.needed_bytes(best) + beside, best)]
        if plans:
            taken, best = min(plans, key=lambda pair: pair[0])
            if taken < most:
                what = "more" if _in_strips(result) else "segments"
                percent = max(math.ceil(100 * best.price.extra_macs / whole_macs), 0)
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


def _promising(search: StripSearch, plans: Sequence[PartialPlan], most: float) -> list[PartialPlan]:
    """The plans whose files may need the fewest bytes, and fewer than `most`: that of the lowest price, and that of the
    lowest price where nothing overlaps. A price is about what a file needs, and to place a plan may take long."""
    if not search.has_overlaps:
        plans = [one for one in plans if search.price_bytes(one) < most]
    if not plans:
        return []
    apart = min(plans, key=lambda one: (max(one.price.peak_bytes, one.price.apart_bytes), *one.cost))
    return list(dict.fromkeys((min(plans, key=lambda one: (search.price_bytes(one), *one.cost)), apart)))
