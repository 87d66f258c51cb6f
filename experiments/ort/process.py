"""Growth of the process that opens a model in ONNX Runtime: by default, with the best options that are set by hand, and
as `fit` writes it.

python -m experiments.ort.process [--quick] [--folder FOLDER] [--models NAME,...]

FOLDER holds unpacked packages that ship models (nudenet, ddddocr, magika, rapidocr-onnxruntime); a model that is not
there is left out. `encoder` is written here, with random weights. Every figure is measured again, by a script that
imports nothing of downset, in processes of three kinds that take turns: peak and anonymous part, and processor time
of a run, in medians of `ROUNDS` processes with the least and the most.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from downset.errors import DownsetError
from downset.fitting.fit import fit
from downset.results.sessions import DEFAULT, SessionSettings
from downset.runtimes.feeds import made_feeds
from experiments.frame import Experiment, names_of, run
from experiments.ort.alone import figures_of, in_turns
from experiments.ort.transformer import write_encoder
from experiments.rows import Row

Shapes = Mapping[str, tuple[int, ...]]

MODELS: Mapping[str, tuple[str, Shapes]] = {
    "nudenet": ("nudenet/nudenet/320n.onnx", {"images": (1, 3, 320, 320)}),
    "ddddocr_det": ("ddddocr/ddddocr/common_det.onnx", {}),
    "ddddocr": ("ddddocr/ddddocr/common.onnx", {"input1": (1, 1, 64, 160)}),
    "magika": ("magika/magika/models/standard_v3_3/model.onnx", {"bytes": (1, 2048)}),
    "ocr_det": ("rapidocr_onnxruntime/rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 320, 320)}),
    "ocr_rec": ("rapidocr_onnxruntime/rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    "ocr_cls": (
        "rapidocr_onnxruntime/rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x": (1, 3, 48, 192)},
    ),
    "encoder": ("", {"tokens": (1, 128)}),
}
"""By name: the file, and the sizes of its inputs."""
QUICK = ("ocr_cls", "nudenet")
ROUNDS, QUICK_ROUNDS = 5, 3


def rows(options: Namespace) -> Iterator[Row]:
    names = options.models or (QUICK if options.quick else tuple(MODELS))
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            file, shapes = MODELS[name]
            path = Path(options.folder) / file if file else Path(scratch) / "encoder.onnx"
            if not file:
                write_encoder(path)
            if path.is_file():
                yield _row(name, path, shapes, Path(scratch), QUICK_ROUNDS if options.quick else ROUNDS)


def _row(name: str, path: Path, shapes: Shapes, scratch: Path, rounds: int) -> Row:
    output, begin = scratch / f"{name}_fitted.onnx", time.perf_counter()
    try:
        result = fit(path, output=output, shapes=shapes, time_limit_s=5)
    except DownsetError as error:
        return {"model": name, "error": f"{type(error).__name__}: {error}".replace(str(path), name)}
    took_s = time.perf_counter() - begin
    by_hand = DEFAULT if result.process is None else result.process.by_hand.settings
    kinds: dict[str, tuple[Path, SessionSettings]] = {
        "default": (path, DEFAULT),
        "by hand": (path, by_hand),
        "fitted": (output, result.session or DEFAULT),
    }
    inputs = scratch / f"{name}.npz"
    np.savez(inputs, **made_feeds(result.graph, seed=0)[0])  # type: ignore[arg-type]
    readings = in_turns(kinds, inputs, rounds)
    row: Row = {"model": name, "fit_s": took_s, "shipped": result.shipped, "rounds": rounds}
    row |= {"settings": "" if result.session is None else result.session.name, "by_hand": by_hand.name}
    row["equal"] = len({one.outputs for kind in ("default", "fitted") for one in readings[kind]}) == 1
    row["disk"] = sum(file.stat().st_size for file in scratch.glob(f"{output.name}*")) / path.stat().st_size
    for kind, each in readings.items():
        row |= figures_of(kind, each, readings["default"])
    return row


def _memory(kind: str) -> Any:
    def cell(row: Row) -> str:
        peak, anonymous = (row[f"{kind}_{part}_bytes"] / (1 << 20) for part in ("peak", "anonymous"))
        return f"{peak:.1f} ({anonymous:.1f})"

    return cell


def _cpu(kind: str) -> Any:
    def cell(row: Row) -> str:
        middle, low, high = (1000 * row[f"{kind}_{part}_s"] for part in ("cpu", "low", "high"))
        return f"{middle:.2f} ({low:.2f} to {high:.2f})"

    return cell


EXPERIMENT = Experiment(
    "ort_process",
    rows,
    (
        ("model", "{model}"),
        ("default MB (anonymous)", _memory("default")),
        ("CPU ms", _cpu("default")),
        ("by hand MB", _memory("by_hand")),
        ("CPU ms", _cpu("by_hand")),
        ("options by hand", "{by_hand}"),
        ("fitted MB", _memory("fitted")),
        ("CPU ms", _cpu("fitted")),
        ("shipped", "{shipped}, {settings}"),
        ("equal", "{equal}"),
        ("bytes on disk", "{disk:.2f}x"),
        ("fit s", "{fit_s:.0f}"),
    ),
    key=("model",),
    quick="two models, three rounds, nothing written",
    options={
        "--folder": {"default": "/tmp/field/models", "help": "where the packages are unpacked"},
        "--models": {"type": names_of(MODELS), "help": "some of the models, with commas between them"},
    },
)

if __name__ == "__main__":
    run(EXPERIMENT)
