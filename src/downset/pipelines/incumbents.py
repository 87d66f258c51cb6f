"""Keeps the best pipeline within the limits, of all that searches and other planners offer.

Names: baseline → another planner's plan, which `exact` compares with its own; outside → of tiles or halo exchange,
which the searches of `exact` do not cover.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from downset.budget import Clock
from downset.clusters.model import Cluster
from downset.errors import LimitReached
from downset.methods import Method
from downset.pipelines.accounting import Accounting, CommName
from downset.pipelines.blocks import blocks
from downset.pipelines.coedge import coedge
from downset.pipelines.coedge import least_compute_s as coedge_bound_s
from downset.pipelines.device_order import canonical, sub_cluster
from downset.pipelines.drafts import StageDrafts, TimedPlan, on_cuts, on_devices
from downset.pipelines.early_fused import early_fused
from downset.pipelines.early_fused import least_compute_s as early_fused_bound_s
from downset.pipelines.exhaustive import exhaustive
from downset.pipelines.floors import total_bound_s
from downset.pipelines.judging import timed_plan
from downset.pipelines.layerwise import layerwise
from downset.pipelines.optimal_fused import optimal_fused
from downset.pipelines.pico import pico
from downset.pipelines.prices import PricedChain
from downset.pipelines.set_search import ExactRequest
from downset.pipelines.single import single, single_draft

__all__ = [
    "EVERY_DEVICE",
    "INSIDE",
    "OUTSIDE",
    "QUICK",
    "Incumbents",
    "baseline_plans",
    "fewer_devices",
]

_LEAST_S = 0.5
"""The least seconds for other planners' plans."""


@dataclass(slots=True)
class Incumbents:
    """The best plan so far. `period_s` is infinite until a plan within the limits was offered. `late`: whether a
    planner had too little time."""

    request: ExactRequest
    clock: Clock
    period_s: float = math.inf
    drafts: StageDrafts = ()
    timed: TimedPlan | None = None
    outside: bool = False
    late: bool = False
    _seen: set[StageDrafts] = field(default_factory=set)
    limit_s: float = field(init=False)
    """The length of the clock."""
    _planning: Clock = field(init=False)
    """The clock of other planners."""
    _coarse: PricedChain = field(init=False)
    _cuts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._coarse, self._cuts = self.request.problem.without_relays()
        self.limit_s = self.clock.left()
        self._planning = self.clock.at_least(_LEAST_S)

    @property
    def by_resources(self) -> bool:
        return self.request.accounting.comm == "resources"

    def offer(self, drafts: StageDrafts, *, clock: Clock | None = None, outside: bool = False) -> bool:
        """Offer a plan; whether it is the best so far. Its orders are searched until the end of the clock."""
        if drafts in self._seen or not self.request.allows(drafts):
            return False
        request = self.request
        self._seen.add(drafts)
        timed = timed_plan(
            request.problem,
            request.cluster,
            drafts,
            request.accounting,
            below_s=self.period_s,
            clock=clock or self.clock,
        )
        if timed is None or timed.period_s >= self.period_s:
            return False
        limit = request.accounting.max_latency_s
        if limit is not None and timed.latency_s > limit:
            return False
        self.take(timed.period_s, drafts, timed, outside=outside)
        return True

    def take(self, period_s: float, drafts: StageDrafts, timed: TimedPlan | None, *, outside: bool = False) -> None:
        """Make this the best plan so far."""
        self.period_s, self.drafts, self.timed, self.outside = period_s, drafts, timed, outside

    def ask(self, planners: Iterable[Method], devices: Sequence[int] | None = None) -> None:
        """Offer what planners make of the problem on these devices (default: all, in the order of strips). Once there
        is a plan, this ends with the clock."""
        accounting = self.request.accounting
        order = canonical(self.request.cluster, (accounting.source, accounting.sink)).order
        chosen = order if devices is None else tuple(devices)
        some = sub_cluster(self.request.cluster, chosen)
        for planner in planners:
            # Tiles are one for each device, so one more slow device may make the plan slower.
            fewer = planner.plan is early_fused and devices is None
            for count in range(1, len(chosen) + 1) if fewer else (len(chosen),):
                if self.drafts and self._planning.late():
                    self.late = True
                    return
                try:
                    self._ask(planner, chosen[:count], some if count == len(chosen) else None)
                except LimitReached:
                    self.late = True

    def _ask(self, planner: Method, devices: Sequence[int], some: Cluster | None) -> None:
        some = some or sub_cluster(self.request.cluster, devices)
        if self._floor_s(planner, some) >= self.period_s:
            return
        # Sums of the papers are above what resources allow, so there every plan of a planner is judged.
        below = math.inf if self.by_resources else self.period_s
        answer = planner(
            self._coarse,
            some,
            **planner.taken(
                accounting=self.request.accounting.on(devices),
                below_s=below,
                clock=self._planning.within(_MOMENT_S),
                deadline=self._planning,
            ),
        )
        self.offer(on_devices(on_cuts(answer.stages, self._cuts), devices), outside=planner in OUTSIDE)

    def _floor_s(self, planner: Method, some: Cluster) -> float:
        """A lower bound of the period of the planner's plans on these devices."""
        if not self.by_resources and planner in OUTSIDE and not any(device.alpha_of for device in some.devices):
            return OUTSIDE[planner](self._coarse, some)
        return total_bound_s(self.request.problem, some, comm=self.request.accounting.comm)

    def sets_of_devices(self, share: float) -> Iterable[tuple[int, ...]]:
        """Sets of fewer devices on which a plan may be faster, for a share of the time limit."""
        request, part = self.request, self.clock.within(self.limit_s * share)
        ends = (request.accounting.source, request.accounting.sink)
        for devices in fewer_devices(request.cluster, ends):
            if part.late():
                self.late = self.late or self.clock.over()
                return
            some = sub_cluster(request.cluster, devices)
            if total_bound_s(request.problem, some, comm=request.accounting.comm) < self.period_s:
                yield devices


_MOMENT_S = 0.2
"""The seconds of `exhaustive` as a baseline. It finishes small networks; on large ones it sees few plans in any time.
"""
QUICK = (Method(single), Method(layerwise), Method(optimal_fused))
"""Planners that take milliseconds; they are asked before any search."""
INSIDE = (Method(pico), Method(blocks), Method(exhaustive))
"""Planners whose plans are strips in one block for each stage. A search that finished has covered all such plans."""
OUTSIDE: Mapping[Method, Callable[[PricedChain, Cluster], float]] = {
    Method(early_fused): early_fused_bound_s,
    Method(coedge): coedge_bound_s,
}
"""Planners of tiles and halo exchange, which the search does not cover, each with a fast lower bound on its period by
the paper's equations."""
EVERY_DEVICE = (*(planner for planner in QUICK if planner.plan is not single), *OUTSIDE)
"""Planners that give every device work. Their plans may be faster on fewer devices."""
_MANY = 4096
"""The most sets of devices. If there are more, only the sets of the fastest devices are taken, one for each number of
devices."""


def fewer_devices(cluster: Cluster, ends: tuple[int | None, int | None]) -> Iterator[tuple[int, ...]]:
    """Sets of devices, without the empty set and the whole set, by falling speed of all their devices together. Of sets
    whose devices are alike one is taken. `ends`: source and sink, which are like no other device."""
    form = canonical(cluster, ends)
    kinds = sorted(set(form.type))
    members = [[place for place, kind in enumerate(form.type) if kind == one] for one in kinds]
    if form.sets() > _MANY:
        yield from (form.order[:count] for count in range(len(form.order) - 1, 0, -1))
        return
    sets = [
        tuple(sorted(place for own, count in zip(members, counts, strict=True) for place in own[:count]))
        for counts in itertools.product(*(range(len(own) + 1) for own in members))
    ]
    whole = len(form.order)
    for places in sorted(sets, key=lambda places: (-sum(form.speed[place] for place in places), places)):
        if 0 < len(places) < whole:
            yield tuple(form.order[place] for place in places)


def baseline_plans(problem: PricedChain, cluster: Cluster, comm: CommName, clock: Clock) -> Iterator[StageDrafts]:
    """Each device by itself, then the plans of every other planner, whatever the clock has left; `exhaustive` has
    little time."""
    coarse, cuts = problem.without_relays()
    yield from ((single_draft(problem, device),) for device in range(len(cluster.devices)))
    for planner in (*QUICK, *INSIDE, *OUTSIDE):
        if planner.plan is not single:
            moment = clock.at_least(_MOMENT_S).within(_MOMENT_S)
            settings = planner.taken(accounting=Accounting(comm), clock=moment)
            yield on_cuts(planner(coarse, cluster, **settings).stages, cuts)
