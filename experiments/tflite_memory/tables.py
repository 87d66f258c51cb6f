"""Tables 1 and 2 of "Efficient Memory Management for Deep Neural Net Inference": paper | ours, cell by cell, in MiB.

    python -m experiments.tflite_memory.tables [--quick]

All six networks are built here (networks.py); ties="paper". The graphs of MobileNet v1 and v2 and DeepLab v3 are the
paper's. Those of Inception v3, PoseNet and BlazeFace are not public: ours are reconstructions, shown beside the paper's
figures and not compared cell by cell. The last row of each table is ours: the exact planner, and whether it is proven.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from downset import Record, plan_arena, plan_shared
from downset.memory.bounds import objects_bound, offsets_bound
from experiments.rows import save_rows
from experiments.tflite_memory.networks import NETWORKS, REBUILT, usage_records

NAME = "tflite_memory_tables"
MIB = 2**20

# Cells in the order of NETWORKS.
PAPER: dict[str, dict[str, tuple[float, ...]]] = {
    "Table 1: shared objects": {
        "greedy_by_size": (4.594, 7.178, 6.437, 10.337, 6.347, 0.592),
        "greedy_by_size_improved": (4.594, 6.891, 6.437, 10.337, 6.347, 0.518),
        "greedy_by_breadth": (6.125, 6.699, 6.437, 10.676, 8.390, 0.675),
        "greedy_in_order": (4.594, 8.039, 7.168, 12.703, 6.347, 0.587),
        "min_cost_flow": (5.359, 7.513, 8.364, 10.624, 7.359, 0.582),
        "lower bound": (4.594, 6.604, 6.105, 8.955, 6.347, 0.518),
        "naive": (19.248, 26.313, 48.642, 54.010, 28.556, 2.698),
    },
    "Table 2: offsets in one arena": {
        "greedy_by_size": (4.594, 5.742, 4.653, 7.914, 6.271, 0.492),
        "greedy_by_breadth": (4.594, 5.742, 4.653, 7.914, 7.359, 0.656),
        "greedy_in_order": (6.125, 6.508, 4.985, 10.624, 8.362, 0.492),
        "strip_packing": (4.594, 6.029, 4.321, 7.914, 6.271, 0.533),
        "lower bound": (4.594, 5.742, 4.320, 7.914, 6.271, 0.492),
    },
}
"""The naive row stands once: it is the same in both of the paper's tables."""


def total_bytes(table: str, strategy: str, records: Sequence[Record]) -> tuple[int, bool]:
    """Bytes, and whether they are proven to be the least."""
    objects = "Table 1" in table
    bound: Callable[[Sequence[Record]], int] = objects_bound if objects else offsets_bound
    if strategy == "lower bound":
        return bound(records), False
    plan = plan_shared if objects else plan_arena
    evidence = plan(records, method=strategy, ties="paper").evidence
    return int(evidence.value), evidence.proven


def rows_of(name: str, column: int, *, exact: bool) -> list[dict[str, Any]]:
    records = usage_records(name)
    rows: list[dict[str, Any]] = []
    for table, strategies in PAPER.items():
        for strategy, cells in [*strategies.items(), *([("exact", ())] if exact else [])]:
            nbytes, proven = total_bytes(table, strategy, records)
            paper = cells[column] if cells else None
            row: dict[str, Any] = {"table": table, "strategy": strategy, "network": name, "paper_mib": paper}
            row.update(ours_mib=round(nbytes / MIB, 4), ours_bytes=nbytes, proven=proven)
            row["same"] = None if paper is None or name in REBUILT else round(nbytes / MIB, 3) == paper
            rows.append(row)
    return rows


def cell(row: dict[str, Any]) -> str:
    ours = f"{row['ours_mib']:.3f}" if row["same"] is not False else f"{row['ours_mib']:.4f}"
    if row["paper_mib"] is None:
        return ours + (" proven" if row["proven"] else "")
    if row["same"] is None:
        return f"{row['paper_mib']:.3f} / {ours}"
    return f"{row['paper_mib']:.3f} =" if row["same"] else f"{row['paper_mib']:.3f} ≠ **{ours}**"


def print_table(table: str, rows: Sequence[dict[str, Any]], networks: Sequence[str]) -> None:
    print(f"\n{table} (MiB). `=`: ours is the same; `≠`: ours is what follows; `/`: ours, of a reconstruction.\n")
    print("| strategy | " + " | ".join(n + (" (rebuilt)" if n in REBUILT else "") for n in networks) + " |")
    print("|---" * (len(networks) + 1) + "|")
    for strategy in dict.fromkeys(row["strategy"] for row in rows if row["table"] == table):
        of = {row["network"]: row for row in rows if (row["table"], row["strategy"]) == (table, strategy)}
        print(f"| {strategy} | " + " | ".join(cell(of[name]) for name in networks) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="the paper's own three graphs, no exact row, nothing written"
    )
    quick = parser.parse_args().quick
    networks = [name for name in NETWORKS if not quick or name not in REBUILT]
    rows = [row for c, name in enumerate(NETWORKS) if name in networks for row in rows_of(name, c, exact=not quick)]
    for table in PAPER:
        print_table(table, rows, networks)
    compared = [row for row in rows if row["same"] is not None]
    print(f"\n{sum(row['same'] for row in compared)} of {len(compared)} cells of the paper's own graphs are the same.")
    if not quick:
        print("written:", save_rows(NAME, rows))


if __name__ == "__main__":
    main()
