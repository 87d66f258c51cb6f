"""Networks computed in strips in TFLite Micro: head, tail and total, extra arithmetic and size of the file.

    python -m experiments.partial.micro [--quick]

Each row is a file that TFLite Micro ran (*measured*; outputs equal to the original's bit for bit, in LiteRT too, and
proven). The plans are named here: segments [first, stop) of the file's operators, in so many strips that keep all rows,
with windows padded or, where strips would need a padded copy of their largest tensor, run with SAME. The tail is that
of the 64-bit host; beside it stands the estimate for a Cortex-M (`runtimes.tflm.on_cortex_m`). Models come from
../shared/models; without that folder the recorded rows are printed.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from downset import load, plan_arena
from downset.equivalence.prove import prove
from downset.formats.writing import WRITERS
from downset.graph.cost import macs, row_form
from downset.orders.plan import plan_order
from downset.partial.rewrite import InStrips, in_strips
from downset.rewrites.tflite_form import tflite_form, writable_rows
from downset.runtimes import litert, tflm
from experiments.frame import Column, Experiment, fields, run
from experiments.rows import Row

MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"
NETWORKS = {
    "MobileNet v2 1.0 224": "mobilenet_v2_1.0_224_rand_int8",
    "MobileNet v2 0.35 160": "mobilenet_v2_0.35_160_rand_int8",
    "vww_96": "vww_96_int8",
}
PLANS: Mapping[str, Sequence[tuple[InStrips, tuple[int, ...]]]] = {
    "MobileNet v2 1.0 224": [
        (InStrips(0, 13, 14, even=True), ()),
        (InStrips(0, 13, 10), (4,)),
        (InStrips(0, 13, 14, even=True), (4,)),
        (InStrips(0, 13, 28, even=True), (4,)),
    ],
    "MobileNet v2 0.35 160": [
        (InStrips(0, 13, 5, even=True), (4,)),
        (InStrips(0, 13, 7), (4,)),
        (InStrips(0, 13, 10, even=True), (4,)),
    ],
    "vww_96": [(InStrips(2, 4, 2), ()), (InStrips(2, 4, 2), (3,))],
}
"""The segment, and its windows that run with SAME."""


def measured(path: Path, original: tflm.Measurement, outputs: Sequence[np.ndarray], source: Path) -> Row:
    taken, graph = tflm.measure(path), load(path)
    same = all(np.array_equal(*pair) for pair in zip(taken.outputs, original.outputs, strict=True))
    alike = all(np.array_equal(*pair) for pair in zip(litert.run(path), outputs, strict=True))
    return {
        "head_bytes": taken.head_bytes,
        "tail_bytes": taken.tail_bytes,
        "cortex_m_tail_bytes": tflm.on_cortex_m(taken.tail_bytes, len(graph.ops), len(graph.tensors)),
        "total_bytes": taken.total_bytes,
        "file_bytes": path.stat().st_size,
        "file_growth_bytes": path.stat().st_size - source.stat().st_size,
        "equal": same and alike and prove(source, path).proven,
    }


def rows_of(name: str, path: Path, folder: Path) -> Iterator[Row]:
    graph = load(path)
    reference = tflm.measure(path), litert.run(path)
    order = plan_order(graph, memory="tflm")
    arena = plan_arena(graph, order)
    WRITERS[".tflite"].write(folder / "order.tflite", graph, order, arena)
    base = {"network": name}
    as_is = measured(folder / "order.tflite", *reference, path)
    yield {**base, "plan": "order and offsets", "operators": len(graph.ops), "extra_macs": 0.0, **as_is}
    for part, same in PLANS[name]:
        form = writable_rows(graph, row_form(graph, halos_required=False), cut_off=same)
        striped = tflite_form(in_strips(graph, [part], form=form))
        steps = plan_order(striped, method="file", memory="tflm")
        file = folder / "strips.tflite"
        WRITERS[".tflite"].write(file, striped, steps, plan_arena(striped, steps, time_limit_s=5.0))
        plan = (
            f"{part.first}-{part.stop} in {part.strips}{', even' * part.even}{f', SAME at {same[0]}' if same else ''}"
        )
        more = round(macs(striped) / macs(graph) - 1, 5)
        yield {
            **base,
            "plan": plan,
            "operators": len(striped.ops),
            "extra_macs": more,
            **measured(file, *reference, path),
        }


def rows(options: Namespace) -> Iterator[Row]:
    for name, file in NETWORKS.items():
        path = MODELS / f"{file}.tflite"
        if path.exists() and not (options.quick and name != "vww_96"):
            with tempfile.TemporaryDirectory() as folder:
                yield from rows_of(name, path, Path(folder))


COLUMNS: tuple[Column, ...] = (
    *fields("network", "plan", "operators"),
    ("extra MACs", "{extra_macs:.2%}"),
    ("head B", "{head_bytes:,}"),
    ("tail B", "{tail_bytes:,}"),
    ("on Cortex-M, estimated", "{cortex_m_tail_bytes:,}"),
    ("total B", "{total_bytes:,}"),
    ("file B more", "{file_growth_bytes:,}"),
    ("equal", "{equal}"),
)
EXPERIMENT = Experiment(
    "partial_micro",
    rows,
    COLUMNS,
    key=("network", "plan"),
    quick="vww_96 alone, nothing written",
)

if __name__ == "__main__":
    run(EXPERIMENT)
