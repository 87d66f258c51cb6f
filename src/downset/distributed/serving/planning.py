"""Plans during the run of a pipeline, for the devices that are left and at their present speeds, on a separate thread.

Ahead of losses: for each device in use the plan without it, so that a loss waits for no planning and the plan's shards
can be placed before. On request: whether another plan is worth changing to.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from downset.clusters.model import Cluster
from downset.distributed.serving.deployment import Deployment, Shards
from downset.distributed.simulator import simulate
from downset.errors import DownsetError
from downset.graph.core import Graph
from downset.pipelines.device_order import sub_cluster
from downset.pipelines.replan import replan
from downset.results.pipelines import Pipeline

__all__ = ["Advice", "Advisor", "Planning", "slowed"]

_SIMULATED_FRAMES = 100


class Planning:
    """Plans again as a plan was made: with its method (exact for a method that is not one of downset's), topology,
    source and sink."""

    def __init__(self, graph: Graph, plan: Pipeline, *, time_limit_s: float = 0.5) -> None:
        self._graph, self._plan, self._time_limit_s = graph, plan, time_limit_s

    def plan(self, devices: Collection[str], factors: Mapping[str, float]) -> Pipeline:
        """A plan for these devices of the plan's cluster, each of which takes `factors` times as long (1 if not named);
        the original plan if nothing has changed. Raises UsageError if the source, the sink or every device is missing,
        and the errors of planning, which then name the missing devices."""
        plan, names = self._plan, [device.name for device in self._plan.cluster.devices]
        lost = [number for number, name in enumerate(names) if name not in devices]
        if not lost and all(factor == 1 for factor in factors.values()):
            return plan
        changed = replace(plan, cluster=slowed(plan.cluster, factors))
        return replan(self._graph, changed, lost, time_limit_s=self._time_limit_s)

    def period_s(self, plan: Pipeline, factors: Mapping[str, float]) -> float:
        """The simulated period, in seconds, of a plan whose devices take `factors` times as long as in the original
        cluster."""
        names = [device.name for device in plan.cluster.devices]
        whole = self._plan.cluster
        ordered = sub_cluster(whole, [[device.name for device in whole.devices].index(name) for name in names])
        simulation = simulate(replace(plan, cluster=slowed(ordered, factors)), frames=_SIMULATED_FRAMES)
        return simulation.sustained_period_s or plan.period_s


def slowed(cluster: Cluster, factors: Mapping[str, float]) -> Cluster:
    """The cluster whose devices take `factors` times as long for computing and for messages."""
    return replace(cluster, devices=tuple(device.times(factors.get(device.name, 1.0)) for device in cluster.devices))


_WORTH = 0.9
"""A plan is worth changing to if its period is at most this share of the period in use, because a change takes time."""


@dataclass(frozen=True, slots=True)
class Advice:
    """`devices`: the devices for which the deployment is made. `better`: the deployment is worth changing to now;
    otherwise it is for the case that only these devices are left. `deployment`: None if no better plan was found;
    `factors` are stated in either case."""

    devices: frozenset[str]
    deployment: Deployment | None
    better: bool
    factors: Mapping[str, float] = field(default_factory=dict)


class Advisor:
    """Plans on its thread and calls `tell` there with every advice. A new question ends planning ahead of losses, but
    not the answer to an earlier question, so every question is answered."""

    def __init__(self, planning: Planning, shards: Shards, tell: Callable[[Advice], None]) -> None:
        self._planning, self._shards, self._tell = planning, shards, tell
        self._requests: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._latest = 0
        threading.Thread(target=self._work, name="downset-plans", daemon=True).start()

    def stop(self) -> None:
        self._latest += 1
        self._requests.put(None)

    def forget(self) -> None:
        """Drop the answers to questions so far: they are out of date."""
        self._latest += 1

    def prepare(self, deployment: Deployment, devices: Collection[str], factors: Mapping[str, float]) -> None:
        """Plan for the loss of each device that the deployment uses."""
        number, alive, snapshot = self._number(), frozenset(devices), dict(factors)
        self._requests.put(lambda: self._prepare(number, deployment, alive, snapshot))

    def consider(self, plan: Pipeline, devices: Collection[str], factors: Mapping[str, float]) -> None:
        """Look for a plan that is worth changing to."""
        number, alive, snapshot = self._number(), frozenset(devices), dict(factors)
        self._requests.put(lambda: self._consider(number, plan, alive, snapshot))

    def _number(self) -> int:
        self._latest += 1
        return self._latest

    def _work(self) -> None:
        while (job := self._requests.get()) is not None:
            job()

    def _prepare(
        self, number: int, deployment: Deployment, devices: frozenset[str], factors: Mapping[str, float]
    ) -> None:
        for device in deployment.programs:
            left = devices - {device}
            if number != self._latest:
                return
            fallback = self._deployment(left, factors)
            if fallback is not None and number == self._latest:
                self._tell(Advice(left, fallback, better=False))

    def _deployment(self, devices: frozenset[str], factors: Mapping[str, float]) -> Deployment | None:
        """A deployment on these devices; None if there is no plan for them. The driver reports that when no others are
        left."""
        try:
            return self._shards.deployment(self._planning.plan(devices, factors))
        except DownsetError:
            return None

    def _consider(self, number: int, plan: Pipeline, devices: frozenset[str], factors: Mapping[str, Any]) -> None:
        if number != self._latest:
            return
        deployment = None
        try:
            new_plan = self._planning.plan(devices, factors)
            if self._planning.period_s(new_plan, factors) <= _WORTH * self._planning.period_s(plan, factors):
                deployment = self._shards.deployment(new_plan)
        except DownsetError:
            deployment = None  # the plan in use stays
        self._tell(Advice(devices, deployment, deployment is not None, factors))
