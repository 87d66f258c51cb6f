"""The whole network on one device: the one that is fastest. What every split has to beat."""

from __future__ import annotations

from downset.clusters.model import Cluster
from downset.errors import InfeasibleError
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft, Tile
from downset.pipelines.problem import SplitProblem

__all__ = ["single", "single_draft"]


def single(
    problem: SplitProblem, cluster: Cluster, *, forbidden: frozenset[tuple[int, int, int]] = frozenset()
) -> FoundPipeline:
    """One stage on the fastest device, the first among equals, that is not forbidden to run everything: O(devices).
    Raises InfeasibleError where all are."""
    able = [device for device in range(len(cluster.devices)) if (0, problem.cuts, device) not in forbidden]
    if not able:
        raise InfeasibleError("single: no device has the memory for the whole model; split it (method exact)")
    return FoundPipeline((single_draft(problem, max(able, key=lambda device: cluster.devices[device].speed)),), 0.0)


def single_draft(problem: SplitProblem, device: int) -> StageDraft:
    rows = problem.segment(0, problem.cuts).rows
    return StageDraft(device, (Split(0, problem.cuts, (Tile(device, 0, rows),)),))
