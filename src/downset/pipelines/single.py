"""The whole network on one device: the one that is fastest. What every split has to beat."""

from __future__ import annotations

from typing import Any

from downset.cluster import Cluster
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft, Tile
from downset.pipelines.problem import SplitProblem

__all__ = ["single", "single_draft"]


def single(problem: SplitProblem, cluster: Cluster, **_: Any) -> FoundPipeline:
    """One stage on the fastest device, the first among equals. O(devices)."""
    speeds = [device.speed for device in cluster.devices]
    return FoundPipeline((single_draft(problem, speeds.index(max(speeds))),), 0.0)


def single_draft(problem: SplitProblem, device: int) -> StageDraft:
    rows = problem.segment(0, problem.cuts).rows
    return StageDraft(device, (Split(0, problem.cuts, (Tile(device, 0, rows),)),))
