"""Layer by layer with halos only: devices keep their rows and fetch missing rows from their neighbours.

Source: CoEdge (Zeng et al., IEEE/ACM ToN 2020), as the PICO paper describes its CE scheme.
Names: working devices → the n fastest devices; halo → rows fetched from neighbours.
Complexity: O(units · devices²) prices.
Deviations: rows are in proportion to speed. The number of working devices is chosen for every unit (PICO: "a dynamic
number of devices to process different layers") by dynamic programming over (unit, number); a change of the number costs
the transfer of the rows that change devices. A number is not allowed if some device would need rows beyond its
neighbours' (CoEdge limits communication to neighbours), except right after a change. The program prices the rows of the
previous unit where they lie, and older tensors as if the leader held them; the final plan's times are those of the real
places.
"""

from __future__ import annotations

from itertools import pairwise

from downset.budget import Clock
from downset.clusters.model import Cluster
from downset.errors import LimitReached
from downset.pipelines.device_order import by_speed
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft
from downset.pipelines.paper_timing import Owners, halo_transfer_s, owned, reads_of
from downset.pipelines.prices import PricedChain
from downset.pipelines.segment_prices import price
from downset.pipelines.strips import proportional_rows, tiles

__all__ = ["coedge", "least_compute_s"]


def coedge(problem: PricedChain, cluster: Cluster, *, deadline: Clock | None = None) -> FoundPipeline:
    """One stage whose units are blocks of halo exchange; the number of working devices is chosen for each unit. Raises
    LimitReached at the deadline."""
    order = by_speed(cluster)
    splits = [_choices(problem, cluster, unit, order) for unit in range(problem.cuts)]
    leader = order[0]
    best: dict[int, tuple[float, tuple[int, ...]]] = {-1: (0.0, ())}
    owners: dict[int, Owners] = {}  # by number of devices: who holds which rows
    for unit in range(problem.cuts):
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        # The fastest prefixes come first; after them, computing alone makes most others too slow.
        ways = sorted(best.items(), key=lambda way: way[1][0])
        rows = problem.segment(unit, unit + 1).rows
        for count, split in splits[unit].items():
            if deadline is not None and deadline.late():
                raise LimitReached("coedge found no pipeline within the time limit; allow more time")
            compute, reads = _compute_s(problem, cluster, split), reads_of(problem, split)
            for before, (seconds, path) in ways:
                if count in following and seconds + compute >= following[count][0]:
                    break
                if before == count and not _neighbours_suffice(problem, splits[unit - 1][count], split):
                    continue
                owners_before = owners[path[-1]] if path else {}
                total = seconds + (compute + halo_transfer_s(problem, cluster, owners_before, split, reads, leader))
                if count not in following or total < following[count][0]:
                    following[count] = (total, (*path, count))
        best = following
        owners = {count: owned(problem, split, rows) for count, split in splits[unit].items()}
    path = min(best.values())[1]
    chosen = tuple(splits[unit][count] for unit, count in enumerate(path))
    return FoundPipeline((StageDraft(leader, chosen),), 0.0)


def least_compute_s(problem: PricedChain, cluster: Cluster) -> float:
    """A lower bound of the period of `coedge`: each unit on the number of devices that computes it fastest."""
    order = by_speed(cluster)
    return sum(
        min(_compute_s(problem, cluster, split) for split in _choices(problem, cluster, unit, order).values())
        for unit in range(problem.cuts)
    )


def _compute_s(problem: PricedChain, cluster: Cluster, split: Split) -> float:
    segment = problem.segment(split.start, split.stop)
    strips = ((price(segment, tile.start, tile.stop)[0], tile.device) for tile in split.tiles)
    return max(macs / cluster.devices[device].speed for macs, device in strips)


def _choices(problem: PricedChain, cluster: Cluster, unit: int, order: list[int]) -> dict[int, Split]:
    rows = problem.segment(unit, unit + 1).rows
    choices = {}
    for count in range(1, min(len(order), rows) + 1):
        working = order[:count]
        bounds = proportional_rows(rows, [cluster.devices[device].speed for device in working])
        if count == 1 or all(low < high for low, high in pairwise(bounds)):
            choices[count] = Split(unit, unit + 1, tiles(working, bounds), halo=True)
    return choices


def _neighbours_suffice(problem: PricedChain, before: Split, split: Split) -> bool:
    """Whether every strip needs only rows of its own device and of its neighbours."""
    rows_before = problem.segment(before.start, before.stop).rows
    results = {tensor for op in problem.units[before.start] for tensor in problem.ops[op].outputs}
    for place, tile in enumerate(split.tiles):
        low_tile, high_tile = before.tiles[max(0, place - 1)], before.tiles[min(place + 1, len(before.tiles) - 1)]
        for tensor, (low, high) in problem.needs(split.start, split.stop, tile.start, tile.stop, halo=True).items():
            if tensor not in results:
                continue
            extent = problem.tensors[tensor].rows
            if low < low_tile.start * extent // rows_before or high > high_tile.stop * extent // rows_before:
                return False
    return True
