"""Merged networks as .onnx files in ONNX Runtime: what the merges of the paper, and ours beyond them, gain for a
runtime without streams.

    python -m experiments.ios.merged [--quick] [--networks A,B] [--field] [--fetch] [--only TEXT]

Measured on this machine's CPU by `downset stage --export`'s own function, with one thread and with two: processor time
and latency of each candidate against the original, in turns, in processes of their own; the best one again in fresh
processes. `--field` takes the files of `experiments.field` in place of the networks. A file that is slower by more than
1.02x in any measure that counts is not written; the rows hold its times all the same. The paper has no
figure for a merged network alone on a CPU (its IOS-Merge, Figure 6, is of a V100).
"""

from __future__ import annotations

import platform
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from downset import DownsetError, export_merged, open_device
from downset.formats.reading import open_sizes
from downset.results.merged import LIMIT, FileTimes, MergedNetwork, worst
from experiments.field.bench import SIZES, file_of, models
from experiments.frame import Experiment, names_of, run
from experiments.rows import Row
from zoo import ZOO

RUNS, QUICK_RUNS = 15, 3


def row_of(name: str, path: Path, sizes: Mapping[str, int], runs: int) -> Row:
    """The row of a file; an axis that is open and has no size in `sizes` is 64."""
    row: Row = {"network": name, "device": open_device("cpu").name}
    try:
        row["dims"] = dims = {one.name: sizes.get(one.name, 64) for one in open_sizes(path).missing}
        with tempfile.TemporaryDirectory() as folder:
            result = export_merged(path, Path(folder) / "merged.onnx", dims=dims, runs=runs)
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


def rows(options: Namespace) -> Iterator[Row]:
    runs = QUICK_RUNS if options.quick else RUNS
    if options.field and not options.quick:
        for model in models(fetch=options.fetch):
            if options.only in model.label:
                yield row_of(file_of(model), model.path, SIZES.get(model.label, {}), runs)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in ["squeezenet", "randwire_cifar10"] if options.quick else options.networks:
            path = Path(folder) / f"{name}.onnx"
            onnx.save(ZOO[name](), str(path))
            yield row_of(name, path, {}, runs)
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
        "--networks": {"type": names_of(ZOO), "default": list(ZOO)},
        "--field": {"action": "store_true", "help": "the files of experiments.field in place of the networks"},
        "--fetch": {"action": "store_true", "help": "download the packages of those files that are missing"},
        "--only": {"default": "", "help": "only those of these files whose name has this text"},
    },
    after=said,
)

if __name__ == "__main__":
    run(EXPERIMENT)
