"""minimalloc's challenging instances: CPU seconds to place each at its capacity, and the height after one CPU second.

Peer: google/minimalloc 9f5cf81 at its default settings, least user seconds of three runs on a machine like the one the
    recorded rows come from; a recorded figure, not run here. `--cpsat S` runs CP-SAT for S seconds each.
    python -m experiments.arenas.minimalloc [--quick] [--cpsat SECONDS]
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from downset import Record, read_records
from downset.arenas.check_records import check_placement
from downset.arenas.gaps import height
from downset.arenas.planners import ARENAS
from downset.memory.bounds import offsets_bound
from experiments.frame import Experiment, fields, run
from experiments.rows import Row
from experiments.speed.arena_peers import cp_sat

exact = ARENAS["exact"]

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "minimalloc"
CAPACITY = 1_048_576
PEER_CPU_S = {"A": 9.74, "B": 7.91, "C": 1.53, "E": 7.15, "G": 1.92, "H": 2.66, "J": 2.34, "K": 0.99}
TIGHTER = {"C": 1_039_360, "J": 989_184}  # their bounds, below the capacity


def fitted(records: Sequence[Record], capacity: int) -> tuple[float, bool]:
    """CPU seconds, and whether a checked placement at or below the capacity came of them."""
    begin = time.process_time()
    result = exact(records, capacity=capacity, time_limit_s=15.0)
    seconds = time.process_time() - begin
    check_placement(records, result.solution)
    return seconds, height(records, result.solution) <= capacity


def after_a_second(records: Sequence[Record]) -> tuple[float, float]:
    """Height over bound, and the CPU seconds it took: about one, however busy the machine is."""
    limit = 1.0
    for _ in range(4):
        begin = time.process_time()
        result = exact(records, time_limit_s=limit)
        seconds = time.process_time() - begin
        if result.proven or seconds > 0.9:
            break
        limit *= 0.95 / max(seconds, 0.1)
    check_placement(records, result.solution)
    return height(records, result.solution) / offsets_bound(records), seconds


def rows(options: Namespace) -> Iterator[Row]:
    if not DATA.exists():
        return
    for name in ("B", "C") if options.quick else PEER_CPU_S:
        records = read_records(DATA / f"{name}.{CAPACITY}.csv")
        seconds, placed = fitted(records, CAPACITY)
        ratio, spent = after_a_second(records)
        row: Row = {"instance": name, "records": len(records), "capacity": CAPACITY, "placed": placed}
        row |= {"minimalloc_cpu_s": PEER_CPU_S[name], "cpu_s": round(seconds, 2)}
        row |= {"height_over_bound": round(ratio, 4), "after_cpu_s": round(spent, 2)}
        if options.cpsat:
            offsets = cp_sat(records, options.cpsat)
            row["cp_sat_over_bound"] = height(records, offsets) / offsets_bound(records) if len(offsets) else None
        yield row
        if name in TIGHTER and not options.quick:
            seconds, placed = fitted(records, TIGHTER[name])
            row = {"instance": name, "records": len(records), "capacity": TIGHTER[name], "placed": placed}
            yield row | {"cpu_s": round(seconds, 2)}


def times_as_fast(row: Row) -> str | None:
    peer = row.get("minimalloc_cpu_s")
    return f"{peer / max(row['cpu_s'], 0.01):.1f}" if peer else None


def reached(row: Row) -> str | None:
    theirs = f" (CP-SAT {row['cp_sat_over_bound']:.4f})" if row.get("cp_sat_over_bound") else ""
    return f"{row['height_over_bound']}{theirs}" if "height_over_bound" in row else None


def total(rows: Sequence[Row]) -> None:
    ours = [row["cpu_s"] for row in rows if "minimalloc_cpu_s" in row]
    print(f"sum of ours at the capacity {sum(ours):.2f} CPU s, the most {max(ours):.2f}")


EXPERIMENT = Experiment(
    "arenas_minimalloc",
    rows,
    (
        *fields("instance", "capacity", "placed"),
        ("minimalloc, recorded", "{minimalloc_cpu_s}"),
        ("ours, CPU s", "{cpu_s}"),
        ("ratio", times_as_fast),
        ("height / bound", reached),
    ),
    quick="two instances; nothing is saved",
    options={
        "--cpsat": {"type": float, "default": 0.0, "metavar": "SECONDS", "help": "also run CP-SAT so long on each"}
    },
    after=total,
)

if __name__ == "__main__":
    run(EXPERIMENT)
