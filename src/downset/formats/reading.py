"""Files to graphs, nothing else. Heavy libraries are imported when a file needs them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from downset.errors import LoadError, UsageError
from downset.graph.core import Graph

__all__ = ["check_readable", "load"]


def load(
    path: str | os.PathLike[str], *, shapes: Mapping[str, tuple[int, ...]] | None = None, trust: bool = False
) -> Graph:
    """The graph in a .onnx, .tflite, .pt2 (ExportedProgram) or plain .json file, checked.

    `shapes` fixes inputs by name where the file leaves them open. Nothing that a file brings is executed, unless
    `trust`: then PyTorch loads .pt2 files itself, which runs code that they bring. Raises LoadError (missing, damaged,
    unresolved, not a model), UsageError (shapes for a form whose sizes are fixed) or UnsupportedError (an extra is
    missing), in one line.
    """
    path = Path(path)
    suffix = check_readable(path)
    if shapes and suffix in (".json", ".pt2"):
        raise UsageError(f"{path}: the sizes in a {suffix} file are fixed; --shape is for .onnx and .tflite")
    if suffix == ".tflite":
        from downset.formats.tflite.read import load_tflite

        return load_tflite(path, shapes=shapes)
    if suffix == ".onnx":
        from downset.formats.onnx.read import load_onnx

        return load_onnx(path, shapes=shapes)
    if suffix == ".json":
        from downset.formats.plain import load_plain

        return load_plain(path)
    if suffix == ".pt2":
        from downset.formats.torch.read import load_exported

        return load_exported(path, trust=trust)
    raise LoadError(f"{path}: suffix {suffix or '(none)'} is not one of .onnx, .tflite, .pt2, .json")


def check_readable(path: Path) -> str:
    """The suffix of a file that is there, not empty, and is what its suffix says; else LoadError."""
    try:
        if not path.exists():
            raise LoadError(f"{path} does not exist")
        if path.is_dir():
            raise LoadError(f"{path} is a directory; give a model file")
        if not path.is_file():
            raise LoadError(f"{path} is a pipe or a device; give a model file")
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from None
    if not head:
        raise LoadError(f"{path} is empty")
    suffix = path.suffix.lower()
    if (head[4:8] == b"TFL3") != (suffix == ".tflite"):
        really = "is" if head[4:8] == b"TFL3" else "is not"
        raise LoadError(f"{path} {really} a TFLite model by its content, but its suffix is {suffix or 'missing'}")
    return suffix
