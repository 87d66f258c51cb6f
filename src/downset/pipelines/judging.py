"""Computes period and latency of stages by the model of time that was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from downset.budget import Clock
from downset.clusters.model import Cluster
from downset.errors import InfeasibleError, LimitReached
from downset.messages import Setting
from downset.pipelines.accounting import Accounting
from downset.pipelines.drafts import StageDrafts, TimedPlan
from downset.pipelines.floors import total_bound_s
from downset.pipelines.paper_timing import period_and_latency, stages_of
from downset.pipelines.prices import PricedChain
from downset.pipelines.scheduling.events import TimedTask
from downset.pipelines.scheduling.loads import load_bound_s
from downset.pipelines.scheduling.schedule import ScheduleResult, cyclic_schedule, one_at_a_time, sequence
from downset.pipelines.scheduling.slots import lone_latency_s
from downset.pipelines.tasks import frame_tasks, timed_tasks
from downset.results.pipelines import FrameTasks, PipelineSchedule, Resource, ResourceOrder

__all__ = ["latency_s", "load_s", "timed_plan", "too_slow"]


def timed_plan(
    problem: PricedChain,
    cluster: Cluster,
    drafts: StageDrafts,
    accounting: Accounting,
    *,
    below_s: float = math.inf,
    clock: Clock | None = None,
) -> TimedPlan | None:
    """The stages with tasks, orders, period and latency; None if their load bound shows that the period is not below
    `below_s`.

    Orders are searched until the end of the clock; after it one frame may follow another. If a frame
    alone takes longer than the longest latency by the best orders, windows of 3 and 2 are tried; if it still takes
    longer, one frame follows another."""
    frame = frame_tasks(problem, cluster, drafts, accounting)
    if accounting.comm == "paper":
        period, latency = period_and_latency(cluster, stages_of(problem, cluster, drafts, comm="paper"))
        return TimedPlan(frame, None, period, latency) if period < below_s else None
    timed, resources = timed_tasks(cluster, frame)
    if load_bound_s(timed, len(resources)) >= below_s:
        return None
    schedule = _scheduled(frame, timed, resources, accounting.window, clock)
    limit = accounting.max_latency_s
    if limit is None or schedule.latency_s <= limit:
        return schedule
    for window in (3, 2):
        if schedule.schedule is not None and window < schedule.schedule.window:
            schedule = _scheduled(frame, timed, resources, window, clock)
            if schedule.latency_s <= limit:
                return schedule
    return _one_at_a_time(frame, timed, resources)


def _scheduled(
    frame: FrameTasks,
    timed: Sequence[TimedTask],
    resources: Sequence[Resource],
    window: int | None,
    clock: Clock | None,
) -> TimedPlan:
    medium = len(resources) - 1 if resources and resources[-1].kind == "medium" else None
    schedule = cyclic_schedule(timed, len(resources), medium=medium, window=window, clock=clock)
    return _ordered(frame, timed, resources, schedule)


def _one_at_a_time(frame: FrameTasks, timed: Sequence[TimedTask], resources: Sequence[Resource]) -> TimedPlan:
    """One frame after another, by the better of two orders of tasks: the task that can begin first comes first, or the
    tasks run round by round as listed. By the second order a frame takes no longer than the sum of its rounds."""
    ways = [one_at_a_time(timed, len(resources), order) for order in (sequence(timed), range(len(timed)))]
    periods = [lone_latency_s(timed, schedule) for schedule in ways]
    best = min(range(2), key=lambda way: periods[way])
    return _ordered(
        frame, timed, resources, ScheduleResult(ways[best], periods[best], load_bound_s(timed, len(resources)))
    )


def _ordered(
    frame: FrameTasks, timed: Sequence[TimedTask], resources: Sequence[Resource], schedule_found: ScheduleResult
) -> TimedPlan:
    turns = zip(resources, schedule_found.schedule.orders, strict=True)
    orders = tuple(ResourceOrder(resource, order) for resource, order in turns)
    schedule = PipelineSchedule(schedule_found.schedule.window, orders, (), schedule_found.bound_s)
    return TimedPlan(frame, schedule, schedule_found.period_s, lone_latency_s(timed, schedule_found.schedule))


def latency_s(problem: PricedChain, cluster: Cluster, drafts: StageDrafts, accounting: Accounting) -> float:
    """The latency, in seconds, of stages with one frame inside."""
    if accounting.comm == "paper":
        return period_and_latency(cluster, stages_of(problem, cluster, drafts, comm="paper"))[1]
    frame = frame_tasks(problem, cluster, drafts, accounting)
    timed, resources = timed_tasks(cluster, frame)
    return _one_at_a_time(frame, timed, resources).latency_s


def load_s(problem: PricedChain, cluster: Cluster, drafts: StageDrafts, accounting: Accounting) -> float:
    """The load bound, in seconds, of stages."""
    timed, resources = timed_tasks(cluster, frame_tasks(problem, cluster, drafts, accounting))
    return load_bound_s(timed, len(resources))


def too_slow(
    problem: PricedChain, cluster: Cluster, accounting: Accounting, least_s: float, *, prefix: str = ""
) -> InfeasibleError | LimitReached:
    """The error to raise if no pipeline was found within the latency. It is InfeasibleError only if the limit is below
    the time in which all devices together compute a frame, else LimitReached. `least_s`: the least latency that was
    found."""
    limit, floor = accounting.max_latency_s, total_bound_s(problem, cluster, comm=accounting.comm)
    assert limit is not None
    if limit < floor:
        return InfeasibleError(
            f"{prefix}no pipeline has a latency of {limit:g} s or less: all devices together compute a frame in "
            f"{floor:.6g} s; the least found is {least_s:.6g} s (",
            Setting("max_latency_s"),
            ")",
        )
    return LimitReached(
        f"{prefix}no pipeline with a latency of {limit:g} s or less was found; the least found is {least_s:.6g} s (",
        Setting("max_latency_s"),
        ")",
    )
