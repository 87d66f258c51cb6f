"""The planners that `exact` never loses to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from downset.clusters.model import Cluster
from downset.methods import Method
from downset.pipelines.blocks import blocks
from downset.pipelines.coedge import coedge
from downset.pipelines.coedge import least_compute_s as coedge_bound_s
from downset.pipelines.drafts import FoundPipeline
from downset.pipelines.early_fused import early_fused
from downset.pipelines.early_fused import least_compute_s as early_fused_bound_s
from downset.pipelines.exhaustive import exhaustive
from downset.pipelines.layerwise import layerwise
from downset.pipelines.optimal_fused import optimal_fused
from downset.pipelines.paper_timing import CommName
from downset.pipelines.pico import pico
from downset.pipelines.problem import SplitProblem
from downset.pipelines.single import single

__all__ = ["INSIDE", "MOMENT_S", "OUTSIDE", "QUICK", "baselines"]

MOMENT_S = 0.2
"""What `exhaustive` has as a baseline: small networks are done, of large ones it would not see much in any time."""
QUICK = (Method(single), Method(layerwise), Method(optimal_fused))
"""Planned before any search, in milliseconds."""
INSIDE = (Method(pico), Method(blocks), Method(exhaustive))
"""Plans of strips in one block a stage: a whole search has seen them."""
OUTSIDE: Mapping[Method, Callable[[SplitProblem, Cluster], float]] = {
    Method(early_fused): early_fused_bound_s,
    Method(coedge): coedge_bound_s,
}
"""Plans of tiles and halo exchange, outside of what is searched, each with a quick bound on its period."""


def baselines(problem: SplitProblem, cluster: Cluster, *, comm: CommName) -> Iterator[tuple[str, FoundPipeline]]:
    """Every other planner's plan of the same problem; of `exhaustive` what it finds in a moment."""
    for planner in (*QUICK, *INSIDE, *OUTSIDE):
        yield planner.plan.__name__, planner(problem, cluster, **planner.taken(comm=comm, time_limit_s=MOMENT_S))
