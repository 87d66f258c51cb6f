"""Writes a stream to a file of the format of its window."""

from __future__ import annotations

import os

from downset.graph.core import Graph
from downset.results.streams import StreamRecord

__all__ = ["write_stream"]


def write_stream(path: str | os.PathLike[str], graph: Graph, record: StreamRecord) -> None:
    """Write one call of a stream, which was made of a network from an .onnx or .tflite file (for the latter in
    `tflite_form`), in the order of its operators. Raises UnsupportedError as the formats' writers do."""
    steps = tuple(range(len(graph.ops)))
    if graph.source.format == "onnx":
        from downset.formats.onnx.write import export_onnx

        export_onnx(path, graph, steps, record=record)
    else:
        from downset.formats.tflite.write import export_tflite

        export_tflite(path, graph, steps, record=record)
