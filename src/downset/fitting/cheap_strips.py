"""Plans in strips that cost little: the one of least memory that keeps to the policy.

Plans are tried as files in an order that the limits do not change: for each of some steps of arithmetic and of further
operators there is one plan, the least of those that take no more of either. The limits say up to which step plans are
tried, and which of the tried ones may ship, so that a larger limit never ships a file of more bytes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from downset.errors import UnsupportedError
from downset.fitting.candidates import Candidate
from downset.fitting.job import Job
from downset.fitting.measuring import measure
from downset.fitting.planning import Planned, folded_plan
from downset.fitting.strips import StripSearch, files_of, search_forms, strip_forms
from downset.fitting.trials import Trials, disk_bytes, share_of_operators
from downset.graph.cost import macs
from downset.messages import Message
from downset.partial.front import PartialPlan
from downset.partial.search import PartialLimits
from downset.results.policy import Policy
from downset.text import counted

__all__ = ["LEAST_SHARE", "Refused", "least_strips", "search_cheap_strips"]

_SEARCHES = ((8, 6_000, 0.5), (16, 4_000, 0.3))
"""(most strips of a segment, choices priced in all forms together, share of the time limit) of each search. Few strips
come first: they cost least."""
_ONLY_TOLD = (None, 1_000, 0.2)
"""The search where none of its plans may ship: the finest strips of every segment come first, which need least."""
_TIMED = 24
"""The most plans that are timed, whatever the load of the machine."""
_MORE_MACS = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, math.inf)
_MORE_OPERATORS = tuple(round(8 * 2 ** (step / 2)) for step in range(19))
_OPERATOR_BYTES = 100
"""Bytes that a further operator takes in a file, at the least."""
LEAST_SHARE = 0.01
"""The share of the bytes that strips have to save."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A plan in strips that needs `nbytes`, less than what ships, and does not keep to the policy: its file is `larger`
    times the original's, or it is up to `slower` times as slow (None: not timed)."""

    nbytes: int
    larger: float
    slower: float | None


def search_cheap_strips(job: Job, planned: Planned, *, may_ship: bool) -> list[StripSearch]:
    """Short searches for strips in the planned order. `may_ship`: the files are
    timed, so that one in strips may ship; else the search only tells whether strips may need less."""
    searches: list[StripSearch] = []
    try:
        forms = strip_forms(job, folded_plan(planned.best))
    except UnsupportedError as error:
        job.notes.add(Message("not computed in strips: ", error.message))
        return searches
    for strips, choices, share in _SEARCHES if may_ship else (_ONLY_TOLD,):
        if job.search_time.over:
            break
        most = choices if job.options.work_limit is None else min(choices, job.options.work_limit)
        each = most // len(forms.pricings)
        search = search_forms(job, forms, PartialLimits(None, strips, each, share * job.options.time_limit_s))
        if job.options.work_limit is None and search.front.stopped_by == "work":
            search = replace(search, front=replace(search.front, stopped_by=""))  # no limit of the user's
        searches.append(search)
        if not search.has_strips and search.front.complete:
            break
    return searches


def least_strips(
    job: Job, searches: Sequence[StripSearch], trials: Trials, best: Candidate
) -> tuple[list[Candidate], list[Refused]]:
    """(the measured file of the plan that takes least within the policy, if it takes less than `best`; the plans that
    would take less still, and were refused)."""
    refused: list[Refused] = []
    original, near = trials.original, False
    most = best.measured_bytes() or best.arena_bytes
    beside = max(original.measured_bytes() - original.arena_bytes, 0) if job.target.fixed_overhead else 0
    timed, most_operators = 0, math.inf
    for search, plan in _ascending(job, searches, trials, disk_bytes(original.path)):
        if plan.price.extra_operators > most_operators:
            continue
        needed = search.needed_bytes(plan) + beside
        if needed > (1 - LEAST_SHARE) * most:
            break
        if timed == _TIMED:
            job.notes.add(f"further plans in strips were not tried: {counted(timed, 'file')} were timed")
            break
        files = files_of(job, search, plan, "strips")
        larger = max(disk_bytes(file.path) for file in files) / disk_bytes(original.path)
        small = [file for file in files if trials.keeps_size(file)]
        least = min(measure(job, small, original=original), key=Candidate.cost, default=None)
        if least is None:
            refused += [] if small else [Refused(needed, larger, None)]
        elif least.cost() < best.cost():
            least, timed = trials.timed(least), timed + 1
            if trials.keeps(least):
                trials.note_near(least)
                return [least], refused
            near = near or trials.note_near(least, refused=True)
            trials.forget(least)
            if job.target.takes_seconds and least.latency is not None:
                share = share_of_operators(trials.policy.slower or math.inf, least.latency.ratio_low)
                most_operators = min(most_operators, share * plan.price.extra_operators)
            slower = None if least.latency is None else least.latency.ratio_high
            refused.append(Refused(needed, larger, slower))
        for file in files:
            file.path.unlink()
    return [], refused


def _ascending(
    job: Job, searches: Sequence[StripSearch], trials: Trials, file_bytes: int
) -> Iterator[tuple[StripSearch, PartialPlan]]:
    """Yields the plans to try, those that need the fewest bytes as they are placed first. Plans are placed in the
    sequence of their prices, which are lower bounds of that."""
    waiting = [
        (price, number, False, search, plan)
        for number, (price, search, plan) in enumerate(_steps(searches, trials.policy, file_bytes))
    ]
    heapq.heapify(waiting)
    while waiting:
        _, number, placed, search, plan = heapq.heappop(waiting)
        if placed:
            yield search, plan
        elif plan in search.placing.files_of or not job.search_time.over:
            heapq.heappush(waiting, (search.needed_bytes(plan), number, True, search, plan))


def _steps(
    searches: Sequence[StripSearch], policy: Policy, file_bytes: int
) -> Iterator[tuple[int, StripSearch, PartialPlan]]:
    """Yields the least plan of each step with its price, each plan once."""
    slower = math.inf if policy.slower is None else policy.slower - 1
    larger = math.inf if policy.larger is None else (policy.larger - 1) * file_bytes / _OPERATOR_BYTES
    yielded = set()
    for search in searches:
        whole = max(macs(search.graph), 1)
        plans = search.in_strips
        for more_macs in (share for share in _MORE_MACS if share <= slower + 1e-9):
            for more_operators in (count for count in _MORE_OPERATORS if count <= max(larger, _MORE_OPERATORS[0])):
                step = [
                    plan
                    for plan in plans
                    if plan.price.extra_macs <= more_macs * whole and plan.price.extra_operators <= more_operators
                ]
                least = min(
                    step,
                    key=lambda plan: (plan.price.peak_bytes + plan.price.persistent_bytes, plan.cost),
                    default=None,
                )
                if least is not None and least not in yielded:
                    yielded.add(least)
                    yield least.price.peak_bytes + least.price.persistent_bytes, search, least
