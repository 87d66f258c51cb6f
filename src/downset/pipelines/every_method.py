"""Plans a pipeline by every method, for comparison."""

from __future__ import annotations

from typing import Unpack

from downset.clusters.model import Cluster
from downset.errors import InfeasibleError, LimitReached
from downset.graph.core import Graph
from downset.pipelines.accounting import AccountingOptions
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.planners import PIPELINERS
from downset.results.pipelines import Pipeline

__all__ = ["plan_by_every_method"]


def plan_by_every_method(
    graph: Graph,
    cluster: Cluster,
    *,
    max_latency_s: float | None = None,
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
                max_latency_s=max_latency_s,
                time_limit_s=time_limit_s,
                work_limit=work_limit,
                **priced,
            )
        except (InfeasibleError, LimitReached):
            plans[name] = None
    return plans
