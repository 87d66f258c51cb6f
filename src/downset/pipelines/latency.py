"""Plans for a limit on latency: searched by the sums of their rounds, accepted by the time that a frame takes alone.

By resources the sum of a stage's rounds is only a guide. A plan is within the limit if a lone frame is, in the plan's
own orders; the simulator's lone frame takes the same time.
Complexity: one search for each latency tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from downset.budget import Clock
from downset.pipelines.accounting import Accounting
from downset.pipelines.device_order import sub_cluster
from downset.pipelines.drafts import StageDrafts, on_cuts, on_devices
from downset.pipelines.floors import total_bound_s
from downset.pipelines.incumbents import EVERY_DEVICE, baseline_plans, fewer_devices
from downset.pipelines.judging import latency_s
from downset.pipelines.set_search import ExactRequest, SetSearchResult, search_by_rounds

__all__ = ["least_latency", "plans_by_latency"]

_STEPS = 4
"""How many latencies are tried between one power of two and the next."""
_ABOVE, _BELOW = 1, 10
"""How many times the searched limit is doubled above the limit asked for, because orders may make a lone frame faster
than its sum, and halved below it."""
_SHARE = 0.25
"""The share of the remaining time for one search."""


def plans_by_latency(request: ExactRequest, clock: Clock) -> Iterator[StageDrafts]:
    """The plan with the least sum of rounds, then the plans of least period for latencies: from the limit down as long
    as there are plans, then up from it.

    The latencies do not depend on the limit. So a larger limit has all plans of a smaller one."""
    limit = request.accounting.max_latency_s
    assert limit is not None

    def searched(latency: float, *, least: bool = False) -> SetSearchResult | None:
        part = clock.within(clock.left() * _SHARE)
        if part.over():
            return None
        accounting = replace(request.accounting, comm="resources", max_latency_s=latency)
        return search_by_rounds(replace(request, accounting=accounting), part, least_latency=least)

    top = math.floor(math.log2(limit) * _STEPS)
    down, up = range(top, top - _BELOW * _STEPS, -1), range(top + 1, top + _STEPS * _ABOVE + 1)
    if (answer := searched(math.inf, least=True)) and answer.stages:
        yield answer.stages
    for steps in (down, up):
        for step in steps:
            answer = searched(2.0 ** (step / _STEPS))
            if answer is not None and answer.stages:
                yield answer.stages
            elif answer is None or (answer.finished and steps is down):
                break


def least_latency(request: ExactRequest, clock: Clock) -> tuple[float, StageDrafts]:
    """The least latency found in the time, in seconds, of any pipeline of the space or a baseline, also on fewer
    devices, and its stages."""
    problem, cluster, comm = request.problem, request.cluster, request.accounting.comm
    best: tuple[float, StageDrafts] = (math.inf, ())

    def offer(plan: StageDrafts) -> None:
        nonlocal best
        if plan:
            seconds = latency_s(problem, cluster, plan, request.accounting)
            best = min(best, (seconds, plan), key=lambda one: one[0])

    for plan in baseline_plans(problem, cluster, comm, clock):
        offer(plan)
    quickest = ExactRequest(problem, cluster, replace(request.accounting, max_latency_s=best[0]))
    offer(search_by_rounds(quickest, clock, least_latency=True).stages)
    coarse, cuts = problem.without_relays()
    for devices in fewer_devices(cluster, (request.accounting.source, request.accounting.sink)):
        some = sub_cluster(cluster, devices)
        if clock.late():
            break
        if total_bound_s(problem, some, comm=comm) < best[0]:
            for planner in EVERY_DEVICE:
                stages = planner(coarse, some, **planner.taken(accounting=Accounting(comm))).stages
                offer(on_devices(on_cuts(stages, cuts), devices))
    return best
