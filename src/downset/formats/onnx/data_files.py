"""The files next to an `.onnx` model that hold its weights: finding, checking, reading, linking and copying them.

A location must lie in the model's folder or below, both by its name and after links are followed. If the model's path
is a link itself, the folder of the link's target is allowed as well: caches of model hubs keep all files of a model
there.
"""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import LoadError, UsageError
from downset.formats.onnx.bodies import tensors_of
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.skeleton import left_out, save
from downset.graph.core import Graph
from downset.process.file_ranges import FileRange, file_state
from downset.process.whole_files import copy_whole
from downset.text import brief

__all__ = [
    "check_external",
    "check_room_for_weights",
    "check_stored",
    "external_files",
    "external_path",
    "link_weights",
    "model_files",
    "save_linked",
    "stored_bytes",
    "stored_range",
    "stored_value",
    "weights_beside",
    "weights_brought",
]

Named = str | os.PathLike[str]


def external_files(path: Named) -> list[str]:
    """The files that hold weights of an .onnx file, each once, as it names them: relative to its folder."""
    entries = (entry for tensor in tensors_of(read_skeleton(path)) for entry in tensor.external_data)
    return list(dict.fromkeys(entry.value for entry in entries if entry.key == "location"))


def weights_beside(graph: Graph) -> list[Path]:
    """The files with weights beside a loaded model, as paths that are valid from the current folder."""
    source = graph.source
    if source.format != "onnx":
        return []
    return [Path(source.path).parent / name for name in external_files(source.path)]


def model_files(path: Named) -> list[Path]:
    """An .onnx file and the files that hold its weights, those that exist. Raises LoadError as `external_path` does."""
    files = [Path(path), *(external_path(Path(path), location) for location in external_files(path))]
    return [file for file in files if file.exists()]


def stored_bytes(path: Named) -> int:
    """The bytes of the files of an .onnx model."""
    return sum(file.stat().st_size for file in model_files(path))


def stored_value(onnx: Any, path: Path, tensor: Any) -> npt.NDArray[Any]:
    """The value of a tensor that the model at `path` stores, inside or beside it. ONNX's own function refuses files
    with several hard links, as `link_weights` makes them. Raises LoadError where it is missing or too short."""
    stored = stored_range(path, tensor)
    try:
        if stored is not None:
            tensor = type(tensor)(
                dims=tensor.dims, data_type=tensor.data_type, name=tensor.name, raw_data=stored.read()
            )
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LoadError(f"{path}: the tensor {tensor.name!r} is damaged ({brief(error, 120)})") from None


def stored_range(path: Path, tensor: Any) -> FileRange | None:
    """The bytes of a tensor that the model at `path` stores: in that file, or in one beside it. None where the tensor
    holds them itself. Raises LoadError where the file beside it is missing or too short."""
    if tensor.data_location != tensor.EXTERNAL:
        return left_out(tensor)
    entries = {entry.key: entry.value for entry in tensor.external_data}
    numbers = {key: entries[key] for key in ("offset", "length") if key in entries}
    if not all(number.isascii() and number.isdigit() for number in numbers.values()):  # as ONNX Runtime parses them
        raise LoadError(f"{path}: the place of the weights {tensor.name!r} is not a number: {numbers}")
    location, start = entries.get("location", ""), int(numbers.get("offset", 0))
    file = external_path(path, location, tensor.name)
    try:
        state = file_state(file.stat())
    except OSError as error:
        raise LoadError(f"{path}: its weights in {location} cannot be read: {error.strerror or error}") from None
    size = state[1]
    length = int(numbers.get("length", max(size - start, 0)))
    if start + length > size:
        raise LoadError(f"{path}: the weights {tensor.name!r} end outside {location}, which has {size} bytes")
    return FileRange(str(file), start, length, state)


def check_stored(path: Path) -> None:
    """Raise LoadError, as `stored_range` does, if a file beside the model at `path` is missing, or ends before its
    weights do."""
    for tensor in tensors_of(read_skeleton(path)):
        stored_range(path, tensor)


def link_weights(path: Path, folder: Path) -> None:
    """Make the model's weights appear in another folder of this machine under the same names, for files there that
    refer to them. Raises LoadError where they cannot be read, and UsageError where the disk is full."""
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
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise UsageError(f"cannot write {link}: {error.strerror}; TMPDIR may name another folder") from None
            raise LoadError(f"{path}: its weights in {location} cannot be read: {error.strerror or error}") from None


def save_linked(model: Any, path: Path, folder: Path) -> Path:
    """Write a changed form of the model at `path` into another folder of this machine under the same name, with its
    weights (`link_weights`). Returns the path of the copy."""
    link_weights(path, folder)
    copy = folder / path.name
    save(model, copy)
    return copy


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


@contextmanager
def weights_brought(written: Path, *, source: Path, output: Path) -> Iterator[None]:
    """Copy the weights that the file `written` refers to from the folder of `source` to that of `output`, unless they
    are there. The body writes the model: where it raises, the copies are removed. Raises UsageError where they cannot
    be written."""
    copies: list[Path] = []
    try:
        for location in external_files(written):
            target = output.parent / location
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                copies.append(target)
                copy_whole(external_path(source, location), target)
        yield
    except BaseException:
        for target in copies:
            target.unlink(missing_ok=True)
        raise


def check_external(path: Path, model: Any) -> None:
    """Raise LoadError, as `external_path` does, if the data of any tensor of the model lie where they may not."""
    checked = set()
    for tensor in tensors_of(model):
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value not in checked:
                external_path(path, entry.value, tensor.name)
                checked.add(entry.value)


def external_path(path: Path, location: str, name: str = "") -> Path:
    """The path, without links, of the file that the model at `path` names by `location`; the file may be missing.
    `name` is the tensor's name, for errors. Raises LoadError if the path is outside the allowed folders, is not a plain
    file, or cannot be read."""
    if not _is_beside(location):
        raise LoadError(f"{path}: the weights {name!r} lie at {location!r}, not beside the file")
    try:
        resolved = (path.parent / location).resolve()
        inside = any(resolved.is_relative_to(folder) for folder in (path.parent.resolve(), path.resolve().parent))
        if not inside:
            raise LoadError(
                f"{path}: the weights {name!r} lie at {location!r}, a link to {resolved}, not beside the file"
            )
        if resolved.exists() and not stat.S_ISREG(resolved.stat().st_mode):
            raise LoadError(f"{path}: the weights {name!r} lie at {location!r}, which is not a plain file")
    except (OSError, ValueError, RuntimeError) as error:  # a name too long or with a null byte, a circle of links
        raise LoadError(f"{path}: the weights {name!r} lie at {location!r}, which cannot be read: {error}") from None
    return resolved


def _is_beside(location: str) -> bool:
    """Whether a location lies, by its name, in the model's folder or below, as the format demands. Links and copies of
    the weights are made under the same name."""
    parts = {*PurePosixPath(location).parts, *PureWindowsPath(location).parts}
    absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor
    return not absolute and ".." not in parts
