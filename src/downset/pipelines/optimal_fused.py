"""Which layers to fuse, by dynamic programming: all devices run one fused block after another.

Source: AOFL (Zhou et al., SEC 2019); the OFL scheme of the PICO paper.
Names: fused block → block; OFL → optimal_fused.
Complexity: O(units² · devices) prices.
Deviations: strips of equal height, as the PICO paper compares it ("PICO and CE adjust the feature partition size", OFL
does not). A block may be left to the leader alone, which AOFL's plans do with the last layers. On overlapping networks
the programme still sums each block's computing and communication, as AOFL's does.
"""

from __future__ import annotations

from typing import Any

from downset.cluster import Cluster
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft, Tile
from downset.pipelines.problem import SplitProblem
from downset.pipelines.strips import equal_rows, tiles
from downset.pipelines.timing import stage_of

__all__ = ["optimal_fused"]


def optimal_fused(problem: SplitProblem, cluster: Cluster, **_: Any) -> FoundPipeline:
    """One stage of all devices with the fused blocks of least total time."""
    speeds = [device.speed for device in cluster.devices]
    leader = speeds.index(max(speeds))
    best = [0.0] + [float("inf")] * problem.cuts
    chosen: list[Split | None] = [None] * (problem.cuts + 1)
    for stop in range(1, problem.cuts + 1):
        for start in range(stop):
            rows = problem.segment(start, stop).rows
            devices = range(len(speeds))
            for split in (
                Split(start, stop, tiles(devices, equal_rows(rows, len(speeds)))),
                Split(start, stop, (Tile(leader, 0, rows),)),
            ):
                stage = stage_of(problem, cluster, StageDraft(leader, (split,)), comm="paper")
                seconds = best[start] + stage.compute_s + stage.transfer_s
                if seconds < best[stop]:
                    best[stop], chosen[stop] = seconds, split
    splits: list[Split] = []
    cut = problem.cuts
    while cut > 0:
        split_ = chosen[cut]
        assert split_ is not None
        splits.insert(0, split_)
        cut = split_.start
    return FoundPipeline((StageDraft(leader, tuple(splits)),), 0.0)
