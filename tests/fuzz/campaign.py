"""Damaged files by the thousand: loaded, ordered, placed, written and read back; nothing but a DownsetError comes out.

    python -m tests.fuzz.campaign --minutes 30 [--seed 0] [--keep FOLDER]
    python -m tests.fuzz.campaign --cases 100000 --record

Prints how many cases each format had and how many still parsed. A case that fails is kept in FOLDER with what was
raised; the exit status is then 1. Cases run in child processes, so that a crash or a hang costs one of them. `--record`
writes the counts after every chunk to experiments/results/fuzz.json, so that a run that is stopped has its rows too;
what is recorded there of other first seeds stays.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from downset.arenas.plan import plan_arena
from downset.clusters.toml_file import load_cluster
from downset.distributed.simulator import simulate
from downset.errors import DownsetError
from downset.formats.plan_json import encode_plan, read_plan
from downset.formats.reading import load
from downset.formats.records_csv import read_records
from downset.formats.writing import export
from downset.orders.plan import plan_order
from downset.pipelines.check import verify_without_graph
from downset.pipelines.plan import plan_pipeline
from downset.reports.inspection import inspect
from downset.results.pipelines import Pipeline
from experiments.rows import save_rows
from tests.cluster_toml import cluster_toml
from tests.fuzz.mutators import MUTATORS
from tests.models import branchy_model, installed_model

__all__ = ["Failed", "attempt", "corpus", "cycle", "table"]

CHUNK = 250
HANG_S = 600.0
"""A chunk of cases that takes longer than this has one that hangs: it takes ten seconds or so."""
RAW = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

CLUSTER = cluster_toml({"one": {"mac_per_s": 1e9, "memory": "64MB"}, "other": 2e9}, latency_ms=1)
RECORDS = "id,lower,upper,size\na,0,3,40\nb,1,5,24\nc,3,9,80\nd,5,6,8\n"
GRAPH = {
    "name": "g",
    "tensors": [{"size": 4}, {"size": 8}, {"size": 2}, {"size": 9}],
    "ops": [{"ins": [0], "outs": [1]}, {"ins": [1], "outs": [2]}, {"ins": [1, 2], "outs": [3]}],
    "inputs": [0],
    "outputs": [3],
}


class Failed(Exception):
    """What came out was neither a result nor a DownsetError in one clean line."""


def corpus(folder: Path) -> list[Path]:
    """Small whole files of every format, written there."""
    import torch

    branchy_model(folder / "branchy.onnx")
    branchy_model(folder / "open.onnx", open_batch=True)
    (folder / "sine.tflite").write_bytes(installed_model("tflite-micro", "sine_float.tflite").read_bytes())
    (folder / "word.tflite").write_bytes(installed_model("pymicro-wakeword", "hey_jarvis.tflite").read_bytes())
    (folder / "graph.json").write_text(json.dumps(GRAPH))
    (folder / "cluster.toml").write_text(CLUSTER)
    (folder / "records.csv").write_text(RECORDS)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2)
    )
    torch.export.save(torch.export.export(network.eval(), (torch.zeros(1, 3, 8, 8),)), folder / "small.pt2")
    graph = load(folder / "branchy.onnx")
    order = plan_order(graph)
    plans = {
        "order": order,
        "arena": plan_arena(graph, order),
        "pipeline": plan_pipeline(graph, load_cluster(folder / "cluster.toml"), method="layerwise"),
    }
    for name, plan in plans.items():
        (folder / f"{name}.plan.json").write_bytes(encode_plan(plan))
    return sorted(path for path in folder.iterdir() if path.suffix in MUTATORS)


def attempt(path: Path, folder: Path, whole: Path) -> bool:
    """Use a damaged file; whether it parsed. Raises Failed for anything but a result or a DownsetError."""
    parsed = False
    try:
        if path.name.endswith(".plan.json"):
            plan = read_plan(path)
            parsed = True
            if isinstance(plan, Pipeline):
                verify_without_graph(plan)
                simulate(plan, frames=3)
        elif path.suffix == ".toml":
            cluster = load_cluster(path)
            parsed = True
            plan_pipeline(load(whole), cluster, method="single")
        elif path.suffix == ".csv":
            records = read_records(path)
            parsed = True
            plan_arena(records, method="greedy_by_size")
        else:
            graph = load(path)
            parsed = True
            inspect(graph)
            order = plan_order(graph, method="greedy", memory="live")
            arena = plan_arena(graph, order, method="greedy_by_size")
            if path.suffix != ".json":
                out = folder / f"out{path.suffix}"
                export(out, graph, order, arena if path.suffix == ".tflite" else None)
                if len(load(out).ops) != len(graph.ops):
                    raise Failed("the file that was written has other operators")
    except DownsetError as error:
        if RAW.search(str(error)):
            raise Failed(f"an error with raw characters: {str(error)!r}") from error
    except Failed:
        raise
    except Exception as error:
        raise Failed(traceback.format_exc()) from error
    left = [entry.name for entry in folder.iterdir() if entry.name.endswith(".part")]
    if left:
        raise Failed(f"left behind: {left}")
    return parsed


def case(path: Path, seed: int) -> bytes:
    """The bytes of one case: a file of the corpus and a seed."""
    return MUTATORS[path.suffix](path.read_bytes(), random.Random(f"{path.name}/{seed}"))


def cycle(files: list[Path], seeds: range, folder: Path, keep: Path | None = None) -> Counter[tuple[str, str]]:
    """Every model and plan once for each seed, other files every third time: how many cases of a format were `parsed`,
    `refused`, `failed`. They are kept where they failed, or raised where there is no folder for them."""
    counts: Counter[tuple[str, str]] = Counter()
    whole = next(path for path in files if path.name == "branchy.onnx")
    for seed in seeds:
        for path in files:
            form = "plan" if path.name.endswith(".plan.json") else path.suffix
            if form in (".toml", ".csv", ".json") and seed % 3:
                continue  # little code lies behind these
            damaged = folder / path.name
            damaged.write_bytes(case(path, seed))
            try:
                counts[form, "parsed" if attempt(damaged, folder, whole) else "refused"] += 1
            except Failed as error:
                if keep is None:
                    raise Failed(f"{path.name}, seed {seed}: {error}") from error
                counts[form, "failed"] += 1
                (keep / f"{seed}-{path.name}").write_bytes(damaged.read_bytes())
                (keep / f"{seed}-{path.name}.txt").write_text(str(error))
            for name in ("out.onnx", "out.tflite", "out.pt2"):
                (folder / name).unlink(missing_ok=True)
    return counts


def _child(first: int, count: int, whole: Path, keep: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        counts = cycle(sorted(whole.iterdir()), range(first, first + count), Path(folder), keep)
    print(json.dumps([[*key, number] for key, number in counts.items()]))


def _campaign(
    seed: int, cases: int | None, minutes: float, keep: Path, whole: Path, name: str
) -> Counter[tuple[str, str]]:
    """Chunk by chunk; the counts so far become the rows `name` where there is a name."""
    begin, counts, first = time.monotonic(), Counter[tuple[str, str]](), seed
    while sum(counts.values()) < cases if cases else time.monotonic() - begin < 60 * minutes:
        seeds = CHUNK // 10
        command = [sys.executable, "-m", "tests.fuzz.campaign", "--keep", str(keep)]
        command += ["--child", str(first), str(seeds), str(whole)]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=HANG_S)
            found = json.loads(done.stdout) if done.returncode == 0 else [["child", "failed", 1]]
            ended = f"ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            found, ended = [["child", "failed", 1]], "took too long"
        if found[0][0] == "child":
            (keep / f"{first}-child.txt").write_text(f"seeds {first} to {first + seeds - 1}: the process {ended}\n")
        for form, outcome, number in found:
            counts[form, outcome] += number
        first += seeds
        if name:
            rows = [
                {"seed": seed, "format": form, **row, "stopped_at_seed": first} for form, row in table(counts).items()
            ]
            save_rows(name, rows, by=("seed", "format"))
    return counts


def table(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """By format, and of all: cases, and how many of them parsed, were refused, failed."""
    forms = [*dict.fromkeys(form for form, _ in counts), "all"]
    outcomes = ("parsed", "refused", "failed")
    rows = {}
    for form in forms:
        numbers = {
            one: sum(number for (other, outcome), number in counts.items() if outcome == one and form in (other, "all"))
            for one in outcomes
        }
        rows[form] = {"cases": sum(numbers.values()), **numbers}
    return rows


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.keep.mkdir(parents=True, exist_ok=True)
    if arguments.child:
        first, count, whole = arguments.child
        _child(int(first), int(count), Path(whole), arguments.keep)
        return 0
    with tempfile.TemporaryDirectory() as whole:
        files = corpus(Path(whole))
        for path in set(Path(whole).iterdir()) - set(files):
            path.unlink()
        counts = _campaign(
            arguments.seed,
            arguments.cases,
            arguments.minutes,
            arguments.keep,
            Path(whole),
            "fuzz" if arguments.record else "",
        )
    print(f"{'format':<8}{'cases':>9}{'parsed':>9}{'share':>8}{'failed':>8}")
    rows = table(counts)
    for form, row in rows.items():
        share = row["parsed"] / max(row["cases"], 1)
        print(f"{form:<8}{row['cases']:>9,}{row['parsed']:>9,}{share:>8.0%}{row['failed']:>8,}")
    every = rows["all"]
    if every["failed"]:
        print(f"{every['failed']} failed: see {arguments.keep}")
    few = every["parsed"] * 3 < every["cases"]
    if few:
        print("fewer than a third still parse: the mutators break too much to reach the code behind the parsers")
    return 1 if every["failed"] or few else 0


if __name__ == "__main__":
    sys.exit(main())
