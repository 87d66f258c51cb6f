"""Periods of the exact planner on three chains of cuts of the same network: blocks, PICO's pieces, any downset.

    python -m experiments.pico.cuts [--quick] [--seconds 20]

Blocks: cuts where one tensor crosses. Pieces: Algorithm 1, each piece reading only the one before it. Downsets: every
cut of the pieces, and cuts inside them that relay what is read further on, charged with all bytes that cross (at most
`--most` beside the strict ones). All on the same cost model and cluster; analytic.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from downset import load_cluster
from downset.pipelines.cuts import refined_cuts, thinned
from downset.pipelines.network import block_units, split_problem
from downset.pipelines.pieces.problem import piece_problem
from downset.pipelines.pieces.search import pieces
from downset.pipelines.plan import plan_pipeline
from experiments.rows import load_rows, save_rows
from zoo import graph

NAME = "pico_cuts"
CLUSTERS = (
    ("pico_1mac", "paper"),
    ("pico_1mac", "resources"),
    ("pico_4mac", "resources"),
    ("pico_1mac_cell", "resources"),
)


def chains(name: str, most: int, seconds: float) -> dict[str, tuple[tuple[int, ...], ...]]:
    network = graph(name, weights=False)
    problem = piece_problem(network)
    strict = pieces(problem, seconds=seconds)
    found = thinned(problem, refined_cuts(problem, strict, state_limit=5000), most)
    return {"blocks": block_units(network), "pieces": strict.operators(problem), "downsets": found.units(problem)}


def rows(name: str, most: int, seconds: float) -> list[dict[str, Any]]:
    network = graph(name, weights=False)
    table = []
    for chain, units in chains(name, most, seconds).items():
        problem = split_problem(network, units)
        for where, comm in CLUSTERS:
            cluster = load_cluster(where)
            began = time.perf_counter()
            plan = plan_pipeline(problem, cluster, comm=comm, time_limit_s=seconds)
            table.append(
                {"network": name, "chain": chain, "units": len(units), "cluster": where, "comm": comm,
                 "period_s": plan.period_s, "latency_s": plan.latency_s, "bound_s": plan.evidence.bound,
                 "proven": plan.evidence.proven,
                 "seconds": round(time.perf_counter() - began, 2)}
            )  # fmt: skip
            print(shown(table[-1]), flush=True)
    return table


def shown(row: dict[str, Any]) -> str:
    return (
        f"| {row['network']} | {row['cluster']}, {row['comm']} | {row['chain']} | {row['units']} "
        f"| {row['period_s']:.4f} | {row['bound_s']:.4f} | {'yes' if row['proven'] else 'no'} | {row['latency_s']:.3f} "
        f"| {row['seconds']} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="print the recorded rows")
    parser.add_argument("--seconds", type=float, default=20.0, help="limit for each search")
    parser.add_argument("--most", type=int, default=30, help="cuts beside the strict ones")
    arguments = parser.parse_args()
    print("| network | cluster | chain | units | period s | bound s | proven | latency s | planning s |")
    print("|---|---|---|---|---|---|---|---|---|")
    if arguments.quick:
        print("\n".join(shown(row) for row in load_rows(NAME)), "\nrecorded")
        return
    table = [
        row for name in ("inception_v3", "nasnet_a_large") for row in rows(name, arguments.most, arguments.seconds)
    ]
    print("written:", save_rows(NAME, table))


if __name__ == "__main__":
    main()
