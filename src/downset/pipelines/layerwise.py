"""Layer by layer: every unit is split over all devices, and its result is gathered before the next.

Source: MoDNN (Mao et al., DATE 2017), biased one-dimensional partition; the LW scheme of the PICO paper.
Names: LW → layerwise; BODP → proportional_rows.
Complexity: O(units · devices).
Deviations: rows are in proportion to device speed, as in MoDNN's biased partition; PICO's text says "equally" for equal
devices, for which both are the same. The fastest device is the leader, which gathers. If a unit's frame has fewer rows
than there are devices, the slowest devices have none.
"""

from __future__ import annotations

from downset.clusters.model import Cluster
from downset.pipelines.device_order import by_speed
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft
from downset.pipelines.prices import PricedChain
from downset.pipelines.strips import proportional_rows, tiles

__all__ = ["layerwise"]


def layerwise(problem: PricedChain, cluster: Cluster) -> FoundPipeline:
    """One stage of all devices in which each unit is a block."""
    order = by_speed(cluster)
    speeds = [cluster.devices[device].speed for device in order]
    splits = []
    for unit in range(problem.cuts):
        bounds = proportional_rows(problem.segment(unit, unit + 1).rows, speeds)
        splits.append(Split(unit, unit + 1, tiles(order, bounds)))
    return FoundPipeline((StageDraft(order[0], tuple(splits)),), 0.0)
