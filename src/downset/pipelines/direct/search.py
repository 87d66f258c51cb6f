"""Searches pipelines of least period with direct hand-over: first bounds, then plans where the bounds allow a better
one.

Source: ours.
Names: incumbent → a plan that is known before; here the best with leaders, which is at least as good as every baseline.
Bounds hold for all plans of row strips (`bound`). Plans begin as the stages that the search for bounds and its guide
found, and as the strips of the leaders' plan and of every baseline, handed over directly. Each beginning descends
(`descent`) by its loads, the least load first; then stages nested in one another (`nested`) do. The results are
scheduled, and the least period is taken.
Complexity: three bisections of about twenty periods; for each beginning as many prices as the descent takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from downset.budget import Clock
from downset.pipelines.device_order import CanonicalDevices, canonical
from downset.pipelines.direct.descent import DirectDrafts, descended, directly
from downset.pipelines.direct.least_period import DirectSpace, Relaxed, RelaxedSpace, direct_space, least_period
from downset.pipelines.direct.nested import nested_stages
from downset.pipelines.drafts import FoundPipeline, StageDrafts, TimedPlan
from downset.pipelines.judging import timed_plan
from downset.pipelines.set_search import ExactRequest

__all__ = ["direct"]

_CLOSE = 1e-9
_NEAR = 1e-4
"""How close bounds are to a period with stages: at first, and when a plan is near."""
_SHARE = 1 / 3
"""The share of the remaining time for one descent."""
_VAIN = 3
"""The search ends after this many beginnings in a row without a better plan; later ones have higher loads."""
_STRIPS = (
    "stages of consecutive units of one chain on disjoint sets of devices, row strips from the fastest device down, "
)
Space = Literal["one block", "any blocks", "all"]
_SPACES: Mapping[Space, str] = {
    "one block": _STRIPS + "one fused block a stage, with leaders or handed over directly",
    "any blocks": _STRIPS + "any number of blocks, with leaders or handed over directly",
    "all": "all pipelines",
}


def direct(
    request: ExactRequest,
    clock: Clock,
    *,
    total_bound_s: float,
    led_drafts: Iterable[StageDrafts],
    incumbent: FoundPipeline | None,
    offered: Iterable[StageDrafts] = (),
) -> FoundPipeline | None:
    """The best plan found until the end of the clock, at least as good as the incumbent; None if there is none within
    the limits. `led_drafts`: plans with leaders, whose strips may be handed over directly. `offered`: plans that count
    whatever time there is. `total_bound_s`: a bound on the period of all pipelines."""
    problem, cluster, accounting = request.problem, request.cluster, request.accounting
    best = _Best(request, clock)
    if incumbent is not None:
        alike = directly(incumbent.stages)  # of equal plans the one without leaders
        if alike is not None:
            best.offer(alike)
        best.offer(incumbent.stages, incumbent.timed)
    for drafts in offered:
        best.offer(drafts)
    if clock.late():
        return best.unproven(total_bound_s)
    space = direct_space(problem, cluster, accounting, forbidden=request.forbidden)
    bounds = _Bounds(space, total_bound_s, clock)
    priced = DirectDrafts(problem, cluster, accounting, canonical(cluster).order, request.forbidden)
    top = priced.alone_s()
    for plans in ("any blocks", "one block"):
        bounds.tighten(plans, min(best.period_s, top), _NEAR)
    guide = least_period(
        lambda period: space.stages(period, "guide"),
        at_least_s=bounds.of["one block"].bound_s,
        at_most_s=top,
        close=_NEAR,
        clock=clock,
    )
    beginnings = _beginnings(priced, space, [guide, bounds.of["one block"]], led_drafts)
    at_least = bounds.of["any blocks"].bound_s
    _descend(best, priced, beginnings, at_least, clock)
    free = accounting.source is None and accounting.sink is None and not request.forbidden
    if free and best.period_s > at_least * (1 + _NEAR):
        folds = sorted(nested_stages(problem, cluster, clock), key=lambda drafts: priced.loads(drafts).bound_s)
        _descend(best, priced, folds, at_least, clock)
    return best.proven_by(bounds, canonical(cluster))


def _descend(
    best: _Best, priced: DirectDrafts, beginnings: Iterable[StageDrafts], at_least_s: float, clock: Clock
) -> None:
    """Offer these plans and what they descend to, until they are in vain."""
    vain = 0
    for drafts in beginnings:
        if vain > _VAIN or best.period_s <= at_least_s * (1 + _NEAR) or clock.late():
            break
        before, share = best.period_s, clock.left() * _SHARE
        if priced.loads(drafts).bound_s < before:
            best.offer(drafts)
        improved = descended(drafts, priced, at_least_s=at_least_s, clock=clock.within(share))
        if improved != drafts:
            best.offer(improved)
        vain = 0 if best.period_s < before else vain + 1


def _beginnings(
    priced: DirectDrafts, space: DirectSpace, relaxed: Iterable[Relaxed], led_drafts: Iterable[StageDrafts]
) -> Iterator[StageDrafts]:
    """Drafts to begin with, without repetitions, the least load first."""
    beginnings: dict[StageDrafts, None] = {}
    for _, stages in (one for many in relaxed for one in many.tried):
        drafts = priced.draft(space.types, stages)
        if drafts is not None:
            beginnings.setdefault(drafts)
    for other in led_drafts:
        drafts = directly(other)
        if drafts is not None and priced.allowed(drafts):
            beginnings.setdefault(drafts)
    yield from sorted(beginnings, key=lambda drafts: priced.loads(drafts).bound_s)


@dataclass
class _Bounds:
    """The known bounds on the period, by the space of plans for which they hold."""

    space: DirectSpace
    total_s: float
    clock: Clock
    of: dict[str, Relaxed] = field(default_factory=dict)
    states: int = 0

    def tighten(self, plans: RelaxedSpace, at_most_s: float, close: float) -> None:
        """Bisect the bound of these plans until it is `close` to a period with stages, which `at_most_s` may be."""
        before = self.of.get(plans)
        at_least = max(self.total_s, before.bound_s if before else 0.0)
        relaxed = least_period(
            lambda period: self.space.stages(period, plans),
            at_least_s=min(at_least, at_most_s),
            at_most_s=at_most_s,
            close=close,
            clock=self.clock,
        )
        self.states += relaxed.periods * self.space.pairs.states
        tried = before.tried if before else ()
        self.of[plans] = replace(relaxed, tried=(*tried, *relaxed.tried))


@dataclass
class _Best:
    """The plan of least period so far within the limits."""

    request: ExactRequest
    clock: Clock
    drafts: StageDrafts = ()
    kept: TimedPlan | None = None
    period_s: float = math.inf

    def offer(self, drafts: StageDrafts, timed: TimedPlan | None = None) -> None:
        request, limit = self.request, self.request.accounting.max_latency_s
        timed = timed or timed_plan(
            request.problem,
            request.cluster,
            drafts,
            replace(request.accounting, max_latency_s=None),
            below_s=self.period_s,
            clock=self.clock,
        )
        if timed is None or (limit is not None and timed.latency_s > limit):
            return
        if timed.period_s < self.period_s * (1 - _CLOSE):
            self.drafts, self.kept, self.period_s = drafts, timed, timed.period_s

    def unproven(self, total_bound_s: float) -> FoundPipeline | None:
        """The plan without a search; only the bound on all pipelines is known."""
        if self.kept is None:
            return None
        bound = min(total_bound_s, self.period_s)
        return FoundPipeline(self.drafts, bound, stopped=True, timed=self.kept, space=_SPACES["all"])

    def proven_by(self, bounds: _Bounds, form: CanonicalDevices) -> FoundPipeline | None:
        """The plan with the bound of the smallest space that contains it, or of a larger space whose bound it meets."""
        if self.kept is None:
            return None
        spaces = _spaces(self.drafts, form)
        for plans in spaces:
            if bounds.of[plans].bound_s >= self.period_s * (1 - 2 * _NEAR):
                bounds.tighten(plans, self.period_s, _CLOSE / 4)
        bounds_s = {plans: bounds.of[plans].bound_s for plans in spaces}
        met = [plans for plans, bound in bounds_s.items() if bound >= self.period_s * (1 - _CLOSE)]
        space: Space = met[-1] if met else (spaces[0] if spaces else "all")
        bound = bounds.total_s if space == "all" else bounds_s[space]
        stopped = not met and self.clock.late()
        led = any(stage.leader >= 0 for stage in self.drafts)
        note = "no faster plan of direct hand-over was found: this one has leaders" if led and not met else ""
        return FoundPipeline(
            self.drafts, min(bound, self.period_s), bool(met), bounds.states, note, stopped, self.kept, _SPACES[space]
        )


def _spaces(drafts: StageDrafts, form: CanonicalDevices) -> list[Literal["one block", "any blocks"]]:
    """The spaces that contain a plan, the smallest first."""
    place = {device: form.type[k] for k, device in enumerate(form.order)}
    for split in (split for stage in drafts for split in stage.splits):
        if any(tile.columns is not None for tile in split.tiles):
            return []
        rows = sorted(split.tiles, key=lambda tile: tile.start)
        if any(place[one.device] > place[two.device] for one, two in pairwise(rows)):
            return []
    return ["one block", "any blocks"] if all(len(stage.splits) == 1 for stage in drafts) else ["any blocks"]
