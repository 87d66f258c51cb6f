"""The early layers are fused and cut into a grid of tiles; the rest runs on one device.

Source: DeepThings (Zhao et al., TCAD 2018), fused tile partitioning; the EFL scheme of the PICO paper.
Names: N x M grid → grid; fused layers → fused; gateway → leader.
Complexity: O(units · devices · operators).
Deviations: DeepThings' user states the grid and the number of fused layers. Here the grid is the most square one with a
tile for each device (4 x 2 for eight) and at least as many rows as columns; the number of fused units gives the least
period, unless `fused` states it. DeepThings' idle devices take tiles from others; with one tile for each device this
cannot happen, and strong and weak devices wait for each other, as the PICO paper measures. If a frame has no columns,
or they are not known, the grid is 1 column wide.
"""

from __future__ import annotations

from downset.budget import Clock
from downset.clusters.model import Cluster
from downset.pipelines.accounting import Accounting
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft, Tile
from downset.pipelines.paper_timing import stage_of
from downset.pipelines.prices import PricedChain

__all__ = ["early_fused", "grid_of", "least_compute_s"]


def grid_of(count: int) -> tuple[int, int]:
    """(rows, columns) of the most square grid of `count` tiles, with rows >= columns."""
    columns = max(c for c in range(1, count + 1) if count % c == 0 and c * c <= count)
    return count // columns, columns


def early_fused(
    problem: PricedChain,
    cluster: Cluster,
    *,
    accounting: Accounting | None = None,
    fused: int | None = None,
    below_s: float = float("inf"),
    deadline: Clock | None = None,
) -> FoundPipeline:
    """One stage of two blocks: the first `fused` units as tiles, the rest on the fastest device. Plans whose period is
    not below `below_s` may be passed over; if all are, any plan is returned. At the deadline the best plan so far is
    returned."""
    comm = (accounting or Accounting()).comm
    speeds = [device.speed for device in cluster.devices]
    leader = speeds.index(max(speeds))
    candidates = range(1, problem.cuts + 1) if fused is None else (fused,)
    drafts = [draft for count in candidates if (draft := _draft(problem, cluster, leader, count)) is not None]
    if not drafts:
        rest = Split(0, problem.cuts, (Tile(leader, 0, problem.segment(0, problem.cuts).rows),))
        return FoundPipeline((StageDraft(leader, (rest,)),), 0.0, note="no early layer has a row for every tile")
    seconds, best = below_s, drafts[0]
    # Those of least computing come first; after them most others need not be priced.
    for floor, draft in sorted(((_floor_s(problem, cluster, d.splits[0].stop), d) for d in drafts), key=lambda p: p[0]):
        if floor >= seconds or (deadline is not None and deadline.late()):
            break
        total_s = stage_of(problem, cluster, draft, comm=comm).seconds
        if total_s < seconds:
            seconds, best = total_s, draft
    return FoundPipeline((best,), 0.0)


def least_compute_s(problem: PricedChain, cluster: Cluster) -> float:
    """A lower bound of the period of `early_fused`: the first units on all devices, the rest on the fastest device."""
    return min(_floor_s(problem, cluster, fused) for fused in range(1, problem.cuts + 1))


def _floor_s(problem: PricedChain, cluster: Cluster, fused: int) -> float:
    speeds = [device.speed for device in cluster.devices]
    macs = problem.least_macs_before()
    return macs[fused] / sum(speeds) + (macs[-1] - macs[fused]) / max(speeds)


def _draft(problem: PricedChain, cluster: Cluster, leader: int, fused: int) -> StageDraft | None:
    rows = problem.segment(0, fused).rows
    devices = range(len(cluster.devices))
    down, side = grid_of(len(cluster.devices))
    columns = 1 if problem.across is None else problem.across.segment(0, fused).rows
    if columns == 1:
        down, side = len(cluster.devices), 1
    if rows < down or columns < side:
        return None
    parts = []
    for device in devices:
        row, column = divmod(device, side)
        span = (column * columns // side, (column + 1) * columns // side) if side > 1 else None
        parts.append(Tile(device, row * rows // down, (row + 1) * rows // down, span))
    splits = [Split(0, fused, tuple(parts))]
    if fused < problem.cuts:
        splits.append(Split(fused, problem.cuts, (Tile(leader, 0, problem.segment(fused, problem.cuts).rows),)))
    return StageDraft(leader, tuple(splits))
