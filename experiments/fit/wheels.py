"""Fits every real model there is and prints the table: file order, ours, bound, proven, measured before and after.

    python -m experiments.fit.wheels [--quick] [--only TEXT] [--time-limit SECONDS]

Models come from installed packages, from wheels downloaded on purpose, and from ../shared/models. `--quick` takes the
installed ones only. Rows of models that are absent are printed from the committed table, marked `recorded`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from downset import DownsetError, fit
from downset.reports.json_form import fit_json
from experiments.fit.int8_cast import cast_to_int8
from experiments.fit.models import SHAPES, Model, downloaded, installed, shared
from experiments.rows import rest_of_rows, save_rows

NAME = "fit_wheels"


def models(*, quick: bool, scratch: Path) -> list[Model]:
    found = list(installed())
    if not quick:
        found += [*downloaded(fetch=True), *shared()]
        swiftnet = next((model for model in found if model.path.name.startswith("swiftnet")), None)
        if swiftnet is not None:
            # TFLite Micro has no uint8 convolution: the int8 cast is good for arena figures, its numbers mean nothing.
            cast = scratch / "swiftnet_as_int8.tflite"
            cast_to_int8(swiftnet.path, cast)
            found.append(Model("shared", cast))
    return found


def row_of(model: Model, time_limit_s: float, scratch: Path) -> dict[str, Any]:
    """One line of the table; a model that cannot be fitted says why."""
    begin = time.perf_counter()
    output = scratch / f"fitted{model.path.suffix}"
    output.unlink(missing_ok=True)
    try:
        result = fit(model.path, output=output, shapes=SHAPES.get(model.label), time_limit_s=time_limit_s)
    except DownsetError as error:
        return {"model": model.label, "error": f"{type(error).__name__}: {error}".replace(str(model.path), model.label)}
    row = fit_json(result)
    row.update(
        model=model.label,
        output_path=None,
        operators=len(result.graph.ops),
        shipped=result.shipped,
        measured_details=None if result.measured is None else dict(result.measured.details),
        compared_in=result.outputs.runtime,
        notes=[note.replace(str(model.path), model.label) for note in (*result.notes, result.outputs.note) if note],
        seconds=round(time.perf_counter() - begin, 2),
        arena_run=_arena_run(result),
    )
    return row


def _arena_run(result: Any) -> dict[str, Any]:
    """Our own executor in exactly the planned bytes, for float models: its high-water mark, or what it lacks."""
    from downset.executor.arena import run_in_arena, seeded_inputs

    try:
        inputs = seeded_inputs(result.graph, seed=0)
        ran = run_in_arena(result.graph, result.together.order, result.together.arena, inputs)
    except DownsetError as error:
        return {"ran": False, "why": str(error)}
    return {"ran": True, "high_water_bytes": ran.high_water_bytes}


def line(row: dict[str, Any], *, recorded: bool) -> str:
    mark = " recorded" if recorded else ""
    if "error" in row:
        return f"| {row['model']}{mark} | {row['error']} |"
    peak, arena, measured = row["peak_bytes"], row["arena_bytes"], row["measured"]
    took = f"{measured['runtime']} {measured['before']:,} → {measured['after']:,}" if measured else "not measured"
    return (
        f"| {row['model']}{mark} | {row['operators']} | {peak['before']:,} → {peak['after']:,} "
        f"| {arena['before']:,} → {arena['after']:,} | {arena['bound']:,} | {'yes' if arena['proven'] else 'no'} "
        f"| {took} | {row['outputs']['equal']} | {row['shipped']} | {_ran(row['arena_run'])} |"
    )


def _ran(run: dict[str, Any]) -> str:
    return f"{run['high_water_bytes']:,}" if run["ran"] else run["why"].split(";")[0][:80]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="installed packages only, nothing written")
    parser.add_argument("--only", default="", help="only models whose label contains this")
    parser.add_argument("--time-limit", type=float, default=10.0)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(
        "| model | operators | peak before → after | arena before → after | arena bound | proven "
        "| measured | equal | shipped | our arena |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for model in models(quick=options.quick, scratch=Path(folder)):
            if options.only in model.label:
                rows.append(row_of(model, options.time_limit, Path(folder)))
                print(line(rows[-1], recorded=False), flush=True)
    for row in rest_of_rows(NAME, rows, by=["model"]):
        if options.only in row["model"]:
            print(line(row, recorded=True))
    if not options.quick:
        print("written:", save_rows(NAME, rows, by=["model"]))


if __name__ == "__main__":
    main()
