"""Why Table V's redundancy differs from ours for EFL and OFL: grids of tiles, and how many layers are fused.

    python -m experiments.pico.redundancy [--quick]

In the paper's columns devices come in pairs with equal shares, less at both ends than between them: a grid of four
rows by two columns for both methods, with shares of the fused part alone. `early_fused` has that grid, fuses as many
layers as give the least period and counts the rest of the network with the leader's own; `optimal_fused` cuts rows
only, as AOFL does. Here the same grid fuses 1, 2, … layers (EFL), and dynamic programming chooses blocks of that grid
(OFL) for devices of 1, 0.5, 0.25 and 0.1 MAC a cycle: the slower they are, the less is fused. Redundancy in % of a
device's own MACs.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from downset import load_cluster
from downset.clusters.model import Cluster
from downset.pipelines.drafts import Split, StageDraft, Tile
from downset.pipelines.early_fused import grid_of
from downset.pipelines.network import block_units, split_problem
from downset.pipelines.paper_timing import TimedStage, stage_of
from downset.pipelines.prices import PricedChain
from experiments.frame import Experiment, fields, run
from experiments.pico.setups import network
from experiments.pico.table5 import PAPER
from experiments.rows import Row


def grid_block(problem: PricedChain, start: int, stop: int, devices: int) -> Split | None:
    """A block in tiles, one for each device; None where it has too few rows or columns."""
    rows, columns = problem.segment(start, stop).rows, problem.turned().segment(start, stop).rows
    down, side = grid_of(devices)
    if rows < down or columns < side:
        return None
    tops = [rows * place // down for place in range(down + 1)]
    sides = [columns * place // side for place in range(side + 1)]
    spans = [(row, column) for row in pairwise(tops) for column in pairwise(sides)]
    return Split(start, stop, tuple(Tile(device, *row, column) for device, (row, column) in enumerate(spans)))


def redundancy(stage: TimedStage) -> list[float]:
    """By device, in % of its own MACs."""
    percents = []
    for device in stage.devices:
        strips = [strip for block in stage.blocks for strip in block.strips if strip.device == device]
        macs, redundant = sum(strip.macs for strip in strips), sum(strip.redundant_macs for strip in strips)
        percents.append(round(100 * redundant / max(macs, 1), 2))
    return percents


def early(problem: PricedChain, cluster: Cluster, name: str) -> list[Row]:
    rows = []
    for fused in range(1, problem.cuts + 1):
        block = grid_block(problem, 0, fused, len(cluster.devices))
        if block is not None:
            ours = redundancy(stage_of(problem, cluster, StageDraft(0, (block,)), comm="paper"))
            rows.append({"network": name, "method": "EFL", "fused": fused, "ours": ours})
    return rows


def optimal(problem: PricedChain, cluster: Cluster, name: str) -> list[Row]:
    rows = []
    for scale in (1.0, 0.5, 0.25, 0.1):
        slower = tuple(replace(device, mac_per_s=device.mac_per_s * scale) for device in cluster.devices)
        splits = least_sum(problem, replace(cluster, devices=slower))
        stage = stage_of(problem, cluster, StageDraft(0, splits), comm="paper")
        blocks = [split.stop for split in splits]
        rows.append(
            {"network": name, "method": "OFL", "mac_per_cycle": scale, "blocks": blocks, "ours": redundancy(stage)}
        )
    return rows


def least_sum(problem: PricedChain, cluster: Cluster) -> tuple[Split, ...]:
    """AOFL's dynamic programming with blocks in tiles, or on the leader alone."""
    best: list[tuple[float, tuple[Split, ...]]] = [(0.0, ())]
    for stop in range(1, problem.cuts + 1):
        ways = []
        for start in range(stop):
            alone = Split(start, stop, (Tile(0, 0, problem.segment(start, stop).rows),))
            for block in (grid_block(problem, start, stop, len(cluster.devices)), alone):
                if block is not None:
                    stage = stage_of(problem, cluster, StageDraft(0, (block,)), comm="paper")
                    seconds = best[start][0] + stage.compute_s + stage.transfer_s
                    ways.append((seconds, (*best[start][1], block)))
        best.append(min(ways, key=lambda way: way[0]))
    return best[-1][1]


def average(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 2)


def rows(options: Namespace) -> Iterator[Row]:
    for name in ("vgg16",) if options.quick else ("vgg16", "yolov2"):
        model, cluster = network(name), load_cluster("pico_1mac")
        problem = PricedChain(split_problem(model, block_units(model)))
        for method, make in (("early_fused", early), ("optimal_fused", optimal)):
            table = {"network": name, "method": method, "quantity": "redundancy"}
            paper = {"paper": PAPER.figure("by_device", **table), "paper_average": PAPER.figure("average", **table)}
            for row in make(problem, cluster, name):
                yield row | {"ours_average": average(row["ours"])} | paper


EXPERIMENT = Experiment(
    "pico_redundancy",
    rows,
    (
        *fields("network", "method"),
        (
            "layers fused, or MAC a cycle: blocks end behind",
            lambda row: str(row.get("fused") or f"{row['mac_per_cycle']:g}: {row['blocks']}"),
        ),
        ("by device: paper", "{paper}"),
        ("ours", "{ours}"),
        ("average: paper", "{paper_average}"),
        ("ours", "{ours_average}"),
    ),
    quick="VGG16 only, nothing written",
)

if __name__ == "__main__":
    run(EXPERIMENT)
