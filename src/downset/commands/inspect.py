"""`downset inspect`: what a model is made of, and what each operator needs while it runs."""

from __future__ import annotations

import math
import sys
from typing import Any

import rich_click as click

from downset.commands.options import (
    console,
    parse_shapes,
    print_json,
    shape_option,
    time_limit_option,
    trust_option,
    worker_memory_option,
)
from downset.graph.core import Graph
from downset.text import format_bytes, printable

__all__ = ["inspect"]

_DOWNSET_LIMIT = 100_000
"""Downsets are counted exactly up to here (about a second); beyond it the number is estimated."""
_WALKED = 100_000
"""Operators that the random walks of the estimate add in all (a second or two)."""


@click.command()
@click.argument("model", type=click.Path())
@click.option(
    "--memory", "--target", "memory", help="Memory model; default tflm for .tflite, ort for .onnx, else live."
)
@shape_option
@trust_option
@time_limit_option("For reading.", given=False)
@worker_memory_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/schemas/inspect.json).")
def inspect(model: str, memory: str | None, shapes: tuple[str, ...], trust: bool, as_json: bool) -> None:
    """Operators, tensors, width and number of downsets of MODEL, and the live bytes at each operator."""
    from downset.formats.reading import load

    graph = load(model, shapes=parse_shapes(shapes), trust=trust)
    if memory is None:
        memory = {"tflite": "tflm", "onnx": "ort", "torch": "torch"}.get(graph.source.format, "live")
    facts = _facts(graph, memory)
    if as_json:
        print_json(facts)
    else:
        _print_screen(facts, console())


def _facts(graph: Graph, memory: str) -> dict[str, Any]:
    from downset.errors import LimitReached
    from downset.lattice import count_downsets, estimate_downsets, width
    from downset.memory.liveness import order_problem, profile

    problem = order_problem(graph, memory)
    try:
        downsets, exact = count_downsets(problem.predecessors, limit=_DOWNSET_LIMIT), True
    except LimitReached:
        samples = min(max(_WALKED // max(len(graph.ops), 1), 10), 200)
        downsets, exact = estimate_downsets(problem.predecessors, samples=samples, seed=0), False
    needs = profile(problem, range(len(graph.ops)))
    activations = [tensor for tensor in graph.tensors if tensor.role == "activation"]
    constants = [tensor for tensor in graph.tensors if tensor.role == "constant"]
    return {
        "model": graph.source.path or graph.name,
        "format": graph.source.format,
        "memory": memory,
        "operators": len(graph.ops),
        "tensors": len(activations),
        "activation_bytes": sum(tensor.nbytes for tensor in activations),
        "weight_bytes": sum(tensor.nbytes for tensor in constants),
        "width": width(problem.predecessors),
        "downsets": downsets if exact else min(downsets, int(sys.float_info.max)),
        "downsets_log10": math.log10(downsets),
        "downsets_exact": exact,
        "peak_bytes": max([problem.floor_bytes, *needs]),
        "inputs": [{"name": graph.tensors[t].name, "shape": list(graph.tensors[t].shape)} for t in graph.inputs],
        "outputs": [{"name": graph.tensors[t].name, "shape": list(graph.tensors[t].shape)} for t in graph.outputs],
        "steps": [
            {"step": step, "kind": op.kind, "name": op.name, "live_bytes": live}
            for step, (op, live) in enumerate(zip(graph.ops, needs, strict=True))
        ],
    }


def _print_screen(facts: dict[str, Any], out: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    out.print(
        f"{facts['model']}: {facts['operators']} operators, {facts['tensors']} activation tensors, "
        f"weights {format_bytes(facts['weight_bytes'])} B",
        markup=False,
        soft_wrap=True,
    )
    downsets = f"{facts['downsets']:,}" if facts["downsets_exact"] else f"about 10^{facts['downsets_log10']:.0f}"
    out.print(
        f"width {facts['width']}, {downsets} downsets; peak in file order "
        f"{format_bytes(facts['peak_bytes'])} B (memory model {facts['memory']})",
        soft_wrap=True,
    )
    table = Table(box=None)
    for column in ("step", "live bytes", "", "kind", "name"):
        table.add_column(column, justify="right" if column in ("step", "live bytes") else "left", no_wrap=True)
    peak = max(facts["peak_bytes"], 1)
    for row in facts["steps"]:
        bar = "█" * round(20 * row["live_bytes"] / peak)
        mark = " ← peak" if row["live_bytes"] == facts["peak_bytes"] else ""
        room = max(out.width - 60 - len(mark), 20)
        name = printable(row["name"])
        name = name if len(name) <= room else name[: room - 1] + "…"
        cells = (str(row["step"]), format_bytes(row["live_bytes"]), bar, printable(row["kind"]), name + mark)
        table.add_row(*map(Text, cells))
    out.print(table)
