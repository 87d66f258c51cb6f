"""How planning an arena grows with the records, and how it compares with other planners in one run on one core.

    python -m experiments.speed.arena [--quick] [--limit SECONDS] [--part growth|peers|commands] [--instances FOLDER]

First: records made from seeds, `narrow` (lifetimes of up to 50 steps, as in a network) and `wide` (up to all steps).
Second: real record sets and minimalloc's instances where ../shared exists, against the peers of arena_peers.py that are
installed; `ratio` is their CPU time by that of `best` on the same records. CPU seconds, medians of five runs where one
takes less than a second; every placement is checked. `x bound`: bytes by the largest breadth, which nothing goes below.
Third: whole commands, next to minimalloc and idealloc where they are on PATH (arena_commands.py says how to get them);
`ratio` and `memory` are theirs by ours. Their instances are in ../shared, or in FOLDER, idealloc's `benchmarks`.
"""

from __future__ import annotations

import random
import shutil
import statistics
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from downset import Record, read_records
from downset.arenas.check_records import check_objects, check_placement
from downset.arenas.gaps import height
from downset.arenas.objects_fit import total_bytes
from downset.arenas.planners import ARENAS, SHARED
from downset.memory.bounds import objects_bound, offsets_bound
from experiments.frame import Experiment, fields, run
from experiments.rows import Row
from experiments.speed.arena_commands import command_rows, nested
from experiments.speed.arena_peers import PEERS, installed
from experiments.speed.trees import print_growth

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
GROWTH = (
    ("offsets", "greedy_by_size"),
    ("offsets", "greedy_by_breadth"),
    ("offsets", "greedy_in_order"),
    ("offsets", "strip_packing"),
    ("offsets", "best"),
    ("objects", "greedy_by_size"),
    ("objects", "greedy_by_breadth"),
)


def made(count: int, window: int, seed: int = 0) -> list[Record]:
    generator = random.Random(f"{count}/{window}/{seed}")
    starts = sorted(generator.randrange(count) for _ in range(count))
    return [
        Record(str(i), start, start + generator.randint(1, window), 64 * generator.randint(1, 1000))
        for i, start in enumerate(starts)
    ]


def measured(plan: Callable[[], Any]) -> tuple[Any, float]:
    """Result, and median CPU seconds of five runs, of one if it is long."""
    seconds = []
    for _ in range(5):
        begin = time.process_time()
        result = plan()
        seconds.append(time.process_time() - begin)
        if seconds[0] > 1.0:
            break
    return result, statistics.median(seconds)


def growth_row(records: Sequence[Record], shape: str, form: str, method: str) -> Row:
    planner = (ARENAS if form == "offsets" else SHARED)[method]
    result, seconds = measured(lambda: planner(records))
    if form == "offsets":
        value, bound, check = height(records, result.solution), offsets_bound(records), check_placement
    else:
        value, bound, check = total_bytes(records, result.solution), objects_bound(records), check_objects
    check(records, result.solution)
    row = {"part": "growth", "records": f"{shape} {len(records)}", "count": len(records)}
    return row | {"planner": f"{form}: {method}", "over_bound": round(value / bound, 4), "cpu_s": round(seconds, 5)}


def real() -> dict[str, Sequence[Record]]:
    files = [path for folder in ("records", "minimalloc") for path in sorted((DATA / folder).glob("*.csv"))]
    return {path.stem: read_records(path) for path in files} | {"narrow 1000": made(1000, 50)}


def peer_rows(name: str, records: Sequence[Record], limit_s: float) -> Iterator[Row]:
    planners: dict[str, Callable[[], Sequence[int]]] = {
        "ours: best": lambda: ARENAS["best"](records).solution,
        f"ours: exact, {limit_s:g} s": lambda: ARENAS["exact"](records, time_limit_s=limit_s).solution,
    }
    for peer, planner in installed().items():
        planner(records[:2], limit_s)  # its imports are not its time
        label = f"{peer}, {limit_s:g} s" if peer == "CP-SAT" else peer
        planners[label] = lambda planner=planner: planner(records, limit_s)
    bound, first_s = offsets_bound(records), 0.0
    for label, plan in planners.items():
        offsets, seconds = measured(plan)
        first_s = first_s or seconds
        row: Row = {"part": "peers", "records": name, "count": len(records), "planner": label}
        if len(offsets):
            check_placement(records, offsets)
            row["over_bound"] = round(height(records, offsets) / bound, 4)
        yield row | {"cpu_s": round(seconds, 5), "ratio": round(seconds / first_s, 2)}


def commands(folder: Path, counts: Sequence[int]) -> dict[str, Path | Sequence[Record]]:
    """Instances of whole commands by name: files below the folder, then made records of so many."""
    instances: dict[str, Path | Sequence[Record]] = {
        f"{path.parent.name}/{path.stem.split('.1048576')[0]}": path for path in sorted(folder.glob("*/*.csv"))
    }
    for count in counts:
        instances |= {f"narrow {count}": made(count, 50), f"nested {count}": nested(count)}
    return instances


def rows(options: Namespace) -> Iterator[Row]:
    parts = {options.part} if options.part else {"growth", "peers", "commands"}
    for count in (100, 1000) if options.quick else (100, 1000, 10_000, 100_000):
        for shape, window in (("narrow", 50), ("wide", count)) if "growth" in parts else ():
            records = made(count, window)
            yield from (growth_row(records, shape, form, method) for form, method in GROWTH)
    for name, instance in list(real().items())[: 2 if options.quick else None] if "peers" in parts else ():
        yield from peer_rows(name, instance, options.limit)
    if "commands" in parts:
        counts = (1000,) if options.quick else (10_000, 100_000, 1_000_000)
        yield from command_rows(commands(options.instances, counts))


def after(rows: Sequence[Row]) -> None:
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["part"] != "peers" and " " in row["records"]:  # made records, of several counts
            points[f"{row['planner']}, {row['records'].split()[0]}"].append((row["count"], row["cpu_s"]))
    print_growth(
        {name: listed for name, listed in points.items() if len({count for count, _ in listed}) > 1}, "records"
    )
    names = [name for name in PEERS if name not in installed()] + [
        name for name in ("minimalloc", "idealloc") if shutil.which(name) is None
    ]
    print(f"\nPeers that are not installed: {', '.join(names) or 'none'}.")


EXPERIMENT = Experiment(
    "speed_arena",
    rows,
    (
        *fields("records", "planner"),
        ("x bound", lambda row: f"{row['over_bound']:.4f}" if "over_bound" in row else "none found"),
        ("CPU ms", "{cpu_s!m:,.1f}"),
        *fields("ratio", spec=",.2f"),
        ("MB", lambda row: f"{row['peak_rss_bytes'] / 1e6:,.0f}" if "peak_rss_bytes" in row else None),
        ("memory", "{memory_ratio:.2f}"),
    ),
    key=("part", "records", "planner"),
    quick="up to 1,000 records, two instances of peers, nothing written",
    options={
        "--limit": {"type": float, "default": 1.0, "help": "seconds for the exact search and CP-SAT"},
        "--part": {"choices": ("growth", "peers", "commands"), "help": "one of the tables; the others are left alone"},
        "--instances": {"type": Path, "default": DATA, "help": "folder of folders of record files"},
    },
    after=after,
)

if __name__ == "__main__":
    run(EXPERIMENT)
