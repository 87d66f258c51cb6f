"""What stages cost: their period and latency in the model of time that was asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from downset.clusters.model import Cluster
from downset.errors import UsageError
from downset.methods import check_choice
from downset.pipelines.drafts import Drafted, Judged
from downset.pipelines.fetches import frame_tasks
from downset.pipelines.paper_timing import CommName, check_comm, period_and_latency, stages_of
from downset.pipelines.problem import SplitProblem
from downset.pipelines.scheduling.loads import load_bound_s
from downset.pipelines.scheduling.schedule import cyclic_schedule, lone_frame_s
from downset.pipelines.tasks import latency_by_rounds_s, timed_tasks
from downset.plans import PipelineSchedule, ResourceOrder

__all__ = ["Accounting", "AccountingOptions", "TopologyName", "accounting_of", "judged", "latency_s"]

TopologyName = Literal["leader", "direct"]


class AccountingOptions(TypedDict, total=False):
    """The options of `plan_pipeline` that say how a plan is priced."""

    comm: CommName
    topology: TopologyName
    source: str | None
    sink: str | None
    window: int | None


@dataclass(frozen=True, slots=True)
class Accounting:
    """How plans are priced. `comm`: by resources, or as the paper's equations. `topology`: how exact hands rows on;
    every plan is priced by the rules of its own stages. `source` and `sink`: devices, None for
    outside. `window`: the most frames inside at once, None: as many as help."""

    comm: CommName = "resources"
    topology: TopologyName = "leader"
    source: int | None = None
    sink: int | None = None
    window: int | None = None


def accounting_of(
    cluster: Cluster, *, comm: CommName = "resources", topology: TopologyName = "leader", source: str | None = None,
    sink: str | None = None, window: int | None = None,
) -> Accounting:  # fmt: skip
    """The options of `plan_pipeline` that say how a plan is priced, checked. Raises UsageError."""
    check_comm(comm)
    check_choice("topology", topology, get_args(TopologyName))
    if comm == "paper" and topology == "direct":
        raise UsageError("comm paper knows no direct hand-over: its equations have leaders; use comm resources")
    if window is not None and window < 1:
        raise UsageError(f"a window holds at least one frame; given {window}")
    names = [device.name for device in cluster.devices]
    ends = []
    for what, name in (("source", source), ("sink", sink)):
        if name not in (None, "outside", *names):
            raise UsageError(f"{what}: no device is called {name!r}; the cluster has {', '.join(names)}, or outside")
        ends.append(None if name in (None, "outside") else names.index(str(name)))
    if comm == "paper" and (window is not None or ends != [None, None]):
        raise UsageError("comm paper knows no source, sink or window: its equations have none; use comm resources")
    return Accounting("paper" if comm == "paper" else "resources", topology, ends[0], ends[1], window)


def judged(
    problem: SplitProblem, cluster: Cluster, drafts: Drafted, accounting: Accounting, *, below_s: float = math.inf,
    deadline: float = math.inf,
) -> Judged | None:  # fmt: skip
    """Stages priced; None where their load bound says that the period is not below `below_s`.

    Orders are searched until the deadline (of `time.monotonic`); past it frames may follow one after another."""
    frame = frame_tasks(problem, cluster, drafts, comm=accounting.comm, source=accounting.source, sink=accounting.sink)
    if accounting.comm == "paper":
        period, latency = period_and_latency(cluster, stages_of(problem, cluster, drafts, comm="paper"))
        return Judged(frame, None, period, latency) if period < below_s else None
    timed, resources = timed_tasks(cluster, frame.stages, frame.tasks)
    if load_bound_s(timed, len(resources)) >= below_s:
        return None
    medium = len(resources) - 1 if resources and resources[-1].kind == "medium" else None
    found = cyclic_schedule(timed, len(resources), medium=medium, window=accounting.window, deadline=deadline)
    orders = tuple(
        ResourceOrder(resource, turns) for resource, turns in zip(resources, found.schedule.orders, strict=True)
    )
    schedule = PipelineSchedule(found.schedule.window, orders, (), found.bound_s)
    rounds = latency_by_rounds_s(cluster, frame.tasks, timed, frame.rounds)
    return Judged(frame, schedule, found.period_s, max(rounds, lone_frame_s(timed, found.schedule)))


def latency_s(problem: SplitProblem, cluster: Cluster, drafts: Drafted, accounting: Accounting) -> float:
    """The latency of stages by rounds."""
    if accounting.comm == "paper":
        return period_and_latency(cluster, stages_of(problem, cluster, drafts, comm="paper"))[1]
    frame = frame_tasks(problem, cluster, drafts, comm="resources", source=accounting.source, sink=accounting.sink)
    timed, _ = timed_tasks(cluster, frame.stages, frame.tasks)
    return latency_by_rounds_s(cluster, frame.tasks, timed, frame.rounds)
