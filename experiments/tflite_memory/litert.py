"""LiteRT's CPU arena on real models: modelled | measured | what kernels ask for beside the tensors.

    python -m experiments.tflite_memory.litert [--quick]

`modelled`: the memory model `litert` placed by `litert_greedy`, in the file's order. `measured`: from the addresses at
which LiteRT's built-in kernels find their tensors, without delegates. Nothing is run: LiteRT places tensors before.
Models that are not here are printed from the committed table, marked `recorded`.
"""

from __future__ import annotations

import argparse
from typing import Any

from downset import DownsetError, load, plan_arena
from downset.runtimes import litert
from experiments.fit.models import SHAPES, Model, downloaded, installed, shared
from experiments.rows import rest_of_rows, save_rows

NAME = "tflite_memory_litert"
ROUNDING = 63
"""The model rounds the topmost tensor up to 64 bytes, LiteRT does not."""


def row_of(model: Model) -> dict[str, Any]:
    shapes = SHAPES.get(model.label)
    try:
        graph = load(model.path, shapes=shapes)
        modelled = plan_arena(graph, range(len(graph.ops)), method="litert_greedy", memory="litert").arena_bytes
        return {"model": model.label, "modelled": modelled, "measured": litert.measure(model.path, shapes=shapes)}
    except DownsetError as error:
        return {"model": model.label, "error": f"{type(error).__name__}: {error}"}


def line(row: dict[str, Any], mark: str = "") -> str:
    if "error" in row:
        return f"| {row['model']}{mark} | {row['error'][:100]} | | |"
    beside = row["measured"] - row["modelled"]
    said = "as modelled" if -ROUNDING <= beside <= 0 else f"{beside:+,}"
    return f"| {row['model']}{mark} | {row['modelled']:,} | {row['measured']:,} | {said} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three models; the committed table is left alone")
    quick = parser.parse_args().quick
    found = (*shared(), *installed(), *downloaded(fetch=not quick))
    models = [model for model in found if model.path.suffix == ".tflite"]
    print("| model | modelled | measured in LiteRT | beside |")
    print("|---|---|---|---|")
    rows = []
    for model in models[: 3 if quick else None]:
        rows.append(row_of(model))
        print(line(rows[-1]), flush=True)
    for row in rest_of_rows(NAME, rows, by=["model"]):
        print(line(row, " (recorded)"))
    if not quick:
        print("written:", save_rows(NAME, rows, by=["model"]))


if __name__ == "__main__":
    main()
