"""Plans for a cluster with one more device or faster links. They show what an upgrade would gain."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Unpack

from downset.clusters.model import Cluster, Link, Network
from downset.errors import InfeasibleError, LimitReached
from downset.graph.core import Graph
from downset.pipelines.accounting import AccountingOptions
from downset.pipelines.plan import plan_pipeline
from downset.plans import Pipeline

__all__ = ["plan_upgraded", "upgrades"]


def upgrades(cluster: Cluster) -> dict[str, Cluster]:
    """Upgraded clusters, by a description of what is added."""
    fastest = max(cluster.devices, key=lambda device: device.speed)
    names = {device.name for device in cluster.devices}
    name = next(name for number in range(2, len(names) + 3) if (name := f"{fastest.name[:50]}_{number}") not in names)
    network = cluster.network
    faster = replace(network, links=tuple(replace(link, **_twice(link)) for link in network.links), **_twice(network))
    return {
        f"one more device like {fastest.name}": replace(
            cluster, devices=(*cluster.devices, replace(fastest, name=name))
        ),
        "links twice as fast": replace(cluster, network=faster),
    }


def _twice(one: Link | Network) -> dict[str, Any]:
    held = one.occupied_bytes_per_s
    return {"bytes_per_s": 2 * one.bytes_per_s, "occupied_bytes_per_s": None if held is None else 2 * held}


def plan_upgraded(
    graph: Graph,
    cluster: Cluster,
    *,
    method: str,
    max_latency_s: float | None = None,
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
    **priced: Unpack[AccountingOptions],
) -> dict[str, Pipeline | None]:
    """The plan of the same method for each upgraded cluster, by what is added; None if it has none within the limits.
    The time limit is that of all plans together."""
    end = time.monotonic() + time_limit_s
    wanted = upgrades(cluster)
    plans: dict[str, Pipeline | None] = {}
    for place, (added, larger) in enumerate(wanted.items()):
        left_s = max(end - time.monotonic(), 0.1) / (len(wanted) - place)
        try:
            plans[added] = plan_pipeline(
                graph, larger, method=method, max_latency_s=max_latency_s, time_limit_s=left_s, work_limit=work_limit,
                **priced,
            )  # fmt: skip
        except (InfeasibleError, LimitReached):
            plans[added] = None
    return plans
