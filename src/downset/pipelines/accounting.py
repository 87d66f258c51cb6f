"""Computes period and latency of stages in the model of time that was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, get_args

from downset.clusters.model import Cluster
from downset.errors import InfeasibleError, LimitReached, UsageError
from downset.messages import Setting
from downset.methods import check_choice
from downset.pipelines.drafts import Drafted, FrameTasks, Judged
from downset.pipelines.fetches import frame_tasks
from downset.pipelines.floors import total_bound_s
from downset.pipelines.paper_timing import CommName, check_comm, period_and_latency, stages_of
from downset.pipelines.problem import SplitProblem
from downset.pipelines.scheduling.clocks import lone_latency_s
from downset.pipelines.scheduling.events import TimedTask
from downset.pipelines.scheduling.loads import load_bound_s
from downset.pipelines.scheduling.schedule import Scheduled, cyclic_schedule, one_at_a_time, sequence
from downset.pipelines.tasks import timed_tasks
from downset.results.pipelines import PipelineSchedule, Resource, ResourceOrder

__all__ = ["Accounting", "AccountingOptions", "TopologyName", "accounting_of", "judged", "latency_s", "too_slow"]

TopologyName = Literal["leader", "direct"]


class AccountingOptions(TypedDict, total=False):
    """The options of `plan_pipeline` that decide how a plan is priced."""

    comm: CommName
    topology: TopologyName
    source: str | None
    sink: str | None
    window: int | None


@dataclass(frozen=True, slots=True)
class Accounting:
    """How plans are priced. `comm`: by resources, or by the paper's equations. `topology`: how `exact` hands rows on;
    every plan is priced by the rules of its stages. `source` and `sink`: indices of devices, None for outside.
    `window`: the most frames inside at once; None: as many as shorten the period."""

    comm: CommName = "resources"
    topology: TopologyName = "leader"
    source: int | None = None
    sink: int | None = None
    window: int | None = None

    def on(self, devices: Sequence[int]) -> Accounting:
        """The same for a cluster of these devices only; a source or sink that is not among them is outside."""
        place = {device: k for k, device in enumerate(devices)}
        source, sink = (None if end is None else place.get(end) for end in (self.source, self.sink))
        return replace(self, source=source, sink=sink)


def accounting_of(
    cluster: Cluster,
    *,
    comm: CommName = "resources",
    topology: TopologyName = "leader",
    source: str | None = None,
    sink: str | None = None,
    window: int | None = None,
) -> Accounting:
    """The pricing options of `plan_pipeline`, with devices as indices. Raises UsageError for options that do not fit
    together or name no device of the cluster."""
    check_comm(comm)
    check_choice("topology", topology, get_args(TopologyName))
    if comm == "paper" and topology == "direct":
        raise UsageError("comm paper has no direct hand-over, as its equations have leaders; use comm resources")
    if window is not None and not (window >= 1 and window == int(window)):
        raise UsageError(f"window must be a whole number of frames, at least 1; given {window}")
    names = [device.name for device in cluster.devices]
    ends = []
    for what, name in (("source", source), ("sink", sink)):
        if name not in (None, "outside", *names):
            raise UsageError(f"{what}: no device is called {name!r}; the cluster has {', '.join(names)}, or outside")
        ends.append(None if name in (None, "outside") else names.index(str(name)))
    if comm == "paper" and (window is not None or ends != [None, None]):
        raise UsageError("comm paper has no source, sink or window, as its equations have none; use comm resources")
    return Accounting("paper" if comm == "paper" else "resources", topology, ends[0], ends[1], window)


def judged(
    problem: SplitProblem,
    cluster: Cluster,
    drafts: Drafted,
    accounting: Accounting,
    *,
    below_s: float = math.inf,
    deadline: float = math.inf,
    max_latency_s: float | None = None,
) -> Judged | None:
    """The stages with tasks, orders, period and latency; None if their load bound shows that the period is not below
    `below_s`.

    Orders are searched until the deadline (a time of `clock.now`); after it one frame may follow another. If a frame
    alone takes longer than `max_latency_s` by the best orders, windows of 3 and 2 are tried; if it still takes longer,
    one frame follows another."""
    frame = frame_tasks(problem, cluster, drafts, comm=accounting.comm, source=accounting.source, sink=accounting.sink)
    if accounting.comm == "paper":
        period, latency = period_and_latency(cluster, stages_of(problem, cluster, drafts, comm="paper"))
        return Judged(frame, None, period, latency) if period < below_s else None
    timed, resources = timed_tasks(cluster, frame)
    if load_bound_s(timed, len(resources)) >= below_s:
        return None
    schedule = _scheduled(frame, timed, resources, accounting.window, deadline)
    if max_latency_s is None or schedule.latency_s <= max_latency_s:
        return schedule
    for window in (3, 2):
        if schedule.schedule is not None and window < schedule.schedule.window:
            schedule = _scheduled(frame, timed, resources, window, deadline)
            if schedule.latency_s <= max_latency_s:
                return schedule
    return _one_at_a_time(frame, timed, resources)


def _scheduled(
    frame: FrameTasks, timed: Sequence[TimedTask], resources: Sequence[Resource], window: int | None, deadline: float
) -> Judged:
    medium = len(resources) - 1 if resources and resources[-1].kind == "medium" else None
    schedule = cyclic_schedule(timed, len(resources), medium=medium, window=window, deadline=deadline)
    return _ordered(frame, timed, resources, schedule)


def _one_at_a_time(frame: FrameTasks, timed: Sequence[TimedTask], resources: Sequence[Resource]) -> Judged:
    """One frame after another, by the better of two orders of tasks: the task that can begin first comes first, or the
    tasks run round by round as listed. By the second order a frame takes no longer than the sum of its rounds."""
    ways = [one_at_a_time(timed, len(resources), order) for order in (sequence(timed), range(len(timed)))]
    periods = [lone_latency_s(timed, schedule) for schedule in ways]
    best = min(range(2), key=lambda way: periods[way])
    return _ordered(frame, timed, resources, Scheduled(ways[best], periods[best], load_bound_s(timed, len(resources))))


def _ordered(
    frame: FrameTasks, timed: Sequence[TimedTask], resources: Sequence[Resource], schedule_found: Scheduled
) -> Judged:
    turns = zip(resources, schedule_found.schedule.orders, strict=True)
    orders = tuple(ResourceOrder(resource, order) for resource, order in turns)
    schedule = PipelineSchedule(schedule_found.schedule.window, orders, (), schedule_found.bound_s)
    return Judged(frame, schedule, schedule_found.period_s, lone_latency_s(timed, schedule_found.schedule))


def latency_s(problem: SplitProblem, cluster: Cluster, drafts: Drafted, accounting: Accounting) -> float:
    """The latency, in seconds, of stages with one frame inside."""
    if accounting.comm == "paper":
        return period_and_latency(cluster, stages_of(problem, cluster, drafts, comm="paper"))[1]
    frame = frame_tasks(problem, cluster, drafts, comm="resources", source=accounting.source, sink=accounting.sink)
    timed, resources = timed_tasks(cluster, frame)
    return _one_at_a_time(frame, timed, resources).latency_s


def too_slow(
    problem: SplitProblem,
    cluster: Cluster,
    accounting: Accounting,
    max_latency_s: float,
    least_s: float,
    *,
    said: str = "",
) -> InfeasibleError | LimitReached:
    """The error to raise if no pipeline was found within a latency. It is InfeasibleError only if the limit is below
    the time in which all devices together compute a frame, else LimitReached. `least_s`: the least latency that was
    found."""
    floor = total_bound_s(problem, cluster, comm=accounting.comm)
    if max_latency_s < floor:
        return InfeasibleError(
            f"{said}no pipeline has a latency of {max_latency_s:g} s or less: all devices together compute a frame in "
            f"{floor:.6g} s; the least found is {least_s:.6g} s (",
            Setting("max_latency_s"),
            ")",
        )
    return LimitReached(
        f"{said}no pipeline with a latency of {max_latency_s:g} s or less was found; the least found is "
        f"{least_s:.6g} s (",
        Setting("max_latency_s"),
        ")",
    )
