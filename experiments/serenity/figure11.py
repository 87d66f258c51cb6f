"""Figure 11: off-chip traffic of each cell at four sizes of on-chip memory: paper | ours | ratio.

    python -m experiments.serenity.figure11 [--quick]

Belady's clairvoyant replacement, as in the paper, of blocks of one size and of whole tensors; the paper names no unit.
Of blocks its fetches are the fewest of any policy; fetches and write-backs together need not be (how far off that can
be, docs/serenity-evaluation.md says), so no figure here is called the least traffic.
`planned`: the least that our search finds in the same convention, where operands of one operator need not be on chip
together: orders for that size, each with exact residency of whole tensors, without rewriting; blocks move by Belady's
rule in the same order. `experiments.memories` has what plans move that can be executed.
Concatenations are materialised (memory model `live`), inputs start and outputs end on chip, so that what fits has no
traffic. `fits`: the file's order has none, the paper's N/A. `gone`: only SERENITY's order has none; such cells cannot
enter a mean of ratios. The mean is geometric, over cells where both orders have traffic; beside it the ratio of the
sums over all cells, which counts `gone` cells too.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from downset import Graph, plan_order
from downset.memory.traffic import off_chip_traffic
from experiments.frame import Experiment, beside, fields, printed, run, show_table
from experiments.memories.cells import least_by_access
from experiments.rows import Row
from experiments.serenity.subjects import available, geometric_mean, rewritten

SIZES_BYTES = tuple(kilobytes * 1024 for kilobytes in (32, 64, 128, 256))
BLOCKS = {"256 B blocks": 256, "whole tensors": None}
PAPER = printed("serenity_figure11")
ORDERS = ("file", "dp", "rewriting", "planned")


def rows_of(name: str, graph: Graph, units: dict[str, int | None]) -> Iterator[Row]:
    split = rewritten(graph, "live")
    orders = {
        "file": (graph, plan_order(graph, method="file").steps),
        "dp": (graph, plan_order(graph).steps),
        "rewriting": (split, plan_order(split).steps),
    }
    for unit, block_bytes in units.items():
        for size in SIZES_BYTES:
            row: Row = {"cell": name, "unit": unit, "on_chip": size}
            for column, (subject, steps) in orders.items():
                row[column] = off_chip_traffic(subject, steps, size, block_bytes=block_bytes).total_bytes
            row["planned"], order = least_by_access(name, size)
            if block_bytes is not None:
                row["planned"] = off_chip_traffic(graph, order, size, block_bytes=block_bytes).total_bytes
            yield row


def gain(before: int, after: int) -> str:
    if not before:
        return "fits"
    return f"{before / after:.2f}x" if after else "gone"


def gain_of(order: str) -> Callable[[Row], str]:
    return lambda row: gain(row["file"], row[order])


def rows(options: Namespace) -> Iterator[Row]:
    units = {"whole tensors": None} if options.quick else BLOCKS
    for name, graph in available().items():
        yield from rows_of(name, graph, units)


def means(table: Sequence[Row]) -> None:
    lines: list[Row] = []
    for unit in dict.fromkeys(row["unit"] for row in table):
        for size in SIZES_BYTES:
            cells = [row for row in table if row["unit"] == unit and row["on_chip"] == size]
            rows = [row for row in cells if row["file"]]
            for order in ORDERS[1:] if rows else ():
                both = [row["file"] / row[order] for row in rows if row[order]]
                left = sum(row[order] for row in rows)
                mean = {"unit": unit, "on_chip": size, "to": order, "paper": PAPER.figure(on_chip=size)}
                mean |= {"fits": len(cells) - len(rows), "gone": len(rows) - len(both)}
                mean |= {"mean": geometric_mean(both) if both else None}
                lines.append(mean | {"sums": sum(row["file"] for row in rows) / left if left else None})
    paper, ours, ratio = beside(itemgetter("paper"), itemgetter("mean"), ".2f")
    where = (*fields("unit"), ON_CHIP, *fields("to", "fits", "gone"))
    show_table((*where, paper, ("mean of ratios", ours[1]), ratio, ("ratio of sums", "{sums:.2f}")), lines)


ON_CHIP = ("on chip", lambda row: f"{row['on_chip'] // 1024} KB")
EXPERIMENT = Experiment(
    "serenity_figure11",
    rows,
    (
        *fields("cell", "unit"),
        ON_CHIP,
        *fields(*ORDERS, spec=","),
        *((f"file / {order}", gain_of(order)) for order in ORDERS[1:]),
    ),
    key=("cell", "unit", "on_chip"),
    quick="whole tensors only, nothing written",
    after=means,
)

if __name__ == "__main__":
    run(EXPERIMENT)
