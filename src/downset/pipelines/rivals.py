"""The planners that `exact` never loses to."""

from __future__ import annotations

from collections.abc import Iterator

from downset.cluster import Cluster
from downset.pipelines.coedge import coedge
from downset.pipelines.drafts import FoundPipeline
from downset.pipelines.early_fused import early_fused
from downset.pipelines.layerwise import layerwise
from downset.pipelines.optimal_fused import optimal_fused
from downset.pipelines.pico import pico
from downset.pipelines.problem import SplitProblem
from downset.pipelines.single import single

__all__ = ["rivals"]


def rivals(problem: SplitProblem, cluster: Cluster, *, comm: str) -> Iterator[tuple[str, FoundPipeline]]:
    """Every other planner's plan of the same problem."""
    for planner in (single, layerwise, early_fused, optimal_fused, coedge, pico):
        yield planner.__name__, planner(problem, cluster, comm=comm)
