"""Plans to files. `export` picks the form by suffix; every file is written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from downset.errors import UsageError
from downset.graph.core import Graph
from downset.plans import Arena, Order

__all__ = ["export"]


def export(
    path: str | os.PathLike[str], graph: Graph, order: Order, arena: Arena | None = None, *, trust: bool = False
) -> None:
    """Write the network in its new order (.tflite with the arena's offsets inside if given, .onnx, .pt2), or the plan
    itself (.json: the arena where given, else the order; .h needs the arena). With `trust` PyTorch loads and saves .pt2
    files itself (see `load`). Raises UsageError for other suffixes."""
    suffix = Path(path).suffix.lower()
    if suffix == ".tflite":
        from downset.formats.tflite.write import export_tflite

        export_tflite(path, graph, order.steps, offsets=None if arena is None else arena.tensor_offsets)
    elif suffix == ".onnx":
        from downset.formats.onnx.write import export_onnx

        export_onnx(path, graph, order.steps)
    elif suffix == ".pt2":
        from downset.formats.torch.write import export_torch

        export_torch(path, graph, order.steps, trust=trust)
    elif suffix == ".json":
        from downset.formats.plan_json import write_plan

        write_plan(path, order if arena is None else arena)
    elif suffix == ".h" and arena is not None:
        from downset.formats.c_header import c_header
        from downset.formats.whole_files import write_whole

        write_whole(path, c_header(graph, order, arena).encode())
    else:
        raise UsageError(f"cannot export to {path}: use .tflite, .onnx, .pt2, .json, or .h with an arena")
