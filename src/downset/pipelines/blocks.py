"""`pico` with every network block as one piece: the chain of earlier work, and the baseline of PICO's Figures 12-14.

Source: PICO, section 6.1, compared method (5)(1); AOFL and DeepSlicing treat blocks so.
Names: block → the units between two cuts that a single tensor crosses.
Complexity: as `pico`.
Deviations: `pico` plans on the coarse chain, so that only the pieces differ.
"""

from __future__ import annotations

from dataclasses import replace

from downset.budget import Clock
from downset.clusters.model import Cluster
from downset.pipelines.accounting import Accounting
from downset.pipelines.drafts import FoundPipeline, on_cuts
from downset.pipelines.pico import Leader, Ties, pico
from downset.pipelines.prices import PricedChain
from downset.pipelines.problem import joined

__all__ = ["blocks"]


def blocks(
    problem: PricedChain,
    cluster: Cluster,
    *,
    accounting: Accounting | None = None,
    leader: Leader = "most bytes",
    ties: Ties = "printed",
    deadline: Clock | None = None,
) -> FoundPipeline:
    """`pico` on units joined up to the cuts that a single tensor crosses. Raises LimitReached as `pico` does."""
    cuts = [0, *(cut for cut in range(1, problem.cuts) if len(problem.crossing(cut)) <= 1), problem.cuts]
    coarse = PricedChain(joined(problem.problem, cuts))
    plan = pico(coarse, cluster, accounting=accounting, leader=leader, ties=ties, deadline=deadline)
    return replace(plan, stages=on_cuts(plan.stages, cuts))
