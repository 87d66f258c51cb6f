"""LiteRT's CPU arena on real models: modelled | measured | what kernels ask for in addition to the tensors.

    python -m experiments.tflite_memory.litert [--quick]

`modelled`: the memory model `litert` placed by `litert_greedy`, in the file's order. `measured`: from the addresses at
which LiteRT's built-in kernels find their tensors, without delegates. Nothing is run: LiteRT places tensors before.
Models that are not here are printed from the committed table, marked `recorded`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from downset import DownsetError, load, plan_arena
from downset.runtimes import litert
from experiments.fit.models import SHAPES, Model, downloaded, installed, shared
from experiments.frame import Experiment, fields, run
from experiments.rows import Row

ROUNDING = 63
"""The model rounds the topmost tensor up to 64 bytes, LiteRT does not."""


def row_of(model: Model) -> Row:
    shapes = SHAPES.get(model.label)
    try:
        graph = load(model.path, shapes=shapes)
        modelled = plan_arena(graph, range(len(graph.ops)), method="litert_greedy", memory="litert").arena_bytes
        return {"model": model.label, "modelled": modelled, "measured": litert.measure(model.path, shapes=shapes)}
    except DownsetError as error:
        return {"model": model.label, "error": f"{type(error).__name__}: {error}"}


def rows(options: Namespace) -> Iterator[Row]:
    candidates = (*shared(), *installed(), *downloaded(fetch=not options.quick))
    models = [model for model in candidates if model.path.suffix == ".tflite"]
    return map(row_of, models[: 3 if options.quick else None])


def beside(row: Row) -> str:
    more = row["measured"] - row["modelled"]
    return "as modelled" if -ROUNDING <= more <= 0 else f"{more:+,}"


EXPERIMENT = Experiment(
    "tflite_memory_litert",
    rows,
    (*fields("model"), *fields("modelled", spec=","), ("measured in LiteRT", "{measured:,}"), ("beside", beside)),
    key=("model",),
    quick="three models; the committed table is left alone",
)

if __name__ == "__main__":
    run(EXPERIMENT)
