"""ONNX Runtime's CPU arena on real models: modelled | measured | ratio, and what the session options are worth.

    python -m experiments.ort.memory [--quick]

Each file is optimised offline (EXTENDED, fixed sizes) and measured in its own order, so nothing here is won by
reordering. `modelled`: peak of the memory model `ort`. `live`: measured when kernels end. `in use`: measured at any
time, kernel workspace included, without what is persistent. `held`: what the arena took from the system, with its
first region sized by `least_region`. `default`: the original file as a user runs it, on one thread. Models that are
not installed are printed from the committed table, marked `recorded`.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from downset import DownsetError, load, order_problem, peak_bytes
from downset.results.sessions import DEFAULT
from downset.runtimes import ort
from experiments.fit.models import SHAPES, Model, downloaded, installed
from experiments.frame import Experiment, fields, run
from experiments.rows import Row


def row_of(model: Model, folder: Path) -> Row:
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


def rows(options: Namespace) -> Iterator[Row]:
    candidates = (*installed(), *downloaded(fetch=not options.quick))
    models = [model for model in candidates if model.path.suffix == ".onnx"]
    with tempfile.TemporaryDirectory() as folder:
        for model in models[: 1 if options.quick else None]:
            yield row_of(model, Path(folder))


EXPERIMENT = Experiment(
    "ort_memory",
    rows,
    (
        *fields("model"),
        *fields("modelled", "live", spec=","),
        ("ratio", lambda row: f"{row['live'] / row['modelled']:.3f}"),
        *fields("in_use", "default_in_use", "held", "default_held", spec=","),
    ),
    key=("model",),
    quick="one model; the committed table is left alone",
)

if __name__ == "__main__":
    run(EXPERIMENT)
