"""The front of partial execution: which segments to compute in how many strips, and which rows to keep or recompute.

Source: ours.
Names: a *choice* is a segment, a number of strips, whether they advance evenly, and the operators that recompute.
Complexity: choices are priced one by one, in a sequence that does not depend on the limits (explore.py); a larger limit
    prices more. The front over all choices that were priced is composed, and those of each earlier step of work.
Deviations: a number of strips is tried if its highest strip is lower than with fewer strips. Not every set of
operators that recompute is tried. The bound holds for every plan in this order of operators, also for segments, sets
and numbers of strips that were not tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from downset.budget import INTERRUPTED, Budget
from downset.graph.core import Graph
from downset.graph.cost import row_form
from downset.graph.row_form import RowForm
from downset.memory.models import MemoryModel, MemoryName, memory_model
from downset.partial.explore import ChoiceSearch, step_within
from downset.partial.front import PartialPlan
from downset.partial.least_peak import least_peak
from downset.partial.memory_form import Persistent
from downset.partial.price import Pricing
from downset.partial.segments import Cuts, computed_whole, find_cuts
from downset.results.plans import StoppedBy, ended_by

__all__ = ["PartialFront", "PartialLimits", "partial_front"]

_LISTING_SHARE, _PRICING_SHARE = 0.2, 0.75
"""The shares of the time limit until segments are listed, and then priced; in the rest plans are composed of them."""


@dataclass(frozen=True, slots=True)
class PartialLimits:
    """Limits of the search and of its plans. `max_recompute`: extra MACs as a share of the network's (None: no limit).
    `max_strips`: strips of one segment (None: no limit). `work_limit`: choices to price, rounded down to 1, 2, 3, 5 or
    7 times a power of ten (None: no limit). `time_limit_s`: seconds after which no further choice is priced."""

    max_recompute: float | None = None
    max_strips: int | None = None
    work_limit: int | None = None
    time_limit_s: float = 10.0


@dataclass(frozen=True, slots=True)
class PartialFront:
    """The plans that a search found, cheapest first.

    `plans`: the front; no other plan found is as good in peak, MACs and persistent bytes. The first is the network
    without strips, or computes no more than it. `beyond`: plans of the front that recompute more than is allowed.
    `bound_bytes`: no plan in this order has a lower peak, in the space of `least_peak`: segments between all cuts, with
    strips of any heights along these rows, any steps in any order, rows kept or recomputed. `complete`: every choice
    was priced, so that this is the front of all choices. `priced`: choices priced. `computed_whole`: operators that no
    strip computes, by index, with reasons. `earlier`: further plans within the limit of recomputing. They were on the
    front at an earlier step of work, or are on the front under a model without overlaps, with their prices there. A
    file may need more bytes than the price of its plan, so that an earlier plan may need fewer than those of the front.
    A search with larger limits keeps them. `stopped_by`: the limit that ended the search early, if one did."""

    plans: tuple[PartialPlan, ...]
    beyond: tuple[PartialPlan, ...]
    bound_bytes: int
    complete: bool
    priced: int
    computed_whole: Mapping[int, str]
    earlier: tuple[PartialPlan, ...] = ()
    stopped_by: StoppedBy = ""

    @property
    def least(self) -> PartialPlan:
        """The plan of least peak."""
        return min(self.plans, key=lambda plan: (plan.price.peak_bytes, plan.cost))


def partial_front(
    graph: Graph,
    *,
    memory: MemoryName | MemoryModel,
    limits: PartialLimits | None = None,
    form: RowForm | None = None,
    persistent: Persistent | None = None,
    pricing: Pricing | None = None,
) -> PartialFront:
    """The front of partial execution of a network in the order of its operators. A larger limit never gives a worse
    plan.

    `form`: the network's rows (by default `row_form`); it marks as whole the operators that a runtime cannot compute in
    strips. `persistent`: what a runtime keeps for each operator. `pricing`: what an earlier search with the same of
    these has priced, which is not priced again. Raises UnsupportedError for memory models in which
    concatenations cost no bytes and where the native module is not built, UsageError for unknown names and limits that
    are not positive.
    """
    limits = limits or PartialLimits()
    budget = Budget(limits.time_limit_s, limits.work_limit)
    if budget.states is not None:
        budget = replace(budget, states=step_within(budget.states))
    clock = budget.start()
    form = form or row_form(graph, halos_required=False)
    pricing = pricing or Pricing(graph, form, memory_model(memory), persistent=persistent)
    search = ChoiceSearch(graph, form, pricing, limits.max_strips, clock.part(seconds=_PRICING_SHARE * budget.seconds))
    listing = clock.part(seconds=_LISTING_SHARE * budget.seconds)
    around, overlaps = pricing.around, pricing.model.kernels is not None
    cuts, segments = search.list_segments(
        _cuts(graph, form, around.live, (around.transient, around.apart)[: 1 + overlaps]), listing
    )
    search.complete = not cuts.long_runs
    bound = least_peak(form, pricing, segments, cuts, listing)
    search.stopped_by = listing.stopped_by() if listing.left_s() == 0 else ""
    if overlaps:
        # First the choices that a model without overlaps tries, in the same sequence, so that overlaps make no plan
        # worse.
        apart = replace(pricing.model, name="apart", kernels=None, in_place=frozenset())
        apart_cuts, tried = search.list_segments(_cuts(graph, form, around.live, (around.apart,)), listing)
        least = least_peak(form, Pricing(graph, form, apart), tried, apart_cuts, listing)
        search.explore(tried, least, apart=True)
    search.explore(segments, bound)
    total = sum(op.macs for op in form.ops)
    most = math.inf if limits.max_recompute is None else int(total * limits.max_recompute)
    *before, last = search.steps
    front = last.composed(clock)
    plans, beyond = (
        tuple(plan for plan in front if (plan.price.extra_macs <= most) is allowed) for allowed in (True, False)
    )
    earlier = {plan.segments: plan for plan in plans}
    lying_apart = [step for step in before if step.whole is pricing.around.apart][::-1]
    for step in (*lying_apart, *(step for step in before[::-1] if step.whole is pricing.around.transient)):
        if (lying_apart and step is lying_apart[0]) or clock.left_s() > 0:
            allowed = (plan for plan in step.composed(clock) if plan.price.extra_macs <= most)
            earlier |= {plan.segments: plan for plan in allowed if plan.segments not in earlier}
    others = tuple(earlier.values())[len(plans) :]
    whole = computed_whole(graph, form)
    stopped_by = ended_by((search.stopped_by, "time" if clock.left_s() == 0 and not INTERRUPTED.is_set() else ""))
    return PartialFront(plans, beyond, bound, search.complete, search.priced, whole, others, stopped_by)


_PASSING, _APART, _LOWEST = 32, 32, 64
"""The most tensors that cross a cut where one is not enough: keys, values, statistics and inputs of later parts pass
by. One is enough where no operator at the peak lies in a gap of more than so many operators between cuts. Of the other
cuts, so many of each run are kept."""


def _cuts(graph: Graph, form: RowForm, live: Sequence[int], transients: Sequence[Sequence[int]]) -> Cuts:
    """The cuts that one tensor crosses; where by some of these transients an operator at the peak is far from both its
    neighbours among these, or between none, also the cuts that up to `_PASSING` tensors cross at which the fewest bytes
    are live."""
    one = find_cuts(graph, form)
    gaps = [pair for run in one.runs for pair in pairwise(run)]
    near = {index for first, stop in gaps if stop - first <= _APART for index in range(first, stop)}
    peaks = [(transient, max(transient, default=0)) for transient in transients]
    if all(nbytes < most or index in near for transient, most in peaks for index, nbytes in enumerate(transient)):
        return one
    many = find_cuts(graph, form, most_crossing=_PASSING)
    runs = (
        sorted({*sorted(run, key=live.__getitem__)[:_LOWEST], *(cut for cut in run if cut in one.crossing)})
        for run in many.runs
    )
    return Cuts(tuple(map(tuple, runs)), many.crossing)
