"""The front of partial execution: which segments to compute in how many strips, and which rows to keep or recompute.

Source: ours.
Names: a *choice* is a segment, a number of strips, whether they advance evenly, and the operators that recompute.
    A *unit* of recomputing is an operator with the pointwise operators behind it that read only its result.
Complexity: choices are priced one by one, in a sequence that does not depend on the limits; a larger limit prices more.
    Then `compose` finds the front over all choices that were priced, and over those of each earlier step of work.
Deviations: a number of strips is tried if its highest strip is lower than with fewer strips. Where a segment has at
most `EVERY_SUBSET` units, every set of recomputing units is a choice. Elsewhere the sets are all units, none, each
alone, and unions of those that free the most bytes for each extra MAC. The bound holds for every plan in this order of
operators, also for segments, sets and numbers of strips that were not tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, combinations, pairwise

from downset.budget import INTERRUPTED, Budget, Clock
from downset.errors import UnsupportedError
from downset.graph.core import Graph
from downset.graph.cost import row_form
from downset.graph.row_form import SAME, RowForm
from downset.memory.models import MemoryModel, MemoryName, memory_model
from downset.partial.front import Option, Options, PartialPlan, Useful, compose, front_of
from downset.partial.least_peak import least_peak
from downset.partial.memory_form import Persistent
from downset.partial.price import Price, Pricing
from downset.partial.rewrite import InStrips
from downset.partial.segments import Cuts, Segment, computed_whole, find_cuts, find_segments
from downset.results.plans import StoppedBy, ended_by

__all__ = ["PartialFront", "PartialLimits", "partial_front"]

EVERY_SUBSET = 4
"""The most units of a segment of which every set is tried."""
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
        budget = replace(budget, states=_step(budget.states))
    clock = budget.start()
    form = form or row_form(graph, halos_required=False)
    pricing = pricing or Pricing(graph, form, memory_model(memory), persistent=persistent)
    search = _PartialSearch(graph, form, pricing, limits, clock.part(seconds=_PRICING_SHARE * budget.seconds))
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
    front = compose(*last, clock)
    plans, beyond = (
        tuple(plan for plan in front if (plan.price.extra_macs <= most) is allowed) for allowed in (True, False)
    )
    earlier = {plan.segments: plan for plan in plans}
    lying_apart = [step for step in before if step[0] is pricing.around.apart][::-1]
    for step in (*lying_apart, *(step for step in before[::-1] if step[0] is pricing.around.transient)):
        if (lying_apart and step is lying_apart[0]) or clock.left_s() > 0:
            allowed = (plan for plan in compose(*step, clock) if plan.price.extra_macs <= most)
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


@dataclass(slots=True)
class _PartialSearch:
    graph: Graph
    form: RowForm
    pricing: Pricing
    limits: PartialLimits
    clock: Clock
    options: Options = field(init=False)
    priced: int = 0
    complete: bool = True
    stopped_by: StoppedBy = ""
    refused: bool = False
    """Whether a limit refused a choice, so that no further one is priced."""
    apart: bool = False
    """Whether the choices to try next are ranked by prices without overlaps."""
    shown: Options = field(init=False)
    """Options with the prices by which choices are ranked."""
    prices: dict[tuple[Segment, int, bool, frozenset[int]], Price | None] = field(default_factory=dict)
    """Prices found so far."""
    steps: list[tuple[Sequence[int], list[Useful]]] = field(default_factory=list)
    """By step of work, and at the end: the transients of the operators without strips, and the options."""

    kept_at: int = -1
    """The number of choices priced when the last of `steps` was added."""
    next_step: int = 0
    """The number of choices priced at which the next one is added."""
    made_by: Sequence[int] = field(init=False)
    read_by: Sequence[Sequence[int]] = field(init=False)

    read_until: Sequence[int] = field(init=False)
    """`_spared_until` of the network."""

    def __post_init__(self) -> None:
        self.made_by, self.read_by = self.graph.producers(), self.graph.consumers()
        self.read_until = _spared_until(self.form)
        self.shown = self.options = Options(self.pricing.around.transient)

    def list_segments(self, cuts: Cuts, listing: Clock) -> tuple[Cuts, list[Segment]]:
        """The segments between these cuts, and whether they were all listed in time."""
        segments: list[Segment] = []
        for segment in find_segments(self.graph, self.form, cuts=cuts, most_results=2):
            if listing.left_s() == 0:
                self.stopped_by = "time"
                return replace(cuts, listed=False), segments
            segments.append(segment)
        return cuts, segments

    def _keep_step(self) -> None:
        if self.kept_at == self.priced:
            return
        self.kept_at = self.priced
        if self.apart:
            self.steps.append((self.shown.whole, self.shown.useful()))
        self.steps.append((self.options.whole, self.options.useful()))

    def explore(self, segments: Sequence[Segment], bound: int, *, apart: bool = False) -> None:
        """Price choices until a limit is reached."""
        self.apart, around = apart, self.pricing.around
        if self.pricing.model.kernels is not None:
            self.shown = Options(around.apart if apart else around.transient)
        helpful, sparing = self.ranked(segments, bound)
        self.price(helpful)
        self.price(sparing)
        self._keep_step()

    def ranked(self, segments: Sequence[Segment], bound: int) -> tuple[list[Segment], list[Segment]]:
        """(segments in which the network without strips exceeds the bound, others that may save arithmetic). In all
        other segments strips save nothing, so a plan without them is as good."""
        whole = self.shown.whole
        above = (0, *accumulate(int(nbytes > bound) for nbytes in whole))
        read_until = self.read_until
        useful, sparing = [], []
        for segment in segments:
            if above[segment.first] < above[segment.stop]:
                useful.append(segment)
            elif read_until[segment.first] < segment.stop:
                sparing.append(segment)
        return useful, sparing

    def price(self, segments: Sequence[Segment]) -> None:
        """Price the finest strips of every segment, then the other numbers of strips, then the sets that recompute.
        Segments with the lowest peak in their finest strips come first."""
        finest = {}
        for segment in segments:
            least = None if self.refused else self._finest(segment)
            if least is not None:
                finest[segment] = least
        ranked = sorted(finest, key=lambda segment: (finest[segment], segment.first, segment.stop))
        for segment in ranked:
            for even, strips in () if self.refused else self._strips(segment):
                self._try(segment, strips, even, frozenset())
        for segment in ranked:
            if not self.refused:
                self._recompute(segment)

    def _spent(self) -> bool:
        if self.clock.over():
            self.complete, self.refused = False, True
            self.stopped_by = ended_by((self.stopped_by, self.clock.stopped_by()))
        return self.refused

    def _finest(self, segment: Segment) -> int | None:
        prices = []
        listed = self._strips(segment)
        for even in (False, True):
            strips = max((count for one, count in listed if one == even), default=0)
            price = self._try(segment, strips, even, frozenset()) if strips else None
            prices += [] if price is None else [price.peak_bytes]
        return min(prices, default=None)

    def _strips(self, segment: Segment) -> list[tuple[bool, int]]:
        """The pairs (even, strips) to try, from few strips to many. One strip leaves out rows that nothing reads."""
        plans = []
        for even in (False, True):
            rows = self.pricing.most_strips(segment, even=even)
            counts = {-(-rows // height) for height in range(1, rows)}
            if self.read_until[segment.first] < segment.stop and not even:
                counts.add(1)
            most = self.limits.max_strips or max(rows, 1)
            plans += [(count, even) for count in counts if count <= most]
        return [(even, count) for count, even in sorted(plans)]

    def _try(self, segment: Segment, strips: int, even: bool, recomputed: frozenset[int]) -> Price | None:
        key = segment, strips, even, recomputed
        part = InStrips(segment.first, segment.stop, strips, recomputed, even)
        if key in self.prices:
            price = self.prices[key]
        else:
            if self.priced >= self.next_step:
                self._keep_step()
                self.next_step = _step_after(self.priced)
            if self._spent():
                return None
            price = self.prices[key] = self._priced(segment, part)
        if price is None:
            return None
        if self.apart:
            price = replace(price, peak_bytes=price.apart_bytes)
        if self.shown is not self.options:
            self.shown.add(segment, Option(part, price))
        return price

    def _priced(self, segment: Segment, part: InStrips) -> Price | None:
        """The price of a choice that was not priced before; None where there are no such strips."""
        self.priced += 1
        self.clock.count(1)
        try:
            price = self.pricing.strips(segment, part.strips, recomputed=part.recomputed, even=part.even)
        except UnsupportedError:
            return None
        self.options.add(segment, Option(part, price))
        return price

    def _recompute(self, segment: Segment) -> None:
        units = self._units(segment)
        if len(units) <= EVERY_SUBSET:
            sets = [frozenset().union(*chosen) for chosen in _subsets(units) if chosen]
            for even, strips in self._strips(segment):
                for recomputed in sets:
                    self._try(segment, strips, even, recomputed)
            return
        self.complete = False  # sets that are not tried may be better
        for option in front_of(option for option in self.shown.of(segment) if not option.part.recomputed):
            self._recompute_by_gain(segment, option, units)

    def _recompute_by_gain(self, segment: Segment, option: Option, units: Sequence[frozenset[int]]) -> None:
        strips, even, price = option.part.strips, option.part.even, option.price
        self._try(segment, strips, even, frozenset(segment.operators))
        gains = []
        for unit in units:
            alone = self._try(segment, strips, even, unit)
            if alone is not None and alone.peak_bytes < price.peak_bytes:
                gain = (price.peak_bytes - alone.peak_bytes) / max(alone.extra_macs - price.extra_macs, 1)
                gains.append((-gain, min(unit), unit))
        together: frozenset[int] = frozenset()
        for _, _, unit in sorted(gains, key=lambda item: item[:2]):
            together |= unit
            self._try(segment, strips, even, together)

    def _units(self, segment: Segment) -> list[frozenset[int]]:
        """Sets of operators that recompute together: an operator, and pointwise operators behind it that are the only
        readers. Operators that make a result of the segment always keep it, so their units are left out."""
        made_by, read_by = self.made_by, self.read_by
        unit_of: dict[int, int] = {}
        for index in segment.operators:
            op = self.form.ops[index]
            source = made_by[op.inputs[0].tensor] if op.inputs else -1
            follows = (
                source in unit_of
                and len(op.inputs) == 1
                and op.inputs[0].map == SAME
                and not op.macs_per_row
                and len(read_by[op.inputs[0].tensor]) == 1
            )
            unit_of[index] = unit_of[source] if follows else index
        units: dict[int, set[int]] = {}
        for index, unit in unit_of.items():
            units.setdefault(unit, set()).add(index)
        results = {made_by[tensor] for tensor in segment.results}
        return [frozenset(unit) for unit in units.values() if unit.isdisjoint(results)]


_STEPS = (1, 2, 3, 5, 7)


def _step(work: int) -> int:
    """The largest step of work that does not exceed `work`."""
    power = 10 ** (len(str(work)) - 1)
    return max((step * power for step in _STEPS if step * power <= work), default=0)


def _step_after(work: int) -> int:
    """The smallest step of work that exceeds `work`."""
    power: int = 10 ** (len(str(work)) - 1)
    return min(step * power for step in (*_STEPS, 10) if step * power > work)


def _spared(form: RowForm) -> list[tuple[int, int]]:
    """(maker, last reader) of tensors of which no single operator is known to read every row. Strips may leave rows of
    them out. A segment without such a tensor and all its readers computes every row."""
    last: dict[int, int] = {}
    read_all = set(form.outputs)
    for index, op in enumerate(form.ops):
        for item in op.inputs:
            last[item.tensor] = index
            rows = form.rows[item.tensor]
            if item.map is None or (item.map.has_no_gaps and item.map((0, op.rows), rows) == (0, rows)):
                read_all.add(item.tensor)
    return [
        (index, last.get(tensor, index))
        for index, op in enumerate(form.ops)
        for tensor in op.outputs
        if tensor not in read_all
    ]


def _spared_until(form: RowForm) -> list[int]:
    """By operator: the least last reader of a tensor of `_spared` that this or a later operator makes; without one, the
    number of operators."""
    until = [len(form.ops)] * (len(form.ops) + 1)
    for maker, last in _spared(form):
        until[maker] = min(until[maker], last)
    for index in reversed(range(len(form.ops))):
        until[index] = min(until[index], until[index + 1])
    return until


def _subsets(units: Sequence[frozenset[int]]) -> Iterator[tuple[frozenset[int], ...]]:
    return chain.from_iterable(combinations(units, size) for size in range(len(units) + 1))
