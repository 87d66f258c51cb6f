"""Chooses which layers to fuse, by dynamic programming: all devices run one fused block after another.

Source: AOFL (Zhou et al., SEC 2019); the OFL scheme of the PICO paper.
Names: fused block → block; OFL → optimal_fused.
Complexity: O(units² · devices) prices.
Deviations: strips have equal height, as the PICO paper compares it ("PICO and CE adjust the feature partition size";
OFL does not). A block may run on the leader alone, as the last layers do in AOFL's plans. On overlapping networks the
dynamic program still adds each block's computing and communication, as AOFL's does.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from downset.budget import Clock
from downset.clusters.model import Cluster
from downset.errors import LimitReached
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft, Tile
from downset.pipelines.paper_timing import stage_of
from downset.pipelines.prices import PricedChain
from downset.pipelines.segment_prices import price
from downset.pipelines.strips import equal_rows, tiles

__all__ = ["optimal_fused"]


def optimal_fused(problem: PricedChain, cluster: Cluster, *, deadline: Clock | None = None) -> FoundPipeline:
    """One stage of all devices with the fused blocks of least total time. Raises LimitReached at the deadline."""
    speeds = [device.speed for device in cluster.devices]
    leader = speeds.index(max(speeds))
    best = [0.0]
    chosen: list[Split] = []
    for stop in range(1, problem.cuts + 1):
        if deadline is not None and deadline.late():
            raise LimitReached("optimal_fused needs more time for so many layers and devices")
        best_split: tuple[float, int, int] = (float("inf"), 0, 0)
        chosen.append(Split(0, stop, ()))
        # Blocks of least computing come first; after them most blocks need not be priced.
        for floor, start, order, split in sorted(_blocks(problem, speeds, leader, stop, best), key=itemgetter(0, 1, 2)):
            if floor > best_split[0]:
                break
            stage = stage_of(problem, cluster, StageDraft(leader, (split,)), comm="paper")
            seconds = best[start] + stage.compute_s + stage.transfer_s
            if (seconds, start, order) < best_split:
                best_split, chosen[-1] = (seconds, start, order), split
        best.append(best_split[0])
    splits: list[Split] = []
    cut = problem.cuts
    while cut > 0:
        splits.insert(0, chosen[cut - 1])
        cut = splits[0].start
    return FoundPipeline((StageDraft(leader, tuple(splits)),), 0.0)


def _blocks(
    problem: PricedChain, speeds: list[float], leader: int, stop: int, best: list[float]
) -> Iterator[tuple[float, int, int, Split]]:
    """Every last block as (least seconds up to `stop`, start, 0 for strips or 1 for the leader alone, block)."""
    for start in range(stop):
        segment = problem.segment(start, stop)
        strips = tiles(range(len(speeds)), equal_rows(segment.rows, len(speeds)))
        for order, parts in enumerate((strips, (Tile(leader, 0, segment.rows),))):
            computing = max(price(segment, tile.start, tile.stop)[0] / speeds[tile.device] for tile in parts)
            yield best[start] + computing, start, order, Split(start, stop, parts)
