"""Figure 11: off-chip traffic of each cell at four sizes of on-chip memory: paper | ours | ratio.

    python -m experiments.serenity.figure11 [--quick]

Belady's clairvoyant replacement, as in the paper, of blocks of one size and of whole tensors; the paper names no unit.
Of blocks its fetches are the fewest of any policy; fetches and write-backs together need not be (how far off that can
be, docs/serenity-evaluation.md says), so no figure here is called the least traffic.
`planned`: the least that our search finds in the same convention, where operands of one operator need not be on chip
together: orders for that size, each with exact residency of whole tensors; of the same orders the best one for blocks,
which move by Belady's rule; or `file` or `dp` where that is less. `planned split`: the same of the network with
SERENITY's rewriting, or without where that is less.
`executed`: what a plan that runs moves and accesses (recorded rows of `experiments.memories`), where an
operator has all of its operands in fast memory at once or reads them in slow memory, offsets included; `file executed`:
the same of the file's order with exact residency.
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
from experiments.frame import Experiment, beside, fields, printed, run, show_table
from experiments.memories.cells import network_of, orders_by_access
from experiments.rows import Row, load_rows
from experiments.serenity.subjects import available, geometric_mean, rewritten
from experiments.serenity.traffic import off_chip_traffic

SIZES_BYTES = tuple(kilobytes * 1024 for kilobytes in (32, 64, 128, 256))
BLOCKS = {"256 B blocks": 256, "whole tensors": None}
PAPER = printed("serenity_figure11")
ORDERS = ("file", "dp", "rewriting", "planned", "planned_split", "executed")
EXECUTED = {"executed": "placed", "file_executed": "file"}
"""By column: the one of the rows of `experiments.memories`."""
BEFORE = dict.fromkeys(ORDERS, "file") | {"executed": "file_executed"}


def rows_of(name: str, graph: Graph, units: dict[str, int | None]) -> Iterator[Row]:
    split = rewritten(graph, "live")
    orders = {
        "file": (graph, plan_order(graph, method="file").steps),
        "dp": (graph, plan_order(graph).steps),
        "rewriting": (split, plan_order(split).steps),
    }
    ran = {(row["cell"], row["fast"]): row for row in load_rows("memories")}
    for unit, block_bytes in units.items():
        for size in SIZES_BYTES:
            row: Row = {"cell": name, "unit": unit, "on_chip": size}
            for column, (subject, steps) in orders.items():
                row[column] = off_chip_traffic(subject, steps, size, block_bytes=block_bytes).total_bytes
            row["planned"] = min(row["file"], row["dp"], planned(name, size, False, block_bytes))
            row["planned_split"] = min(row["planned"], row["rewriting"], planned(name, size, True, block_bytes))
            if block_bytes is None:
                row |= {column: ran[name, size][of] for column, of in EXECUTED.items()}
            yield row


def planned(name: str, size: int, split: bool, block_bytes: int | None) -> int:
    """The least traffic of the orders that a search found, of whole tensors or of blocks."""
    orders = orders_by_access(name, size, split)
    if block_bytes is None:
        return orders[0][0]
    graph = network_of(name, split)
    return min(off_chip_traffic(graph, steps, size, block_bytes=block_bytes).total_bytes for _, steps in orders[:3])


def gain(before: int, after: int) -> str:
    if not before:
        return "fits"
    return f"{before / after:.2f}x" if after else "gone"


def gain_of(order: str) -> Callable[[Row], str | None]:
    return lambda row: gain(row[BEFORE[order]], row[order]) if order in row else None


def rows(options: Namespace) -> Iterator[Row]:
    units = {"whole tensors": None} if options.quick else BLOCKS
    for name, graph in available().items():
        yield from rows_of(name, graph, units)


def means(table: Sequence[Row]) -> None:
    lines: list[Row] = []
    for unit in dict.fromkeys(row["unit"] for row in table):
        for size in SIZES_BYTES:
            cells = [row for row in table if row["unit"] == unit and row["on_chip"] == size]
            for order in ORDERS[1:]:
                before = BEFORE[order]
                rows = [row for row in cells if order in row and row[before]]
                if not rows:
                    continue
                both = [row[before] / row[order] for row in rows if row[order]]
                left = sum(row[order] for row in rows)
                mean = {"unit": unit, "on_chip": size, "to": order, "paper": PAPER.figure(on_chip=size)}
                mean |= {"fits": len(cells) - len(rows), "gone": len(rows) - len(both)}
                mean |= {"mean": geometric_mean(both) if both else None}
                lines.append(mean | {"sums": sum(row[before] for row in rows) / left if left else None})
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
        *fields(*ORDERS, "file_executed", spec=","),
        *((f"{BEFORE[order]} / {order}", gain_of(order)) for order in ORDERS[1:]),
    ),
    key=("cell", "unit", "on_chip"),
    quick="whole tensors only, nothing written",
    after=means,
)

if __name__ == "__main__":
    run(EXPERIMENT)
