"""Merged networks as .onnx files in ONNX Runtime: what the merges of the paper, and ours beyond them, gain for a
runtime without streams.

    python -m experiments.ios.merged [--quick] [--networks A,B] [--models FOLDER] [--only TEXT]

Measured on this machine's CPU by `downset stage --export`'s own function, with one thread and with two: processor time
and latency of each candidate against the original, in turns, in processes of their own; the best one again in fresh
processes. `--models` adds the .onnx files below a folder, such as those of `experiments.field`. A file that is slower
by more than 1.02x in any measure that counts is not written; the rows hold its times all the same. The paper has no
figure for a merged network alone on a CPU (its IOS-Merge, Figure 6, is of a V100).
"""

from __future__ import annotations

import platform
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx

from downset import DownsetError, export_merged, open_device
from downset.formats.reading import open_sizes
from downset.results.merged import LIMIT, FileTimes, MergedNetwork, worst
from experiments.field.bench import SIZES
from experiments.frame import Experiment, names_of, run
from experiments.rows import Row
from zoo import ZOO

RUNS, QUICK_RUNS = 15, 3


def row_of(name: str, path: Path, runs: int) -> Row:
    dims = {one.name: size_of(path.name, one.name) for one in open_sizes(path).missing}
    row: Row = {"network": name, "device": open_device("cpu").name, "dims": dims}
    try:
        result = export_merged(path, path.parent / "merged.out.onnx", dims=dims, runs=runs)
    except DownsetError as error:
        return {**row, "error": error.message}
    return row | measured(result)


def measured(result: MergedNetwork) -> Row:
    candidates = [
        {
            "name": one.name,
            "merges": one.merges,
            "operators": one.operators,
            "finite": one.proof.finite,
            "ratio": one.ratio,
            "worst": one.worst_ratio,
            "times": [plain(times) for times in one.times],
        }
        for one in result.candidates
    ]
    return {
        "operators": result.operators,
        "candidates": candidates,
        "chosen": result.chosen,
        "why": result.why,
        "ratio": result.ratio,
        "worst": worst(result.times),
        "times": [plain(times) for times in result.times],
        "notes": [str(note) for note in result.notes],
        "versions": dict(result.versions),
        "machine": platform.machine(),
    }


def plain(times: FileTimes) -> dict[str, Any]:
    return {
        "threads": times.threads,
        "cpu": times.cpu_ratio if times.cpu_counts else None,
        "latency": times.latency_ratio if times.latency_counts else None,
        "rounds": len(times.cpu_s),
    }


def size_of(file: str, axis: str) -> int:
    """The size at which the package that brings a file runs it; 64 where that is not known."""
    sizes = next((sizes for label, sizes in SIZES.items() if label.endswith(f": {file}")), {})
    return sizes.get(axis, 64)


def rows(options: Namespace) -> Iterator[Row]:
    runs = QUICK_RUNS if options.quick else RUNS
    with tempfile.TemporaryDirectory() as folder:
        for name in ["squeezenet", "randwire_cifar10"] if options.quick else options.networks:
            path = Path(folder) / f"{name}.onnx"
            onnx.save(ZOO[name](), str(path))
            yield row_of(name, path, runs)
            path.unlink()
        for model in sorted(Path(options.models).rglob("*.onnx")) if options.models and not options.quick else ():
            if options.only in str(model):
                path = Path(folder) / model.name
                path.symlink_to(model)
                yield row_of(model.name, path, runs)
                path.unlink()


def best(row: Row) -> Row | None:
    """The chosen candidate, else the one that was fastest in the search."""
    named = [one for one in row.get("candidates", ()) if one["name"] == row["chosen"]]
    return min(named or row.get("candidates", ()), key=lambda one: one["ratio"], default=None)


def times_of(row: Row) -> list[dict[str, Any]]:
    """The times of the best candidate: in fresh rounds where there were any."""
    candidate = best(row)
    return row["times"] or (candidate["times"] if candidate else [])


def told(row: Row, threads: int, measure: str) -> str | None:
    value = next((times[measure] for times in times_of(row) if times["threads"] == threads), None)
    return None if value is None else f"{value:.3f}"


def outcome(row: Row) -> str:
    """The gain of the file that is written, or why there is none."""
    if "error" in row:
        return "not run"
    if not row["candidates"]:
        return "nothing to merge"
    return f"{1 / row['ratio']:.2f}x" if row["chosen"] else "nothing to gain"


def said(rows: Sequence[Row]) -> None:
    slower = [row["network"] for row in rows if row.get("chosen") and row["worst"] > LIMIT]
    print(
        f"\nfiles that were taken and are slower than {LIMIT}x in a measure that counts: {', '.join(slower) or 'none'}"
    )


COLUMNS = (
    ("network", "{network}"),
    ("best candidate", lambda row: best(row)["name"] if best(row) else None),
    ("merges", lambda row: str(best(row)["merges"]) if best(row) else None),
    ("operators", lambda row: f"{row['operators']} → {best(row)['operators']}" if best(row) else None),
    ("processor time, 1 thread", lambda row: told(row, 1, "cpu")),
    ("latency, 1 thread", lambda row: told(row, 1, "latency")),
    ("processor time, 2 threads", lambda row: told(row, 2, "cpu")),
    ("latency, 2 threads", lambda row: told(row, 2, "latency")),
    ("file", outcome),
)

EXPERIMENT = Experiment(
    "ios_merged",
    rows,
    COLUMNS,
    key=("network", "device"),
    quick="SqueezeNet and a small RandWire in few rounds; nothing is written",
    options={
        "--networks": {"type": lambda text: names_of(ZOO)(text) if text else [], "default": list(ZOO)},
        "--models": {"help": "a folder with further .onnx files"},
        "--only": {"default": "", "help": "only those of these whose path has this text"},
    },
    after=said,
)

if __name__ == "__main__":
    run(EXPERIMENT)
