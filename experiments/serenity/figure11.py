"""Figure 11: off-chip traffic of each cell at four sizes of on-chip memory: paper | ours | ratio.

    python -m experiments.serenity.figure11 [--quick]

Belady's clairvoyant replacement, as in the paper, of blocks of one size and of whole tensors; the paper names no unit.
Of blocks its fetches are the fewest of any policy; fetches and write-backs together need not be (how far off that can
be, docs/serenity-evaluation.md says), so no figure here is called the least traffic.
Concatenations are materialised (memory model `live`), inputs start and outputs end on chip, so that what fits has no
traffic. `fits`: the file's order has none, the paper's N/A. `gone`: only SERENITY's order has none; such cells cannot
enter a mean of ratios. The mean is geometric, over cells where both orders have traffic; beside it the ratio of the
sums over all cells, which counts `gone` cells too.
"""

from __future__ import annotations

import argparse
from typing import Any

from downset import Graph, plan_order
from downset.memory.traffic import off_chip_traffic
from experiments.rows import rest_of_rows, save_rows
from experiments.serenity.subjects import available, geometric_mean, ratio, rewritten

NAME = "serenity_figure11"
SIZES_BYTES = tuple(kilobytes * 1024 for kilobytes in (32, 64, 128, 256))
BLOCKS = {"256 B blocks": 256, "whole tensors": None}
PAPER = {256 * 1024: 1.76}
COLUMNS = ("file", "dp", "rewriting")


def rows_of(name: str, graph: Graph, units: dict[str, int | None]) -> list[dict[str, Any]]:
    split = rewritten(graph, "live")
    orders = {
        "file": (graph, plan_order(graph, method="file").steps),
        "dp": (graph, plan_order(graph).steps),
        "rewriting": (split, plan_order(split).steps),
    }
    found = []
    for unit, block_bytes in units.items():
        for size in SIZES_BYTES:
            row: dict[str, Any] = {"cell": name, "unit": unit, "on_chip": size}
            for column, (subject, steps) in orders.items():
                row[column] = off_chip_traffic(subject, steps, size, block_bytes=block_bytes).total_bytes
            found.append(row)
    return found


def gain(before: int, after: int) -> str:
    if not before:
        return "fits"
    return f"{before / after:.2f}x" if after else "gone"


def print_table(table: list[dict[str, Any]]) -> None:
    print("| cell | unit | on chip | file | dp | rewriting | file / dp | file / rewriting |\n" + "|---" * 8 + "|")
    for row in table:
        sizes = " | ".join(f"{row[column]:,}" for column in COLUMNS)
        gains = " | ".join(gain(row["file"], row[column]) for column in COLUMNS[1:])
        print(f"| {row['cell']} | {row['unit']} | {row['on_chip'] // 1024} KB | {sizes} | {gains} |")
    print(
        "\n| unit | on chip | to | fits | gone | paper | mean of ratios | ratio | ratio of sums |\n" + "|---" * 9 + "|"
    )
    for unit in dict.fromkeys(row["unit"] for row in table):
        for size in SIZES_BYTES:
            rows = [row for row in table if row["unit"] == unit and row["on_chip"] == size and row["file"]]
            fits = sum(row["unit"] == unit and row["on_chip"] == size for row in table) - len(rows)
            for column in COLUMNS[1:] if rows else ():
                both = [row["file"] / row[column] for row in rows if row[column]]
                mean = geometric_mean(both) if both else None
                paper = PAPER.get(size)
                left = sum(row[column] for row in rows)
                sums = f"{sum(row['file'] for row in rows) / left:.2f}" if left else "-"
                print(
                    f"| {unit} | {size // 1024} KB | {column} | {fits} | {len(rows) - len(both)} | {paper or '-'} "
                    f"| {f'{mean:.2f}' if mean else '-'} | {ratio(paper, mean)} | {sums} |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="whole tensors only, nothing written")
    options = parser.parse_args()
    units = {"whole tensors": None} if options.quick else BLOCKS
    table = [row for name, graph in available().items() for row in rows_of(name, graph, units)]
    absent = [{**row, "cell": f"{row['cell']} recorded"} for row in rest_of_rows(NAME, table, by=["cell"])]
    print_table(table + absent)
    if not options.quick and not absent:
        print("written:", save_rows(NAME, table))


if __name__ == "__main__":
    main()
