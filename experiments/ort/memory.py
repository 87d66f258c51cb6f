"""ONNX Runtime's CPU arena on real models: modelled | measured | ratio, and what the session options are worth.

    python -m experiments.ort.memory [--quick]

Each file is optimised offline (EXTENDED, fixed sizes) and measured in its own order, so nothing here is won by
reordering. `modelled`: peak of the memory model `ort`. `live`: measured when kernels end. `in use`: measured at any
time, kernel workspace included, without what is persistent. `held`: what the arena took from the system, with its
first region sized by `least_region`. `default`: the original file as a user runs it, on one thread. Models that are
not installed are printed from the committed table, marked `recorded`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from downset import DownsetError, load, order_problem, peak_bytes
from downset.runtimes import ort
from downset.sessions import DEFAULT
from experiments.fit.models import SHAPES, Model, downloaded, installed
from experiments.rows import rest_of_rows, save_rows

NAME = "ort_memory"


def row_of(model: Model, folder: Path) -> dict[str, Any]:
    shapes = SHAPES.get(model.label)
    try:
        path = folder / model.path.name
        ort.optimise_offline(model.path, path, shapes=shapes)
        graph = load(path)
        usual = ort.measure_peak(model.path, shapes=shapes, settings=DEFAULT)
        ours = ort.measure_peak(path)
        settings, narrowed = ort.least_region(path)
    except DownsetError as error:
        return {"model": model.label, "error": f"{type(error).__name__}: {error}"}
    return {
        "model": model.label,
        "operators": len(graph.ops),
        "modelled": peak_bytes(order_problem(graph, "ort"), range(len(graph.ops))),
        "live": ours.live_bytes,
        "in_use": ours.run_bytes,
        "region": settings.region_bytes,
        "held": narrowed.held_bytes - narrowed.persistent_bytes,
        "default_in_use": usual.run_bytes,
        "default_held": usual.held_bytes - usual.persistent_bytes,
        "persistent": ours.persistent_bytes,
    }


def line(row: dict[str, Any], mark: str = "") -> str:
    if "error" in row:
        return f"| {row['model']}{mark} | {row['error'][:100]} |"
    return (
        f"| {row['model']}{mark} | {row['modelled']:,} | {row['live']:,} | {row['live'] / row['modelled']:.3f} "
        f"| {row['in_use']:,} | {row['default_in_use']:,} | {row['held']:,} | {row['default_held']:,} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one model; the committed table is left alone")
    quick = parser.parse_args().quick
    models = [model for model in (*installed(), *downloaded(fetch=not quick)) if model.path.suffix == ".onnx"]
    print("| model | modelled | live | ratio | in use | default in use | held | default held |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models[: 1 if quick else None]:
            rows.append(row_of(model, Path(folder)))
            print(line(rows[-1]), flush=True)
    for row in rest_of_rows(NAME, rows, by=["model"]):
        print(line(row, " (recorded)"))
    if not quick:
        print("written:", save_rows(NAME, rows, by=["model"]))


if __name__ == "__main__":
    main()
