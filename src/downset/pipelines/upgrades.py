"""Plans for a cluster with one more device, a faster one, faster links or more memory: what an upgrade would gain."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Unpack

from downset.clusters.model import Cluster, Device, Link, Network
from downset.errors import InfeasibleError, LimitReached
from downset.graph.core import Graph
from downset.pipelines.accounting import AccountingOptions
from downset.pipelines.plan import plan_pipeline
from downset.results.pipelines import Pipeline

__all__ = ["plan_upgraded", "upgrades"]


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
            cluster, devices=tuple(_twice_as_fast(one) if one.name == faster else one for one in devices)
        ),
        "links twice as fast": replace(cluster, network=replace(network, links=links, **_twice(network))),
    }
    if any(device.memory_bytes is not None for device in devices):
        roomy = tuple(replace(one, memory_bytes=one.memory_bytes and 2 * one.memory_bytes) for one in devices)
        larger["twice the memory on each device"] = replace(cluster, devices=roomy)
    return larger


def _twice_as_fast(device: Device) -> Device:
    moved = None if device.bytes_per_s is None else 2 * device.bytes_per_s
    costs = None if device.messages is None else device.messages.times(0.5)
    return replace(device, mac_per_s=2 * device.mac_per_s, bytes_per_s=moved, messages=costs)


def _twice(one: Link | Network) -> dict[str, Any]:
    held = one.occupied_bytes_per_s
    return {"bytes_per_s": 2 * one.bytes_per_s, "occupied_bytes_per_s": None if held is None else 2 * held}


def plan_upgraded(
    graph: Graph,
    cluster: Cluster,
    *,
    faster: str,
    method: str,
    max_latency_s: float | None = None,
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
                max_latency_s=max_latency_s,
                time_limit_s=left_s,
                work_limit=work_limit,
                **priced,
            )
        except (InfeasibleError, LimitReached):
            plans[added] = None
    return plans
