"""Plans a pipeline again, without lost devices or at other speeds of the cluster's devices."""

from __future__ import annotations

from collections.abc import Collection

from downset.errors import DownsetError, UsageError
from downset.graph.core import Graph
from downset.pipelines.device_order import sub_cluster
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.planners import PIPELINERS
from downset.results.pipelines import Pipeline

__all__ = ["replan"]


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


def _named(end: str) -> str | None:
    return None if end == "outside" else end
