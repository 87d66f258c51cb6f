"""Figures 10 and 15: the arena of each cell, in the file's order and in SERENITY's: paper | ours | ratio.

    python -m experiments.serenity.figure10 [--quick]

The same placement for all, TFLite's of 2020: tensors as they are produced, each into the smallest gap that holds it,
rounded up to 64 bytes. `DP` is an order of least peak (SERENITY's programme and ours find the same peak; orders of
equal peak differ in the arena, and which one the paper had is not known), `rewriting` takes every concatenation apart
that can be. `together` is what we would ship: order and placement chosen together, rewritten where that is less.

Two memory models, never mixed: `live` is what TFLite executes; under `serenity` concatenations are views and partial
sums accumulate in place, which is how the paper's numbers for SwiftNet come about. The nine cells are the paper's by
name (experiments/serenity/subjects.py says where they are cut); its RandWire graphs are not public, and its bars have
no printed numbers, only their means; ours are geometric, over the nine. Whole networks are printed next to them: sizes
only, so that nothing can be rewritten there.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from downset import Graph, lifetimes, plan_arena, plan_order, plan_together
from experiments.frame import Experiment, beside, fields, printed, run, show_table
from experiments.rows import Row
from experiments.serenity.subjects import ROUNDED, available, geometric_mean, rewritten, whole_networks

PAPER = printed("serenity_figure10")
WHOLE = "whole"
ORDERS = ("file", "kahn", "dp", "rewriting", "together")


def placed(graph: Graph, steps: Sequence[int], memory: str, method: str, time_limit_s: float = 10.0) -> int:
    """Bytes of the arena that holds the tensors of an order."""
    records = lifetimes(graph, steps, ROUNDED[memory]).records
    return plan_arena(records, method=method, time_limit_s=time_limit_s).arena_bytes


def row_of(name: str, graph: Graph, memory: str, time_limit_s: float) -> Row:
    split = rewritten(graph, memory)
    row: Row = {"cell": name, "memory": memory, "operators": len(graph.ops), "rewritten": len(split.ops)}
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


def rows(options: Namespace) -> Iterator[Row]:
    limit_s = 0.5 if options.quick else 10.0
    for name, graph in available().items():
        for memory in ("serenity", "live"):
            yield row_of(name, graph, memory, limit_s)
    for name, graph in {} if options.quick else whole_networks().items():
        yield row_of(f"{WHOLE} {name}", graph, "live", limit_s)


def means(table: Sequence[Row]) -> None:
    rows: list[Row] = []
    for memory in ("serenity", "live"):
        for group in ("", "SwiftNet"):
            cells = [row for row in table if row["memory"] == memory and row["cell"].startswith(group)]
            cells = [row for row in cells if not row["cell"].startswith(WHOLE)]
            for order in ORDERS[2:] if cells else ():
                mean = geometric_mean(row["file"] / row[order] for row in cells)
                paper = None if group else PAPER.figure(order=order)
                label = f"{len(cells)} {group} cells" if group else f"{len(cells)} cells"
                rows.append({"of": label, "memory": memory, "to": order, "paper": paper, "ours": mean})
    figures = beside(itemgetter("paper"), itemgetter("ours"), ".2f")
    show_table((("mean of", "{of}"), *fields("memory"), ("from", "file"), *fields("to"), *figures), rows)


def gain(order: str) -> Callable[[Row], str]:
    return lambda row: f"{row['file'] / row[order]:.2f}x"


EXPERIMENT = Experiment(
    "serenity_figure10",
    rows,
    (
        *fields("cell", "memory"),
        ("operators", "{operators} -> {rewritten}"),
        *fields(*ORDERS, spec=","),
        *((f"file / {order}", gain(order)) for order in ORDERS[2:]),
    ),
    key=("cell", "memory"),
    quick="half a second a plan, no whole networks, nothing written",
    after=means,
)

if __name__ == "__main__":
    run(EXPERIMENT)
