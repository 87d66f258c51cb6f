"""Table 2 and figure 13: how long SERENITY's scheduler takes, with its accelerations one by one: paper | ours | ratio.

    python -m experiments.serenity.table2 [--quick] [--limit SECONDS]

Table 2 is SwiftNet from the pool in front of cell A to the end of cell C, memory model `serenity`, concatenations left
out: the paper's 62 nodes, which fall into its {21,19,22} where one operator is comparable with all others. Rewritten,
ours has more nodes than the paper's {33,28,29} (which add up to 90, though it prints 92). That would fit counting, in
place of each convolution behind a concatenation of k parts, k partial ones, depthwise ones left whole, and one less a
cell: the last column of the second table; we split depthwise convolutions too and count the sum as a node.

Figure 13 has RandWire twice: every operator (a node is a sum, a ReLU and two convolutions), and `by nodes`, which its
graphs of 32 nodes suggest.

DP is algorithm 1; DC divide and conquer; SB the adaptive soft budget; `optimal` our own search on the same graph whole.
Theirs and ours in Python on one core, but for `optimal`, which is C++; CPU seconds. `> N s`: stopped, with the bound
proven till then. Dividing saves little here: a memo of zero-indegree sets narrows at an hourglass by itself.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from downset import Graph, OrderProblem, order_problem, peak_bytes
from downset.orders.optimal import optimal
from downset.orders.search_space import SearchSpace
from downset.orders.serenity import divide, serenity
from downset.rewrites.concat.partition import partition_sites
from experiments.rows import rest_of_rows, save_rows
from experiments.serenity.subjects import available, by_nodes, nodes_as_counted, ratio, rewritten, without_concats
from experiments.serenity.swiftnet import CELLS, MODEL

NAME = "serenity_table2"
ALGORITHMS: dict[str, dict[str, Any]] = {
    "DP": {"divided": False, "soft_budget": False},
    "DP + DC": {"divided": True, "soft_budget": False},
    "DP + DC + SB": {"divided": True, "soft_budget": True},
}
PAPER_S = {
    (False, "DP + DC"): 56.5,
    (False, "DP + DC + SB"): 37.9,
    (True, "DP + DC"): 7.2 * 3600,
    (True, "DP + DC + SB"): 111.9,
}
BY_NODES = ", by nodes"
PAPER_NODES = {False: "62={21,19,22}", True: "92={33,28,29}"}
PAPER_MEAN_S = {False: 40.6, True: 48.8}


def timed(problem: OrderProblem, algorithm: str, limit_s: float) -> dict[str, Any]:
    """One run: CPU seconds, peak, whether it finished. The limit is one of wall time."""
    begin = time.process_time()
    if algorithm == "optimal":
        found = optimal(problem, time_limit_s=limit_s)
    else:
        found = serenity(problem, time_limit_s=limit_s, **ALGORITHMS[algorithm])
    seconds = time.process_time() - begin
    peak = peak_bytes(problem, found.solution)
    return {
        "algorithm": algorithm,
        "cpu_s": round(seconds, 4),
        "finished": found.proven,
        "peak": peak,
        "bound": found.bound,
        "states": found.states,
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
    """What rewriting adds by the rule that fits the paper's count: k - 1 for a convolution behind k parts."""
    readers = {tensor: op for op in graph.ops for tensor in op.inputs}
    sites = (graph.ops[site] for site in partition_sites(graph, inexact=True))
    return sum(len(op.inputs) - 1 for op in sites if readers[op.outputs[0]].attrs.get("group", 1) == 1)


def as_problem(graph: Graph) -> OrderProblem:
    return without_concats(graph, order_problem(graph, "serenity"))


def rows(limit_s: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if MODEL.exists():
        network = nodes_as_counted()
        for split, graph in ((False, network), (True, rewritten(network, "serenity"))):
            problem = as_problem(graph)
            for algorithm in (*ALGORITHMS, "optimal"):
                facts = {"table": "2", "network": "SwiftNet", "rewritten": split, "nodes": divided_nodes(problem)}
                found.append({**facts, **timed(problem, algorithm, limit_s)})
    cells = available()
    stages = {f"{name}{BY_NODES}": by_nodes(graph) for name, graph in cells.items() if name.startswith("RandWire")}
    for name, graph in {**cells, **stages}.items():
        for split, subject in ((False, graph), (True, rewritten(graph, "serenity"))):
            problem = as_problem(subject)
            if split and len(subject.ops) == len(graph.ops):
                continue  # there is nothing to rewrite
            for algorithm in ("DP + DC + SB", "optimal"):
                facts = {"table": "13", "network": name, "rewritten": split, "nodes": divided_nodes(problem)}
                found.append({**facts, **timed(problem, algorithm, limit_s)})
    return found


def took(row: dict[str, Any]) -> str:
    if row["finished"]:
        return f"{row['cpu_s']:.4f} s" if row["cpu_s"] < 0.1 else f"{row['cpu_s']:.1f} s"
    return f"> {row['limit_s']:g} s"


def print_table(table: list[dict[str, Any]], mark: str) -> None:
    heads = (
        "| rewritten | algorithm | nodes, paper | nodes, ours | paper | ours | ratio | states | peak, B | bound, B |"
    )
    print(f"Table 2{mark}\n{heads}\n" + "|---" * 10 + "|")
    for row in (row for row in table if row["table"] == "2"):
        split, paper = row["rewritten"], PAPER_S.get((row["rewritten"], row["algorithm"]))
        printed = f"{paper:,.1f} s" if paper else "N/A" if row["algorithm"] == "DP" else "-"
        print(
            f"| {'yes' if split else 'no'} | {row['algorithm']} | {PAPER_NODES[split]} | {row['nodes']} | {printed} "
            f"| {took(row)} | {ratio(paper, row['cpu_s']) if row['finished'] else '-'} | {row['states']:,} "
            f"| {row['peak']:,} | {row['bound']:,} |"
        )
    print(
        f"\nFigure 13{mark}\n| network | rewritten | nodes | algorithm | ours | states | peak, B |\n" + "|---" * 7 + "|"
    )
    for row in (row for row in table if row["table"] == "13"):
        print(
            f"| {row['network']} | {'yes' if row['rewritten'] else 'no'} | {row['nodes']} | {row['algorithm']} "
            f"| {took(row)} | {row['states']:,} | {row['peak']:,} |"
        )
    print("\n| mean over networks | rewritten | paper | ours | ratio |\n" + "|---" * 5 + "|")
    figure = [row for row in table if row["table"] == "13"]
    every = [row for row in figure if not row["network"].endswith(BY_NODES)]
    nodes = [row for row in figure if row["network"].endswith(BY_NODES) or not row["network"].startswith("RandWire")]
    for label, rows in (("every operator", every), (f"RandWire{BY_NODES}", nodes)):
        for split, paper in PAPER_MEAN_S.items():
            for algorithm in ("DP + DC + SB", "optimal"):
                print_mean(label, rows, split, paper, algorithm)
    if MODEL.exists():
        from downset.formats.reading import load
        from experiments.serenity.swiftnet import part

        network = load(MODEL)
        print("\n| cell | nodes | rewritten, paper | by the rule that fits it | ours |\n" + "|---" * 5 + "|")
        for (name, span), nodes, paper_nodes in zip(CELLS.items(), (21, 19, 22), (33, 28, 29), strict=True):
            cell = part(network, *span)
            rule = nodes + partial_convolutions(cell) - 1
            ours = len(as_problem(rewritten(cell, "serenity")).predecessors) + 1
            print(f"| {name} | {nodes} | {paper_nodes} | {rule} | {ours} |")


def print_mean(label: str, rows: list[dict[str, Any]], split: bool, paper: float, algorithm: str) -> None:
    """A network in which nothing can be rewritten stands in the second mean as it is."""
    last = {row["network"]: row for row in rows if row["algorithm"] == algorithm and row["rewritten"] <= split}
    mean = sum(row["cpu_s"] if row["finished"] else row["limit_s"] for row in last.values()) / len(last)
    least = "" if all(row["finished"] for row in last.values()) else "> "
    print(
        f"| {len(last)}, {label}, {algorithm} | {'yes' if split else 'no'} | {paper} s | {least}{mean:.3g} s "
        f"| {least}{mean / paper:.2g} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a limit of two seconds a run, nothing written")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each run (default 60)")
    options = parser.parse_args()
    table = rows(2.0 if options.quick else options.limit)
    if MODEL.exists():
        print_table(table, "")
    else:
        print_table([*rest_of_rows(NAME, table, by=["network"]), *table], ", SwiftNet recorded")
    if MODEL.exists() and not options.quick:
        print("written:", save_rows(NAME, table))


if __name__ == "__main__":
    main()
