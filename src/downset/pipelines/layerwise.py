"""Layer by layer: every unit is split over all devices, gathered, and scattered again.

Source: MoDNN (Mao et al., DATE 2017), biased one-dimensional partition; the LW scheme of the PICO paper.
Names: LW → layerwise; BODP → proportional_rows.
Complexity: O(units · devices).
Deviations: rows in proportion to device speed, as MoDNN's biased partition has them; PICO's text says "equally" of
equal devices, where the two are the same. The leader that gathers is the fastest device. A unit whose frame has fewer
rows than devices leaves the slowest without a row.
"""

from __future__ import annotations

from downset.clusters.model import Cluster
from downset.pipelines.device_order import by_speed
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft
from downset.pipelines.problem import SplitProblem
from downset.pipelines.strips import proportional_rows, tiles

__all__ = ["layerwise"]


def layerwise(problem: SplitProblem, cluster: Cluster) -> FoundPipeline:
    """One stage of all devices, each unit a block of its own."""
    order = by_speed(cluster)
    speeds = [cluster.devices[device].speed for device in order]
    splits = []
    for unit in range(problem.cuts):
        bounds = proportional_rows(problem.segment(unit, unit + 1).rows, speeds)
        splits.append(Split(unit, unit + 1, tiles(order, bounds)))
    return FoundPipeline((StageDraft(order[0], tuple(splits)),), 0.0)
