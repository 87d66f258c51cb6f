"""Tables 1 and 2 of "Efficient Memory Management for Deep Neural Net Inference": paper | ours, cell by cell, in MiB.

    python -m experiments.tflite_memory.tables [--quick]

All six networks are built here (networks.py); ties="paper". The graphs of MobileNet v1 and v2 and DeepLab v3 are the
paper's. Those of Inception v3, PoseNet and BlazeFace are not public: ours are reconstructions, shown beside the paper's
figures and not compared cell by cell. The last row of each table is ours: the exact planner, and whether it is proven.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence

from downset import Record, plan_arena, plan_shared
from downset.memory.bounds import objects_bound, offsets_bound
from experiments.frame import Column, Experiment, fields, printed, run, show_table
from experiments.rows import Row
from experiments.tflite_memory.networks import NETWORKS, REBUILT, usage_records

MIB = 2**20

PAPER = {table.where: table for table in (printed("memory_table1"), printed("memory_table2"))}


def total_bytes(table: str, strategy: str, records: Sequence[Record]) -> tuple[int, bool]:
    """Bytes, and whether they are proven to be the least."""
    objects = "Table 1" in table
    bound: Callable[[Sequence[Record]], int] = objects_bound if objects else offsets_bound
    if strategy == "lower bound":
        return bound(records), False
    plan = plan_shared if objects else plan_arena
    evidence = plan(records, method=strategy, ties="paper").evidence
    return int(evidence.value), evidence.proven


def rows_of(name: str, *, exact: bool) -> Iterator[Row]:
    records = usage_records(name)
    for table, paper in PAPER.items():
        for strategy in [*(row["strategy"] for row in paper.rows), *(["exact"] if exact else [])]:
            nbytes, proven = total_bytes(table, strategy, records)
            mib = paper.figure(name, strategy=strategy)
            row: Row = {"table": table, "strategy": strategy, "network": name, "paper_mib": mib}
            row.update(ours_mib=round(nbytes / MIB, 4), ours_bytes=nbytes, proven=proven)
            row["same"] = None if mib is None or name in REBUILT else round(nbytes / MIB, 3) == mib
            yield row


def rows(options: Namespace) -> Iterator[Row]:
    for name in NETWORKS:
        if not options.quick or name not in REBUILT:
            yield from rows_of(name, exact=not options.quick)


def cell(row: Row) -> str:
    ours = f"{row['ours_mib']:.3f}" if row["same"] is not False else f"{row['ours_mib']:.4f}"
    if row["paper_mib"] is None:
        return ours + (" proven" if row["proven"] else "")
    if row["same"] is None:
        return f"{row['paper_mib']:.3f} / {ours}"
    return f"{row['paper_mib']:.3f} =" if row["same"] else f"{row['paper_mib']:.3f} ≠ **{ours}**"


def column(name: str) -> Column:
    return name + (" (rebuilt)" if name in REBUILT else ""), lambda row: cell(row[name])


def tables(rows: Sequence[Row]) -> None:
    """A line a strategy, a column a network."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    for table in PAPER:
        strategies: dict[str, Row] = {}
        for row in (row for row in rows if row["table"] == table):
            strategies.setdefault(row["strategy"], {"strategy": row["strategy"]})[row["network"]] = row
        title = f"{table} (MiB). `=`: ours is the same; `≠`: ours is what follows; `/`: ours, of a reconstruction."
        show_table((*fields("strategy"), *map(column, networks)), strategies.values(), title)
    compared = [row for row in rows if row["same"] is not None]
    print(f"\n{sum(row['same'] for row in compared)} of {len(compared)} cells of the paper's own graphs are the same.")


EXPERIMENT = Experiment(
    "tflite_memory_tables", rows, quick="the paper's own three graphs, no exact row, nothing written", after=tables
)

if __name__ == "__main__":
    run(EXPERIMENT)
