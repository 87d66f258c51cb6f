"""The files next to an `.onnx` model that hold its weights: finding, reading, linking and copying them."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import LoadError, UsageError
from downset.formats.onnx.external import external_path, tensors_of
from downset.graph.core import Graph
from downset.process.whole_files import copy_whole
from downset.text import brief

__all__ = [
    "bring_weights",
    "check_room_for_weights",
    "external_files",
    "link_weights",
    "stored_value",
    "weights_beside",
]

Named = str | os.PathLike[str]


def external_files(path: Named) -> list[str]:
    """The files that hold weights of an .onnx file, each once, as it names them: relative to its folder."""
    import onnx

    model = onnx.load(os.fspath(path), load_external_data=False)
    return list(dict.fromkeys(external_locations(model)))


def external_locations(model: Any) -> Iterator[str]:
    """The files of the weights of a model that lie outside the model file."""
    for tensor in tensors_of(model):
        yield from (entry.value for entry in tensor.external_data if entry.key == "location")


def weights_beside(graph: Graph) -> list[Path]:
    """The files with weights beside a loaded model, as paths that are valid from the current folder."""
    source = graph.source
    if source.format != "onnx":
        return []
    return [Path(source.path).parent / name for name in external_files(source.path)]


def stored_value(onnx: Any, path: Path, tensor: Any) -> npt.NDArray[Any]:
    """The value of a tensor that the model at `path` stores, inside or beside it. ONNX's own function refuses files
    with several hard links, as `link_weights` makes them. Raises LoadError where it is missing or too short."""
    try:
        if tensor.data_location == tensor.EXTERNAL:
            held = type(tensor)(dims=tensor.dims, data_type=tensor.data_type, name=tensor.name)
            held.raw_data = _bytes_beside(path, tensor)
            tensor = held
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LoadError(f"{path}: the tensor {tensor.name!r} is damaged ({brief(error, 120)})") from None


def _bytes_beside(path: Path, tensor: Any) -> bytes:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    numbers = {key: entries[key] for key in ("offset", "length") if key in entries}
    if not all(number.isascii() and number.isdigit() for number in numbers.values()):  # as ONNX Runtime parses them
        raise LoadError(f"{path}: the place of the weights {tensor.name!r} is not a number: {numbers}")
    location, start = entries.get("location", ""), int(numbers.get("offset", 0))
    file = external_path(path, location, tensor.name)
    try:
        size = file.stat().st_size
        length = int(numbers.get("length", max(size - start, 0)))
        if start + length > size:
            raise LoadError(f"{path}: the weights {tensor.name!r} end outside {location}, which has {size} bytes")
        with file.open("rb") as opened:
            opened.seek(start)
            return opened.read(length)
    except OSError as error:
        raise LoadError(f"{path}: its weights in {location} cannot be read: {error.strerror or error}") from None


def link_weights(path: Path, folder: Path) -> None:
    """Make the model's weights appear in another folder of this machine under the same names, for files there that
    refer to them. Raises LoadError where they cannot be read."""
    for location in external_files(path):
        original, link = external_path(path, location), folder / location
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            if link.exists() and link.samefile(original):
                continue
            try:
                os.link(original, link)
            except OSError:
                shutil.copyfile(original, link)
        except OSError as error:
            raise LoadError(f"{path}: its weights in {location} cannot be read: {error.strerror or error}") from None


def check_room_for_weights(path: Path, output: Path) -> None:
    """Raise UsageError where a different file already has the name of weights to be copied next to `output`."""
    for location in external_files(path):
        original, target = external_path(path, location), output.parent / location
        if not (target.exists() and original.exists()) or target.samefile(original):
            continue
        if not target.is_file() or not filecmp.cmp(original, target, shallow=False):
            raise UsageError(
                f"the weights of {path} would lie at {target}, which holds something else; choose another folder"
            )


def bring_weights(written: Path, *, source: Path, output: Path) -> None:
    """Copy the weights that the file `written` refers to from the folder of `source` to that of `output`, unless they
    are there. Raises UsageError where they cannot be written."""
    for location in external_files(written):
        target = output.parent / location
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_whole(external_path(source, location), target)
