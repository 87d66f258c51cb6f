"""Plans a pipeline again: on the devices that are left, by every method, and on a cluster with more or faster parts."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Unpack

from downset.clusters.model import Cluster, Link, Network
from downset.errors import DownsetError, InfeasibleError, LimitReached, UsageError
from downset.graph.core import Graph
from downset.pipelines.accounting import AccountingOptions
from downset.pipelines.device_order import sub_cluster
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.planners import PIPELINERS
from downset.results.pipelines import Pipeline

__all__ = ["plan_alone", "plan_by_every_method", "plan_upgraded", "replan", "upgrades"]


def replan(graph: Graph, plan: Pipeline, lost: Collection[int], *, time_limit_s: float = 10.0) -> Pipeline:
    """The plan of a graph on the cluster of `plan` without the devices `lost`, by the same method and model of time.

    A method that is not one of downset's is replaced by exact. Raises UsageError if no device is left or the source or
    the sink is lost, and the errors of planning, which then name the lost devices."""
    devices = plan.cluster.devices
    names = [devices[device].name for device in sorted(set(lost))]
    left = [device for device in range(len(devices)) if device not in lost]
    if not left:
        raise UsageError(f"no device is left without {', '.join(names)}: there is nothing to plan on")
    for what, name in (("source", plan.source), ("sink", plan.sink)):
        if name in names:
            raise UsageError(f"{name!r} is the plan's {what}: without it there is nothing to plan")
    method = plan.evidence.method if plan.evidence.method in PIPELINERS else "exact"
    try:
        return plan_pipeline(
            graph,
            sub_cluster(plan.cluster, left),
            method=method,
            comm=plan.comm,
            topology=plan.topology,
            source=_named(plan.source),
            sink=_named(plan.sink),
            time_limit_s=time_limit_s,
        )
    except DownsetError as error:
        raise type(error)(f"without {', '.join(names)}: " if names else "", error.message) from None


def plan_alone(graph: Graph, cluster: Cluster, **options: Any) -> Pipeline | None:
    """The plan of the one device that is fastest alone, with these options of `plan_pipeline`; None where no device may
    hold the whole network, or none is within the limit of latency."""
    try:
        return plan_pipeline(graph, cluster, method="single", units=[range(len(graph.ops))], **options)
    except (InfeasibleError, LimitReached):
        return None


def _named(end: str) -> str | None:
    return None if end == "outside" else end


def plan_by_every_method(
    graph: Graph,
    cluster: Cluster,
    *,
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
    plan: Pipeline | None = None,
    **priced: Unpack[AccountingOptions],
) -> dict[str, Pipeline | None]:
    """The plan of each method of `plan_pipeline`, None for a method that has none within the limits. `plan`: a plan
    made before with these options; its method is not run again."""
    plans: dict[str, Pipeline | None] = {}
    for name in PIPELINERS:
        if plan is not None and name == plan.evidence.method:
            plans[name] = plan
            continue
        try:
            plans[name] = plan_pipeline(
                graph,
                cluster,
                method=name,
                time_limit_s=time_limit_s,
                work_limit=work_limit,
                **priced,
            )
        except (InfeasibleError, LimitReached):
            plans[name] = None
    return plans


def upgrades(cluster: Cluster, *, faster: str) -> dict[str, Cluster]:
    """Upgraded clusters, by a description of what is added. `faster`: the name of the device that is made faster."""
    fastest = max(cluster.devices, key=lambda device: device.speed)
    names = {device.name for device in cluster.devices}
    name = next(name for number in range(2, len(names) + 3) if (name := f"{fastest.name[:50]}_{number}") not in names)
    network = cluster.network
    links = tuple(replace(link, **_twice(link)) for link in network.links)
    devices = cluster.devices
    larger = {
        f"one more device like {fastest.name}": replace(cluster, devices=(*devices, replace(fastest, name=name))),
        f"{faster} twice as fast": replace(
            cluster, devices=tuple(one.times(0.5) if one.name == faster else one for one in devices)
        ),
        "links twice as fast": replace(cluster, network=replace(network, links=links, **_twice(network))),
    }
    if any(device.memory_bytes is not None for device in devices):
        roomy = tuple(replace(one, memory_bytes=one.memory_bytes and 2 * one.memory_bytes) for one in devices)
        larger["twice the memory on each device"] = replace(cluster, devices=roomy)
    return larger


def _twice(one: Link | Network) -> dict[str, Any]:
    occupied = one.occupied_bytes_per_s
    return {"bytes_per_s": 2 * one.bytes_per_s, "occupied_bytes_per_s": None if occupied is None else 2 * occupied}


def plan_upgraded(
    graph: Graph,
    cluster: Cluster,
    *,
    faster: str,
    method: str,
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
    **priced: Unpack[AccountingOptions],
) -> dict[str, Pipeline | None]:
    """The plan of the same method for each upgraded cluster, by what is added; None if it has none within the limits.
    `faster`: the name of the device that is made faster. The time limit is that of all plans together."""
    end = time.monotonic() + time_limit_s
    wanted = upgrades(cluster, faster=faster)
    plans: dict[str, Pipeline | None] = {}
    for place, (added, larger) in enumerate(wanted.items()):
        left_s = max(end - time.monotonic(), 0.1) / (len(wanted) - place)
        try:
            plans[added] = plan_pipeline(
                graph,
                larger,
                method=method,
                time_limit_s=left_s,
                work_limit=work_limit,
                **priced,
            )
        except (InfeasibleError, LimitReached):
            plans[added] = None
    return plans
