"""Writes a stream to a file of the format of its window."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from downset.formats.certificates import (
    METADATA_KEY,
    Certificate,
    packed_certificate,
    read_certificate,
    write_certificate,
)
from downset.graph.core import Graph
from downset.graph.parts import Part, part_of_part
from downset.process.whole_files import write_whole
from downset.results.streams import StreamRecord

__all__ = ["carry_certificate", "write_stream"]


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


def carry_certificate(stream: str | os.PathLike[str], fitted: str | os.PathLike[str]) -> None:
    """Let the certificate of a fitted stream say which parts of the window's tensors its tensors hold, in place of
    parts of the stream's. `stream`: the file that was fitted, whose certificate speaks of the window."""
    if Path(stream) == Path(fitted):
        return
    if Path(fitted).suffix.lower() == ".onnx":
        _carry_onnx(stream, fitted)
        return
    from downset.formats.tflite.flatbuffer import read_flatbuffer

    before, file = read_flatbuffer(stream), read_flatbuffer(fitted)
    names = {(tensor.name or b"").decode(errors="replace") for tensor in file.model.subgraphs[0].tensors}
    parts = _composed(before.metadata(METADATA_KEY), file.metadata(METADATA_KEY), names)
    entry = next((one for one in file.model.metadata or () if one.name in (METADATA_KEY, METADATA_KEY.encode())), None)
    if parts and entry is not None:
        entry.buffer = file.add_buffer(packed_certificate(parts))
        write_whole(fitted, file.packed(), source=Path(stream))


def _carry_onnx(stream: str | os.PathLike[str], fitted: str | os.PathLike[str]) -> None:
    from downset.formats.onnx.inference import read_skeleton
    from downset.formats.onnx.skeleton import streamed

    before, model = read_skeleton(stream), read_skeleton(fitted)
    said = [next((one for one in each.metadata_props if one.key == METADATA_KEY), None) for each in (before, model)]
    names = {name for node in model.graph.node for name in node.output} | {one.name for one in model.graph.input}
    before_parts, after_parts = (None if one is None else one.value.encode() for one in said)
    parts = _composed(before_parts, after_parts, names)
    if parts:
        entry = said[1] or model.metadata_props.add(key=METADATA_KEY)
        entry.value = write_certificate(parts).decode()
        write_whole(fitted, streamed(model), source=Path(stream))


def _composed(before: bytes | None, after: bytes | None, names: Collection[str]) -> dict[str, Part]:
    """The parts of the window's tensors that tensors of these names hold."""
    old, new = (Certificate(1, {}) if data is None else read_certificate(data) for data in (before, after))
    kept = {name: part for name, part in old.parts.items() if name in names}
    if after == before:
        return kept
    return kept | {name: part_of_part(old.parts.get(part.of), part) for name, part in new.parts.items()}
