"""Plans for the devices that are left, at their present speeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from downset.clusters.model import Cluster, Device
from downset.distributed.simulator import simulate
from downset.graph.core import Graph
from downset.pipelines.device_order import sub_cluster
from downset.pipelines.replan import replan
from downset.results.pipelines import Pipeline

__all__ = ["Planning", "slowed"]

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
        given = sub_cluster(whole, [[device.name for device in whole.devices].index(name) for name in names])
        simulation = simulate(replace(plan, cluster=slowed(given, factors)), frames=_SIMULATED_FRAMES)
        return simulation.sustained_period_s or plan.period_s


def slowed(cluster: Cluster, factors: Mapping[str, float]) -> Cluster:
    """The cluster whose devices take `factors` times as long for computing and for messages."""
    return replace(cluster, devices=tuple(_slowed(device, factors.get(device.name, 1.0)) for device in cluster.devices))


def _slowed(device: Device, factor: float) -> Device:
    bytes_per_s = None if device.bytes_per_s is None else device.bytes_per_s / factor
    messages = None if device.messages is None else device.messages.times(factor)
    return replace(device, mac_per_s=device.mac_per_s / factor, bytes_per_s=bytes_per_s, messages=messages)
