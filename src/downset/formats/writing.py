"""Writes plans to files. `export` chooses the format by suffix; every file is written whole or not at all. A writer is
imported for a file that it writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from downset.errors import UsageError
from downset.graph.core import Graph
from downset.memory.models import memory_model
from downset.process.file_ranges import check_state
from downset.process.whole_files import write_whole
from downset.results.plans import Arena, Order
from downset.text import check_path

__all__ = ["WRITERS", "FileWriter", "export"]

Named = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class FileWriter:
    """Writes files of one suffix: `write(path, graph, order, arena)`. The arena may be None unless `needs_arena`.

    The other fields say what the format can hold: `rewritten` networks, `offsets` of
    tensors (if an arena is given), and weights in other files (`weights_outside`)."""

    write: Callable[[Named, Graph, Order, Arena | None], None]
    needs_arena: bool = False
    rewritten: bool = False
    offsets: bool = False
    weights_outside: bool = False


def _check_source(graph: Graph) -> None:
    """Raise LoadError where the file that is copied with another order is not the one that was planned."""
    if graph.source.state is not None:
        check_state(graph.source.path, graph.source.state)


def _write_tflite(path: Named, graph: Graph, order: Order, arena: Arena | None) -> None:
    from downset.formats.tflite.write import export_tflite

    _check_source(graph)
    export_tflite(
        path,
        graph,
        order.steps,
        offsets=None if arena is None else arena.tensor_offsets,
        kernels="" if arena is None else memory_model(arena.memory).kernels or "",
    )


def _write_onnx(path: Named, graph: Graph, order: Order, arena: Arena | None) -> None:
    from downset.formats.onnx.write import export_onnx

    del arena  # ONNX Runtime places tensors itself
    _check_source(graph)
    export_onnx(path, graph, order.steps)


def _write_torch(path: Named, graph: Graph, order: Order, arena: Arena | None) -> None:
    from downset.formats.torch.write import export_torch

    del arena  # PyTorch places tensors itself
    _check_source(graph)
    export_torch(path, graph, order.steps)


def _write_plan(path: Named, graph: Graph, order: Order, arena: Arena | None) -> None:
    from downset.formats.plan_json import write_plan

    del graph
    write_plan(path, order if arena is None else arena)


def _write_header(path: Named, graph: Graph, order: Order, arena: Arena | None) -> None:
    from downset.formats.c_header import c_header

    assert arena is not None
    write_whole(path, c_header(graph, order, arena).encode())


WRITERS: Mapping[str, FileWriter] = {
    ".tflite": FileWriter(_write_tflite, rewritten=True, offsets=True),
    ".onnx": FileWriter(_write_onnx, rewritten=True, weights_outside=True),
    ".pt2": FileWriter(_write_torch),
    ".json": FileWriter(_write_plan),
    ".h": FileWriter(_write_header, needs_arena=True),
}
"""The writers, by suffix in small letters."""


def export(path: str | os.PathLike[str], graph: Graph, order: Order, arena: Arena | None = None) -> None:
    """Write the network in its new order (.tflite with the arena's offsets inside if given, .onnx, .pt2), or the plan
    itself (.json: the arena where given, else the order; .h needs the arena). Raises UsageError for other suffixes, and
    LoadError where a model that is to be copied has changed since it was read."""
    check_path(path)
    writer = WRITERS.get(Path(path).suffix.lower())
    if writer is None or (writer.needs_arena and arena is None):
        names = [f"{suffix} with an arena" if writer.needs_arena else suffix for suffix, writer in WRITERS.items()]
        raise UsageError(f"cannot export to {path}: use {', '.join(names[:-1])}, or {names[-1]}")
    writer.write(path, graph, order, arena)
