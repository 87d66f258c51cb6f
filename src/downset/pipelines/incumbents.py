"""Keeps the best pipeline within the limits, of all that searches and other planners offer.

Names: baseline → another planner's plan; outside → of tiles or halo exchange, which the searches of `exact` do not
cover.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from downset import clock
from downset.clusters.model import Cluster
from downset.errors import LimitReached
from downset.methods import Method
from downset.pipelines.accounting import Accounting, judged
from downset.pipelines.baselines import MOMENT_S, OUTSIDE, fewer_devices, without_relays
from downset.pipelines.device_order import canonical, sub_cluster
from downset.pipelines.drafts import Drafted, Judged, on_cuts, on_devices
from downset.pipelines.early_fused import early_fused
from downset.pipelines.floors import total_bound_s
from downset.pipelines.problem import SplitProblem

__all__ = ["Incumbents", "PlanRequest"]

_LEAST_S = 0.5
"""The least seconds for other planners' plans."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A problem for `exact` with its limits. `forbidden`: (start, stop, device) that no stage may be. `baseline_cuts`:
    the cuts that baselines may use, because they do not relay tensors; None: all."""

    problem: SplitProblem
    cluster: Cluster
    accounting: Accounting
    max_latency_s: float | None = None
    time_limit_s: float = 10.0
    several_blocks: bool = True
    forbidden: frozenset[tuple[int, int, int]] = frozenset()
    baseline_cuts: tuple[int, ...] | None = None

    def allows(self, drafts: Drafted) -> bool:
        """Whether no stage of the drafts is forbidden."""
        return not any(
            (stage.splits[0].start, stage.splits[-1].stop, device) in self.forbidden
            for stage in drafts
            for device in {stage.leader, *(tile.device for split in stage.splits for tile in split.tiles)}
        )


@dataclass(slots=True)
class Incumbents:
    """The best plan so far. `period_s` is infinite until a plan within the limits was offered. `late`: whether a
    planner had too little time."""

    asked: PlanRequest
    begin: float = field(default_factory=clock.now)
    period_s: float = math.inf
    drafts: Drafted = ()
    judged: Judged | None = None
    outside: bool = False
    late: bool = False
    _seen: set[Drafted] = field(default_factory=set)
    _coarse: SplitProblem = field(init=False)
    _cuts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._coarse, self._cuts = without_relays(self.asked.problem, self.asked.baseline_cuts)

    @property
    def by_resources(self) -> bool:
        return self.asked.accounting.comm == "resources"

    def left_s(self) -> float:
        return self.asked.time_limit_s - (clock.now() - self.begin)

    def offer(self, drafts: Drafted, *, late_s: float = 0.0, outside: bool = False) -> bool:
        """Offer a plan; whether it is the best so far. Its orders are searched until the time limit, or until `late_s`
        if that is later."""
        if drafts in self._seen or not self.asked.allows(drafts):
            return False
        asked = self.asked
        self._seen.add(drafts)
        judgement = judged(
            asked.problem,
            asked.cluster,
            drafts,
            asked.accounting,
            below_s=self.period_s,
            deadline=max(late_s, self.begin + asked.time_limit_s),
            max_latency_s=asked.max_latency_s,
        )
        if judgement is None or judgement.period_s >= self.period_s:
            return False
        if asked.max_latency_s is not None and judgement.latency_s > asked.max_latency_s:
            return False
        self.take(judgement.period_s, drafts, judgement, outside=outside)
        return True

    def take(self, period_s: float, drafts: Drafted, judgement: Judged | None, *, outside: bool = False) -> None:
        """Make this the best plan so far."""
        self.period_s, self.drafts, self.judged, self.outside = period_s, drafts, judgement, outside

    @property
    def deadline(self) -> float:
        """The time of `clock.now` at which planners end."""
        return self.begin + max(self.asked.time_limit_s, _LEAST_S)

    def ask(self, planners: Iterable[Method], devices: Sequence[int] | None = None) -> None:
        """Offer what planners make of the problem on these devices (default: all, in the order of strips). Once there
        is a plan, this ends at the deadline."""
        accounting = self.asked.accounting
        order = canonical(self.asked.cluster, (accounting.source, accounting.sink)).order
        chosen = order if devices is None else tuple(devices)
        some = sub_cluster(self.asked.cluster, chosen)
        for planner in planners:
            # Tiles are one for each device, so one more slow device may make the plan slower.
            fewer = planner.plan is early_fused and devices is None
            for count in range(1, len(chosen) + 1) if fewer else (len(chosen),):
                if self.drafts and clock.now() > self.deadline:
                    self.late = True
                    return
                try:
                    self._ask(planner, chosen[:count], some if count == len(chosen) else None)
                except LimitReached:
                    self.late = True

    def _ask(self, planner: Method, devices: Sequence[int], some: Cluster | None) -> None:
        some = some or sub_cluster(self.asked.cluster, devices)
        if self._floor_s(planner, some) >= self.period_s:
            return
        # Sums of the papers are above what resources allow, so there every plan of a planner is judged.
        below = math.inf if self.by_resources else self.period_s
        answer = planner(
            self._coarse,
            some,
            **planner.taken(
                comm=self.asked.accounting.comm,
                accounting=self.asked.accounting.on(devices),
                below_s=below,
                max_latency_s=self.asked.max_latency_s,
                time_limit_s=MOMENT_S,
                deadline=self.deadline,
            ),
        )
        self.offer(on_devices(on_cuts(answer.stages, self._cuts), devices), outside=planner in OUTSIDE)

    def _floor_s(self, planner: Method, some: Cluster) -> float:
        """A lower bound of the period of the planner's plans on these devices."""
        if not self.by_resources and planner in OUTSIDE and not any(device.alpha_of for device in some.devices):
            return OUTSIDE[planner](self._coarse, some)
        return total_bound_s(self.asked.problem, some, comm=self.asked.accounting.comm)

    def sets_of_devices(self, share: float) -> Iterable[tuple[int, ...]]:
        """Sets of fewer devices on which a plan may be faster, for a share of the time limit."""
        asked, begin = self.asked, clock.now()
        ends = (asked.accounting.source, asked.accounting.sink)
        for devices in fewer_devices(asked.cluster, ends):
            if clock.now() - begin > asked.time_limit_s * share or self.left_s() <= 0:
                self.late = self.late or self.left_s() <= 0
                return
            some = sub_cluster(asked.cluster, devices)
            if total_bound_s(asked.problem, some, comm=asked.accounting.comm) < self.period_s:
                yield devices
