"""Whole commands that place records, compared with minimalloc and idealloc: each is a process, start included.

Peers are programs that no index has; each is built from its repository, and its folder is then on PATH:
    minimalloc   github.com/google/minimalloc, CMake
    idealloc     github.com/cappadokes/idealloc, `cargo build --release`; its `benchmarks` are the instances
CPU seconds, 300 at most, and resident memory are the system's, of the process and its children. Modules of ours are
found compiled, as an installed package has them (`start.as_installed`). Every placement of ours is checked.
"""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from downset import Record, read_records
from downset.arenas.check_records import check_placement
from downset.memory.bounds import offsets_bound
from experiments.rows import Row
from experiments.speed.start import as_installed

__all__ = ["command_rows", "nested"]

CAPACITY = 1_048_576
"""Bytes into which each of minimalloc's instances fits."""
MEASURE = """
import json, resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_CPU, (300, 300))
run = subprocess.run(sys.argv[2:], stdout=open(sys.argv[1], "w"), stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([run.returncode, used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss]))
"""


def nested(count: int, seed: int = 0) -> list[Record]:
    """Lifetimes of which any two are apart or one within the other: a random walk that opens and closes them."""
    generator = random.Random(f"nested/{count}/{seed}")
    records: list[Record] = []
    opened: list[int] = []
    step = 0
    while len(records) < count:
        if len(records) + len(opened) < count and (not opened or generator.random() < 0.5):
            opened.append(step)
        else:
            records.append(Record(str(len(records)), opened.pop(), step, 64 * generator.randint(1, 1000)))
        step += 1
    return records


def command_rows(instances: Mapping[str, Path | Sequence[Record]]) -> Iterator[Row]:
    """Rows of each instance: a file, or records. Instances named `minimalloc/...` are planned for their capacity."""
    with tempfile.TemporaryDirectory() as compiled:
        environment = as_installed(Path(compiled))
        next(_rows_of("", nested(10), environment))  # compiles modules
        for name, given in instances.items():
            yield from _rows_of(name, given, environment)


def _rows_of(name: str, given: Path | Sequence[Record], environment: Mapping[str, str]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.csv"
        if isinstance(given, Path):
            shutil.copy(given, path)
        else:
            _write(given, path)
        yield from _rows(name, path, environment)


def _rows(name: str, path: Path, environment: Mapping[str, str]) -> Iterator[Row]:
    records = read_records(path)
    bound, hard = offsets_bound(records), name.startswith("minimalloc/")
    row: Row = {"part": "commands", "records": name, "count": len(records)}
    folder = path.parent
    placed, said = folder / "placed.csv", folder / "said.txt"
    capacity = ["--capacity", str(CAPACITY)] if hard else []
    ours = [sys.executable, "-m", "downset", "arena", str(path), "--json", "-o", str(placed), *capacity]
    code, own_s, own_bytes = _measured(ours, said, environment)
    if code:
        raise RuntimeError(f"{name}: {said.read_text() or f'exit code {code}'}")
    plan = json.loads(said.read_text())
    with placed.open() as file:
        check_placement(records, [int(line["offset"]) for line in csv.DictReader(file)], capacity=plan["arena_bytes"])
    yield row | {"planner": "downset arena"} | _figures(plan["arena_bytes"] / bound, own_s, own_bytes, own_s, own_bytes)
    doubled = folder / "doubled.csv"  # idealloc takes no lifetime of one step
    _write(records, doubled, steps=2)
    peers = {
        "minimalloc": [f"--capacity={CAPACITY}", f"--input={path}", f"--output={folder / 'peer.csv'}"] if hard else [],
        "idealloc": ["ex-csv", "-i", str(doubled)],
    }
    for peer, arguments in peers.items():
        program = shutil.which(peer)
        if program is None or not arguments:
            continue
        code, seconds, nbytes = _measured([program, *arguments], said, environment)
        makespan = re.search(r"Makespan:\s+(\d+)", said.read_text())
        over = CAPACITY / bound if peer == "minimalloc" else int(makespan[1]) / bound if makespan else None
        if code == 0 and over is not None:
            yield row | {"planner": peer} | _figures(over, seconds, nbytes, own_s, own_bytes)
        else:
            yield row | {"planner": peer, "cpu_s": round(seconds, 3)}


def _measured(command: Sequence[str], out: Path, environment: Mapping[str, str]) -> tuple[int, float, int]:
    """(exit code, CPU seconds, most bytes resident) of a command that writes to `out`."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, out, *command], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    code, seconds, nbytes = json.loads(done.stdout)
    return code, seconds, nbytes


def _figures(over: float, seconds: float, nbytes: int, own_s: float, own_bytes: int) -> Row:
    figures = {"over_bound": round(over, 5), "cpu_s": round(seconds, 3), "ratio": round(seconds / own_s, 2)}
    return figures | {"peak_rss_bytes": nbytes, "memory_ratio": round(nbytes / own_bytes, 2)}


def _write(records: Sequence[Record], path: Path, steps: int = 1) -> None:
    lines = (f"{i},{steps * one.start},{steps * one.stop},{one.nbytes}\n" for i, one in enumerate(records))
    path.write_text("id,lower,upper,size\n" + "".join(lines))
