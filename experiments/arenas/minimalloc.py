"""minimalloc's challenging instances: CPU seconds to place each at its capacity, and the height after one CPU second.

Peer: google/minimalloc 9f5cf81 at its default settings, least user seconds of three runs on a machine like the one the
    recorded rows come from; a recorded figure, not run here. `--cpsat S` runs CP-SAT for S seconds each.
    python -m experiments.arenas.minimalloc [--quick] [--cpsat SECONDS]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from downset import Record, read_records
from downset.arenas.check_records import check_placement
from downset.arenas.exact import exact
from downset.arenas.gaps import height
from downset.memory.bounds import offsets_bound
from experiments.rows import load_rows, save_rows

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "minimalloc"
CAPACITY = 1_048_576
PEER_CPU_S = {"A": 9.74, "B": 7.91, "C": 1.53, "E": 7.15, "G": 1.92, "H": 2.66, "J": 2.34, "K": 0.99}
TIGHTER = {"C": 1_039_360, "J": 989_184}  # their bounds, below the capacity


def fitted(records: Sequence[Record], capacity: int) -> tuple[float, bool]:
    """CPU seconds, and whether a checked placement at or below the capacity came of them."""
    begin = time.process_time()
    found = exact(records, capacity=capacity, time_limit_s=15.0)
    seconds = time.process_time() - begin
    check_placement(records, found.solution)
    return seconds, height(records, found.solution) <= capacity


def after_a_second(records: Sequence[Record]) -> tuple[float, float]:
    """Height over bound, and the CPU seconds it took: about one, however busy the machine is."""
    limit = 1.0
    for _ in range(4):
        begin = time.process_time()
        found = exact(records, time_limit_s=limit)
        seconds = time.process_time() - begin
        if found.proven or seconds > 0.9:
            break
        limit *= 0.95 / max(seconds, 0.1)
    check_placement(records, found.solution)
    return height(records, found.solution) / offsets_bound(records), seconds


def cp_sat(records: Sequence[Record], seconds: float) -> float | None:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    top = sum(record.nbytes for record in records)
    offsets = [model.new_int_var(0, top, record.id) for record in records]
    spans = [model.new_fixed_size_interval_var(o, r.nbytes, r.id) for o, r in zip(offsets, records, strict=True)]
    lives = [model.new_fixed_size_interval_var(r.start, r.stop - r.start, r.id) for r in records]
    reach = model.new_int_var(offsets_bound(records), top, "height")
    model.add_no_overlap_2d(lives, spans)
    for offset, record in zip(offsets, records, strict=True):
        model.add(offset + record.nbytes <= reach)
    model.minimize(reach)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = seconds, 1
    status = solver.solve(model)
    return solver.objective_value / offsets_bound(records) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two instances; nothing is saved")
    parser.add_argument("--cpsat", type=float, default=0.0, metavar="SECONDS", help="also run CP-SAT so long on each")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if not DATA.exists():
        show(load_rows("arenas_minimalloc"), "recorded")
        return
    for name in ("B", "C") if options.quick else PEER_CPU_S:
        records = read_records(DATA / f"{name}.{CAPACITY}.csv")
        seconds, placed = fitted(records, CAPACITY)
        ratio, spent = after_a_second(records)
        row = {"instance": name, "records": len(records), "capacity": CAPACITY, "placed": placed}
        row |= {"minimalloc_cpu_s": PEER_CPU_S[name], "cpu_s": round(seconds, 2)}
        row |= {"height_over_bound": round(ratio, 4), "after_cpu_s": round(spent, 2)}
        if options.cpsat:
            row["cp_sat_over_bound"] = cp_sat(records, options.cpsat)
        rows.append(row)
        if name in TIGHTER and not options.quick:
            seconds, placed = fitted(records, TIGHTER[name])
            row = {"instance": name, "records": len(records), "capacity": TIGHTER[name], "placed": placed}
            rows.append(row | {"cpu_s": round(seconds, 2)})
    if not options.quick:
        save_rows("arenas_minimalloc", rows)
    show(rows, "measured")


def show(rows: Sequence[dict[str, Any]], how: str) -> None:
    print(
        f"{'':3}{'capacity':>9} {'placed':>7} {'minimalloc':>11} {'ours CPU s':>11} {'ratio':>6} {'height/bound':>13}"
        f"  {how}"
    )
    for row in rows:
        peer = row.get("minimalloc_cpu_s")
        ratio = f"{peer / max(row['cpu_s'], 0.01):.1f}" if peer else "-"
        reached = row.get("height_over_bound", "-")
        seconds = row["cpu_s"]
        placed = "yes" if row["placed"] else "no"
        print(
            f"{row['instance']:3}{row['capacity']:9} {placed:>7} {peer or '-':>11} {seconds:11} {ratio:>6}"
            f" {reached:>13}"
        )
    ours = [row["cpu_s"] for row in rows if "minimalloc_cpu_s" in row]
    print(f"sum of ours at the capacity {sum(ours):.2f} CPU s, the most {max(ours):.2f}")


if __name__ == "__main__":
    main()
