"""The planners that `exact` never loses to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from downset.clusters.model import Cluster
from downset.methods import Method
from downset.pipelines.coedge import coedge
from downset.pipelines.coedge import least_compute_s as coedge_bound_s
from downset.pipelines.drafts import FoundPipeline
from downset.pipelines.early_fused import early_fused
from downset.pipelines.early_fused import least_compute_s as early_fused_bound_s
from downset.pipelines.layerwise import layerwise
from downset.pipelines.optimal_fused import optimal_fused
from downset.pipelines.pico import pico
from downset.pipelines.problem import SplitProblem
from downset.pipelines.single import single
from downset.pipelines.timing import CommName

__all__ = ["INSIDE", "OUTSIDE", "QUICK", "rivals"]

QUICK = (Method(single), Method(layerwise), Method(optimal_fused))
"""Planned before any search, in milliseconds."""
INSIDE = (Method(pico),)
"""Plans of strips in one block a stage: a whole search has seen them."""
OUTSIDE: Mapping[Method, Callable[[SplitProblem, Cluster], float]] = {
    Method(early_fused): early_fused_bound_s,
    Method(coedge): coedge_bound_s,
}
"""Plans of tiles and halo exchange, outside of what is searched, each with a quick bound on its period."""


def rivals(problem: SplitProblem, cluster: Cluster, *, comm: CommName) -> Iterator[tuple[str, FoundPipeline]]:
    """Every other planner's plan of the same problem."""
    for planner in (*QUICK, *INSIDE, *OUTSIDE):
        yield planner.plan.__name__, planner(problem, cluster, **planner.taken(comm=comm))
