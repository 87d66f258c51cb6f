"""Figures 10 and 15: the arena of each cell, in the file's order and in SERENITY's: paper | ours | ratio.

    python -m experiments.serenity.figure10 [--quick]

The same placement for all, TFLite's of 2020: tensors as they are produced, each into the smallest gap that holds it,
rounded up to 64 bytes. `DP` is an order of least peak (SERENITY's programme and ours find the same peak; orders of
equal peak differ in the arena, and which one the paper had is not known), `rewriting` takes every concatenation apart
that can be. `together` is what we would ship: order and placement chosen together, rewritten where that is less.

Two memory models, never mixed: `live` is what TFLite executes; under `serenity` concatenations are views and partial
sums accumulate in place, which is how the paper's numbers for SwiftNet come about. The nine cells are the paper's by
name (experiments/serenity/subjects.py says where they are cut); its RandWire graphs are not public, and its bars have
no printed numbers, only their means; ours are geometric, over the nine. Whole networks are printed beside them: sizes
only, so that nothing can be rewritten there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from downset import Graph, lifetimes, plan_arena, plan_order, plan_together
from experiments.rows import rest_of_rows, save_rows
from experiments.serenity.subjects import ROUNDED, available, geometric_mean, ratio, rewritten, whole_networks

NAME = "serenity_figure10"
PAPER = {"dp": 1.68, "rewriting": 1.86}
WHOLE = "whole"
COLUMNS = ("file", "kahn", "dp", "rewriting", "together")


def placed(graph: Graph, steps: Sequence[int], memory: str, method: str, time_limit_s: float = 10.0) -> int:
    """Bytes of the arena that holds the tensors of an order."""
    records = lifetimes(graph, steps, ROUNDED[memory]).records
    return plan_arena(records, method=method, time_limit_s=time_limit_s).arena_bytes


def row_of(name: str, graph: Graph, memory: str, time_limit_s: float) -> dict[str, Any]:
    split = rewritten(graph, memory)
    row: dict[str, Any] = {"cell": name, "memory": memory, "operators": len(graph.ops), "rewritten": len(split.ops)}
    for column, subject, method in (
        ("file", graph, "file"),
        ("kahn", graph, "kahn"),
        ("dp", graph, "optimal"),
        ("rewriting", split, "optimal"),
    ):
        order = plan_order(subject, method=method, memory=ROUNDED[memory], time_limit_s=time_limit_s)
        row[column] = placed(subject, order.steps, memory, "greedy_in_order")
        row[f"{column}_peak"] = order.peak_bytes
    subjects = (graph, split) if len(split.ops) != len(graph.ops) else (graph,)
    plans = [(subject, plan_together(subject, memory=memory, time_limit_s=time_limit_s)) for subject in subjects]
    row["together"] = min(
        placed(subject, together.order.steps, memory, method, time_limit_s)
        for subject, together in plans
        for method in ("best", "exact")
    )
    return row


def print_table(table: list[dict[str, Any]]) -> None:
    print(f"| cell | memory | operators | {' | '.join(COLUMNS)} | file / dp | file / rewriting | file / together |")
    print("|" + "---|" * 11)
    for row in table:
        sizes = " | ".join(f"{row[column]:,}" for column in COLUMNS)
        gains = " | ".join(f"{row['file'] / row[column]:.2f}x" for column in COLUMNS[2:])
        print(f"| {row['cell']} | {row['memory']} | {row['operators']} -> {row['rewritten']} | {sizes} | {gains} |")
    print("\n| mean of | memory | from | to | paper | ours | ratio |")
    print("|---|---|---|---|---|---|---|")
    cells = [row for row in table if not row["cell"].startswith(WHOLE)]
    for memory in ("serenity", "live"):
        for group in ("", "SwiftNet"):
            rows = [row for row in cells if row["memory"] == memory and row["cell"].startswith(group)]
            for column in COLUMNS[2:] if rows else ():
                mean = geometric_mean(row["file"] / row[column] for row in rows)
                paper = PAPER.get(column) if not group else None
                label = f"{len(rows)} {group} cells" if group else f"{len(rows)} cells"
                print(f"| {label} | {memory} | file | {column} | {paper or '-'} | {mean:.2f} | {ratio(paper, mean)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="half a second a plan, nothing written")
    options = parser.parse_args()
    cells = available()
    limit_s = 0.5 if options.quick else 10.0
    table = [row_of(name, graph, memory, limit_s) for name, graph in cells.items() for memory in ("serenity", "live")]
    if not options.quick:
        table += [row_of(f"{WHOLE} {name}", graph, "live", limit_s) for name, graph in whole_networks().items()]
    absent = [{**row, "cell": f"{row['cell']} recorded"} for row in rest_of_rows(NAME, table, by=["cell"])]
    print_table(table + absent)
    if not options.quick and not absent:
        print("written:", save_rows(NAME, table))


if __name__ == "__main__":
    main()
