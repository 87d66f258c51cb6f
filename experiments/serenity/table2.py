"""Table 2 and figure 13: how long SERENITY's scheduler takes, with its accelerations one by one: paper | ours | ratio.

    python -m experiments.serenity.table2 [--quick] [--limit SECONDS]

Table 2 is SwiftNet from the pool in front of cell A to the end of cell C, memory model `serenity`, concatenations left
out: the paper's 62 nodes, which fall into its {21,19,22} where one operator is comparable with all others. Rewritten,
ours has more nodes than the paper's {33,28,29} (which add up to 90, though it prints 92). That would fit counting, in
place of each convolution behind a concatenation of k parts, k partial ones, depthwise ones left whole, and one less a
cell: the column `by the rule that fits it`; we split depthwise convolutions too and count the sum as a node.

Figure 13 has RandWire twice: every operator (a node is a sum, a ReLU and two convolutions), and `by nodes`, which its
graphs of 32 nodes suggest.

DP is algorithm 1; DC divide and conquer; SB the adaptive soft budget; `optimal` our own search on the same graph whole.
Theirs and ours in Python on one core, but for `optimal`, which is C++; CPU seconds. `> N s`: stopped, with the bound
proven till then. Dividing saves little here: a memo of zero-indegree sets narrows at an hourglass by itself.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from downset import Graph, OrderProblem, load, order_problem, peak_bytes
from downset.orders.planners import ORDERS
from downset.orders.search_space import SearchSpace
from downset.orders.serenity import divide
from downset.rewrites.concat.partition import partition_sites
from experiments.frame import Experiment, Printed, fields, printed, ratio, run, show_table
from experiments.rows import Row
from experiments.serenity.subjects import available, by_nodes, nodes_as_counted, rewritten, without_concats
from experiments.serenity.swiftnet import CELLS, MODEL, part

optimal = ORDERS["optimal"]
serenity = ORDERS["serenity"]

ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "DP": {"divided": False, "soft_budget": False},
    "DP + DC": {"divided": True, "soft_budget": False},
    "DP + DC + SB": {"divided": True, "soft_budget": True},
}
PAPER = printed("serenity_table2")
PAPER_NODES = printed("serenity_table2_nodes")
PAPER_MEAN = printed("serenity_figure13")
BY_NODES = ", by nodes"
BOTH = ("DP + DC + SB", "optimal")


def timed(problem: OrderProblem, algorithm: str, limit_s: float) -> Row:
    """One run: CPU seconds, peak, whether it finished. The limit is one of wall time."""
    begin = time.process_time()
    if algorithm == "optimal":
        result = optimal(problem, time_limit_s=limit_s)
    else:
        result = serenity(problem, time_limit_s=limit_s, **ALGORITHMS[algorithm])
    seconds = time.process_time() - begin
    peak = peak_bytes(problem, result.solution)
    return {
        "algorithm": algorithm,
        "cpu_s": round(seconds, 4),
        "finished": result.proven,
        "peak": peak,
        "bound": result.bound,
        "states": result.states,
        "limit_s": limit_s,
    }


def divided_nodes(problem: OrderProblem) -> str:
    """Nodes = {nodes a part}; an hourglass operator is counted with the part behind it, as the paper seems to."""
    cuts = divide(SearchSpace(problem))
    sizes = [after.bit_count() - before.bit_count() for before, after in zip([0, *cuts], cuts, strict=False)]
    parts: list[int] = []
    single = 0
    for size in sizes:
        if size == 1:
            single += 1
        else:
            parts.append(size + single)
            single = 0
    if single:
        parts.append(single)
    return f"{len(problem.predecessors)}={{{','.join(map(str, parts))}}}"


def partial_convolutions(graph: Graph) -> int:
    """Operators that rewriting adds by the rule that fits the paper's count: k - 1 for a convolution behind k parts."""
    readers = {tensor: op for op in graph.ops for tensor in op.inputs}
    sites = (graph.ops[site] for site in partition_sites(graph, inexact=True))
    return sum(len(op.inputs) - 1 for op in sites if readers[op.outputs[0]].attrs.get("group", 1) == 1)


def as_problem(graph: Graph) -> OrderProblem:
    return without_concats(graph, order_problem(graph, "serenity"))


def rows(options: Namespace) -> Iterator[Row]:
    limit_s = 2.0 if options.quick else options.limit
    if MODEL.exists():
        network = nodes_as_counted()
        for split, graph in ((False, network), (True, rewritten(network, "serenity"))):
            yield from runs("2", "SwiftNet", split, graph, (*ALGORITHMS, "optimal"), limit_s)
    cells = available()
    stages = {f"{name}{BY_NODES}": by_nodes(graph) for name, graph in cells.items() if name.startswith("RandWire")}
    for name, graph in {**cells, **stages}.items():
        yield from runs("13", name, False, graph, BOTH, limit_s)
        split = rewritten(graph, "serenity")
        if len(split.ops) != len(graph.ops):
            yield from runs("13", name, True, split, BOTH, limit_s)


def runs(
    table: str, network: str, split: bool, graph: Graph, algorithms: Sequence[str], limit_s: float
) -> Iterator[Row]:
    problem = as_problem(graph)
    for algorithm in algorithms:
        facts = {"table": table, "network": network, "rewritten": split, "nodes": divided_nodes(problem)}
        yield {**facts, **timed(problem, algorithm, limit_s)}


def took(row: Row) -> str:
    if row["finished"]:
        return f"{row['cpu_s']:.4f} s" if row["cpu_s"] < 0.1 else f"{row['cpu_s']:.1f} s"
    return f"> {row['limit_s']:g} s"


def of_table_2(column: str, paper: Printed, *fields: str) -> Callable[[Row], Any]:
    """The figure that the paper prints for a row of its Table 2; none for Figure 13, of which it prints means."""
    return lambda row: paper.of(column, *fields)(row) if row["table"] == "2" else None


def means(table: Sequence[Row]) -> None:
    """A network in which nothing can be rewritten stands in the second mean as it is."""
    figure = [row for row in table if row["table"] == "13"]
    every = [row for row in figure if not row["network"].endswith(BY_NODES)]
    nodes = [row for row in figure if row["network"].endswith(BY_NODES) or not row["network"].startswith("RandWire")]
    lines: list[Row] = []
    for label, rows in (("every operator", every), (f"RandWire{BY_NODES}", nodes)):
        for split in (False, True):
            for algorithm in BOTH:
                last = {r["network"]: r for r in rows if r["algorithm"] == algorithm and r["rewritten"] <= split}
                mean = sum(r["cpu_s"] if r["finished"] else r["limit_s"] for r in last.values()) / len(last)
                least = "" if all(row["finished"] for row in last.values()) else "> "
                row = {"of": f"{len(last)}, {label}, {algorithm}", "rewritten": split, "least": least, "mean": mean}
                lines.append({**row, "paper": PAPER_MEAN.figure(rewritten=split)})
    show_table(
        (
            ("mean over networks", "{of}"),
            *fields("rewritten"),
            ("paper", "{paper} s"),
            ("ours", "{least}{mean:.3g} s"),
            ("ratio", lambda row: f"{row['least']}{row['mean'] / row['paper']:.2g}"),
        ),
        lines,
    )
    if MODEL.exists():
        show_table(
            (
                *fields("cell", "nodes"),
                ("rewritten, paper", "{paper}"),
                ("by the rule that fits it", "{rule}"),
                *fields("ours"),
            ),
            nodes_of_cells(),
        )


def nodes_of_cells() -> Iterator[Row]:
    network = load(MODEL)
    before, after = (PAPER_NODES.figure("cells", rewritten=split) for split in (False, True))
    for (name, span), nodes, paper in zip(CELLS.items(), before, after, strict=True):
        cell = part(network, *span)
        ours = len(as_problem(rewritten(cell, "serenity")).predecessors) + 1
        rule = nodes + partial_convolutions(cell) - 1
        yield {"cell": name, "nodes": nodes, "paper": paper, "rule": rule, "ours": ours}


PAPER_S = of_table_2("figure", PAPER, "rewritten", "algorithm")
EXPERIMENT = Experiment(
    "serenity_table2",
    rows,
    (
        ("table, figure", "{table}"),
        *fields("network", "rewritten", "algorithm"),
        ("nodes, paper", of_table_2("figure", PAPER_NODES, "rewritten")),
        ("nodes, ours", "{nodes}"),
        ("paper", lambda row: f"{PAPER_S(row):,.1f} s" if PAPER_S(row) else None),
        ("ours", took),
        ("ratio", lambda row: ratio(PAPER_S(row), row["cpu_s"] if row["finished"] else None)),
        ("states", "{states:,}"),
        ("peak, B", "{peak:,}"),
        ("bound, B", "{bound:,}"),
    ),
    key=("table", "network", "rewritten", "algorithm"),
    quick="a limit of two seconds a run, nothing written",
    options={"--limit": {"type": float, "default": 60.0, "help": "seconds for each run (default 60)"}},
    after=means,
)

if __name__ == "__main__":
    run(EXPERIMENT)
