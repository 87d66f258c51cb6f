"""Every block one piece: what earlier work planned on, the baseline of PICO's Figures 12-14.

Source: PICO, section 6.1, compared method (5)(1); AOFL and DeepSlicing treat blocks so.
Names: block → the units between two cuts that a single tensor crosses.
Complexity: as `pico`.
Deviations: the plan on the coarse chain is `pico`'s, so that only the pieces differ.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from downset.cluster import Cluster
from downset.pipelines.drafts import FoundPipeline, StageDraft
from downset.pipelines.pico import pico
from downset.pipelines.problem import SplitProblem

__all__ = ["blocks"]


def blocks(problem: SplitProblem, cluster: Cluster, **options: Any) -> FoundPipeline:
    """`pico` on units joined up to the cuts that a single tensor crosses."""
    cuts = [0, *(cut for cut in range(1, problem.cuts) if len(problem.crossing(cut)) <= 1), problem.cuts]
    joined = _joined(problem, cuts)
    found = pico(joined, cluster, **options)
    stages = tuple(
        StageDraft(stage.leader, tuple(replace(s, start=cuts[s.start], stop=cuts[s.stop]) for s in stage.splits))
        for stage in found.stages
    )
    return replace(found, stages=stages)


def _joined(problem: SplitProblem, cuts: list[int]) -> SplitProblem:
    units = tuple(
        tuple(sorted(op for unit in problem.units[start:stop] for op in unit)) for start, stop in pairwise(cuts)
    )
    across = None if problem.across is None else _joined(problem.across, cuts)
    return SplitProblem(problem.tensors, problem.ops, units, problem.kept, across, problem.source_ops)
