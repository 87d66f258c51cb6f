"""Exact shared objects compared with the heuristics: bound, value, proof and CPU time, in MiB.

    python -m experiments.arenas.objects [--quick] [--cp-sat] [--cp-sat-limit 60]

Record sets: those of ../shared/data/records where they exist, and the paper's networks as the zoo builds them. `LiteRT`
is the least of LiteRT's strategies under its own tie rules, `paper` the least of the rows of the paper's Table 1 under
the paper's, both as written here; `best` is the portfolio of both. --cp-sat lets OR-Tools solve the same sets on one
worker, warm-started from `best`: an oracle for the value, and a time to compare with. CPU seconds; the exact search is
the median of five runs.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from downset import Record, read_records
from downset.arenas.check_records import check_objects
from downset.arenas.objects_fit import object_sizes, total_bytes
from downset.arenas.planners import SHARED
from downset.memory.bounds import breadths, objects_bound
from experiments.frame import Experiment, fields, run
from experiments.rows import Row, load_rows
from experiments.tflite_memory.networks import NETWORKS, usage_records

NAME = "arenas_objects"
MIB = 2**20
SHARED_RECORDS = Path(__file__).resolve().parents[3] / "shared" / "data" / "records"
_BOTH = ("greedy_by_size_improved", "greedy_by_breadth", "greedy_in_order", "min_cost_flow", "naive")
HEURISTICS = {"litert": ("tflite", (*_BOTH, "equality")), "paper": ("paper", (*_BOTH, "greedy_by_size"))}
"""Column -> rule for ties, strategies. LiteRT's GREEDY_BY_SIZE is the improved one."""


def instances() -> dict[str, Sequence[Record]]:
    files = sorted(SHARED_RECORDS.glob("*.csv")) if SHARED_RECORDS.is_dir() else []
    from_files: dict[str, Sequence[Record]] = {path.stem: read_records(path) for path in files}
    return from_files | {f"zoo: {name}": usage_records(name) for name in NETWORKS}


def row_of(name: str, records: Sequence[Record], cp_sat_limit_s: float | None) -> Row:
    row: Row = {"records": name, "count": len(records), "bound": objects_bound(records)}
    for column, (ties, methods) in HEURISTICS.items():
        solutions = [SHARED[method](records, ties=ties).solution for method in methods]
        row[column] = min(total_bytes(records, solution) for solution in solutions)
    best = SHARED["best"](records).solution
    row["best"] = total_bytes(records, best)
    seconds = []
    for _ in range(5):
        begin = time.process_time()
        exact = SHARED["exact"](records, time_limit_s=60.0)
        seconds.append(time.process_time() - begin)
    check_objects(records, exact.solution)
    row.update(exact=total_bytes(records, exact.solution), proven=exact.proven, states=exact.states)
    row["cpu_s"] = round(statistics.median(seconds), 5)
    if cp_sat_limit_s is not None:
        row.update(cp_sat(records, best, cp_sat_limit_s))
    return row


def cp_sat(records: Sequence[Record], start: Sequence[int], time_limit_s: float) -> dict[str, Any]:
    """The same problem as an integer program: record i joins the object led by record j, its largest."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    order = sorted(range(len(records)), key=lambda i: (-records[i].nbytes, i))
    rank = {index: place for place, index in enumerate(order)}
    joins = {(i, j): model.new_bool_var("") for i in order for j in order if rank[j] <= rank[i]}
    for i in order:
        model.add_exactly_one(joins[i, j] for j in order if (i, j) in joins)
        for j in order:
            if (i, j) in joins and i != j:
                model.add_implication(joins[i, j], joins[j, j])
    for step, _ in breadths(records):
        live = [i for i in order if any(low <= step < high for low, high in records[i].active())]
        for j in order:
            model.add_at_most_one(joins[i, j] for i in live if (i, j) in joins)
    for held in range(len(object_sizes(records, start))):
        members = [i for i in order if start[i] == held]
        for i in members:
            model.add_hint(joins[i, members[0]], 1)
    model.minimize(sum(records[j].nbytes * joins[j, j] for j in order))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = time_limit_s
    begin = time.process_time()
    status = solver.solve(model)
    spent = time.process_time() - begin
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return {"cp_sat": None, "cp_sat_proven": False, "cp_sat_cpu_s": round(spent, 2)}
    return {
        "cp_sat": round(solver.objective_value),
        "cp_sat_proven": status == cp_model.OPTIMAL,
        "cp_sat_cpu_s": round(spent, 2),
    }


def rows(options: Namespace) -> Iterator[Row]:
    kept = {row["records"]: row for row in load_rows(NAME)}
    for name, records in instances().items():
        row, before = row_of(name, records, options.cp_sat_limit if options.cp_sat else None), kept.get(name, {})
        if not options.cp_sat and before.get("exact") == row["exact"]:  # the oracle's answer still stands
            row |= {key: value for key, value in before.items() if key.startswith("cp_sat")}
        yield row


def mib(column: str) -> Callable[[Row], str]:
    return lambda row: f"{row[column] / MIB:.4f}"


def oracle(row: Row) -> str | None:
    if row.get("cp_sat_cpu_s") is None:
        return None
    return "none" if row["cp_sat"] is None else mib("cp_sat")(row) + ("" if row["cp_sat_proven"] else " (not proven)")


EXPERIMENT = Experiment(
    NAME,
    rows,
    (
        *fields("records", "count"),
        *((column, mib(column)) for column in ("bound", "litert", "paper", "best", "exact")),
        *fields("proven"),
        ("CPU ms", "{cpu_s!m:.2f}"),
        ("CP-SAT", oracle),
        ("its CPU s", "{cp_sat_cpu_s:.1f}"),
    ),
    key=("records",),
    options={
        "--cp-sat": {"action": "store_true", "help": "ask OR-Tools, too"},
        "--cp-sat-limit": {"type": float, "default": 60.0, "metavar": "SECONDS"},
    },
)

if __name__ == "__main__":
    run(EXPERIMENT)
