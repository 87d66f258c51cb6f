"""Reads the record that a stream file holds of itself."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from downset.errors import LoadError
from downset.results.streams import STREAM_KEY, StreamRecord, read_stream_record

__all__ = ["record_of"]


def record_of(path: str | os.PathLike[str]) -> StreamRecord | None:
    """The record of a .onnx or .tflite file that says that it is a stream; None for any other file. Raises LoadError
    for a damaged file, and for a record that is none."""
    suffix = Path(path).suffix.lower()
    stored = {".onnx": _of_onnx, ".tflite": _of_tflite}.get(suffix)
    text = None if stored is None else stored(path)
    if text is None:
        return None
    try:
        record = read_stream_record(text)
    except LoadError as error:
        raise LoadError(f"{path}: {error.message}") from None
    if (record.form == "states") != (suffix == ".onnx"):
        raise LoadError(f"{path}: its record says that it keeps states as {record.form!r}, which {suffix} files do not")
    return record


def _of_onnx(path: str | os.PathLike[str]) -> str | None:
    from downset.formats.onnx.inference import read_skeleton

    return next((entry.value for entry in read_skeleton(path).metadata_props if entry.key == STREAM_KEY), None)


def _of_tflite(path: str | os.PathLike[str]) -> bytes | None:
    from downset.formats.tflite.flatbuffer import stored_flatbuffer

    root, data, _ = stored_flatbuffer(path)
    for index in range(root.MetadataLength()):
        entry = root.Metadata(index)
        if entry.Name() == STREAM_KEY.encode():
            if not entry.Buffer() < root.BuffersLength():
                raise LoadError(f"{path} is damaged: buffer {entry.Buffer()} does not exist")
            buffer = root.Buffers(entry.Buffer())
            outside = bytes(data[buffer.Offset() : buffer.Offset() + buffer.Size()])
            return np.asarray(buffer.DataAsNumpy(), np.uint8).tobytes() if buffer.DataLength() else outside
    return None
