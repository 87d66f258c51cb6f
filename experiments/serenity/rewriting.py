"""The gain of rewriting where networks run: bytes as the runtime measures them, before and after.

    python -m experiments.serenity.rewriting [--quick]

`default`: the file as a user runs it. `file order`: for ONNX Runtime its own optimised form in its own order, with the
session options that hold nothing longer than needed. `order`: the best order and placement. `+ rewriting`: what
`downset fit` ships. ONNX Runtime: the most in use in its CPU arena, persistent copies of weights included. TFLite
Micro: head and tail of its arena. `difference`: the largest between the outputs of the shipped and the original file
on the same inputs, and the largest output. Zoo networks have seeded weights; SwiftNet HPD's cells are those of the
real file with its weights as floats (TFLite Micro runs no uint8 convolutions). Models that are not there are printed
from the committed table, marked `recorded`.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import onnx

from downset import Fit, Graph, fit
from downset.memory.models import memory_model
from downset.memory.records import align_up
from downset.reports.peak import peak_cause
from downset.rewrites.concat.partition import partition_sites
from experiments.frame import Experiment, fields, run
from experiments.rows import Row
from experiments.serenity.float_copy import write_float_copy, write_part
from experiments.serenity.swiftnet import CELLS, MODEL
from zoo import ZOO

NASNET = MODEL.with_name("nasnet_mobile_keras_rand_int8.tflite")
ZOO_NAMES = (
    "swiftnet_hpd",
    "swiftnet_cell_a",
    "swiftnet_cell_b",
    "swiftnet_cell_c",
    "densenet121",
    "squeezenet1_0",
    "darts",
    "darts_cell",
)


def _zoo(name: str) -> Callable[[Path], Path | None]:
    def make(folder: Path) -> Path:
        path = folder / f"{name}.onnx"
        onnx.save(ZOO[name](), str(path))
        return path

    return make


def _cell(name: str) -> Callable[[Path], Path | None]:
    def make(folder: Path) -> Path | None:
        if not MODEL.exists():
            return None
        first, last = CELLS[name]
        write_float_copy(MODEL, folder / "float.tflite")
        write_part(folder / "float.tflite", folder / f"cell_{name}.tflite", range(first, last + 1))
        return folder / f"cell_{name}.tflite"

    return make


def _whole(folder: Path) -> Path | None:
    if not MODEL.exists():
        return None
    write_float_copy(MODEL, folder / "swiftnet.tflite")
    return folder / "swiftnet.tflite"


def _nasnet(_folder: Path) -> Path | None:
    return NASNET if NASNET.exists() else None


MODELS: Mapping[str, Callable[[Path], Path | None]] = {
    **{f"zoo {name} (.onnx)": _zoo(name) for name in ZOO_NAMES},
    **{f"SwiftNet HPD cell {name} (float .tflite)": _cell(name) for name in CELLS},
    "SwiftNet HPD (float .tflite)": _whole,
    "NASNet mobile (int8 .tflite)": _nasnet,
}


def row_of(label: str, path: Path, time_limit_s: float) -> Row:
    result = fit(path, time_limit_s=time_limit_s)
    assert result.measured is not None, result.notes
    parts = {name: parts for name, parts in result.measured.details.items() if ", " not in name}  # as files are written
    details = {name: taken.get("in_use_bytes", taken["total_bytes"]) for name, taken in parts.items()}
    plain = min(taken for name, taken in details.items() if not name.startswith("rewritten"))
    rewritten = [taken for name, taken in details.items() if name.startswith("rewritten")]
    return {
        "model": label,
        "runtime": result.target,
        "default": details["original"],
        "file_order": details.get("optimised", details["original"]),
        "order": plain,
        "rewritten": min(rewritten) if result.rewrites else None,
        "rewrites": len(result.rewrites),
        "operators": len(result.graph.ops),
        "difference": result.outputs.max_abs_error,
        "largest": result.outputs.largest,
        "why": "" if result.rewrites else _why_not(result),
    }


def _why_not(result: Fit) -> str:
    sites = len(partition_sites(result.graph))
    if not sites:
        return "no concatenation can be taken apart"
    reason = next((note for note in result.notes if "rewriting would" in note or "not rewritten" in note), None)
    if reason is not None:
        return reason
    alone = _largest_alone(result.graph, result.target)
    if alone is not None and alone[1] >= result.peak.after:
        return f"operator {alone[0]} alone needs the peak, and reads no concatenation"
    cause = peak_cause(result.graph, result.together.order.steps, result.target)
    assert cause is not None
    op = result.graph.ops[cause.operator]
    return f"{sites} concatenations, none of them alive at the peak: {op.kind.split('::')[-1]} {op.name}"


def _largest_alone(graph: Graph, target: str) -> tuple[str, int] | None:
    """The operator whose inputs and results take most, among those that read no concatenation's result."""
    model = memory_model(target)
    joined = {tensor for op in graph.ops if op.kind == "Concat" for tensor in op.outputs}
    needs = []
    for op in graph.ops:
        held = {tensor for tensor in (*op.inputs, *op.outputs) if tensor >= 0} - (
            set(graph.inputs) if model.inputs == "not counted" else set()
        )
        in_place = (
            op.kind in model.in_place
            or op.kind in model.views
            or len(op.inputs) > model.in_place_input.get(op.kind, 99)
        )
        if not in_place and op.kind != "Concat" and not joined & held:
            sizes = [graph.tensors[tensor].nbytes for tensor in held if graph.tensors[tensor].role == "activation"]
            needs.append((op.name, sum(align_up(size, model.alignment) for size in sizes)))
    return max(needs, key=lambda item: item[1], default=None)


def rows(options: Namespace) -> Iterator[Row]:
    names = [name for name in MODELS if "cell" in name][:3] if options.quick else list(MODELS)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = MODELS[name](Path(folder))
            if path is not None:
                yield row_of(name, path, 10.0 if options.quick else 30.0)


EXPERIMENT = Experiment(
    "serenity_rewriting",
    rows,
    (
        *fields("model", "runtime"),
        *fields("default", "file_order", "order", spec=","),
        ("+ rewriting", "{rewritten:,}"),
        ("ratio", lambda row: f"{row['order'] / row['rewritten']:.3f}" if row["rewritten"] else None),
        *fields("rewrites"),
        ("difference", lambda row: f"{row['difference']:.1e} of {row['largest']:.2g}" if row["difference"] else "0"),
        ("why not", "{why}"),
    ),
    key=("model",),
    quick="three small models; the committed table is left alone",
)

if __name__ == "__main__":
    run(EXPERIMENT)
