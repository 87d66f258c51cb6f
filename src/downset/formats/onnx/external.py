"""Weights that lie in files beside an `.onnx` file: which files may be opened.

A location is inside the model's folder by its name and after links are followed; links into the folder where the model
itself lies are followed too, for the caches of model hubs keep all files of a model there.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from downset.errors import LoadError

__all__ = ["check_external", "external_path", "tensors_of"]


def tensors_of(graph: Any) -> Iterator[Any]:
    """Every tensor that is stored in a graph and its bodies: initializers and attributes."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for sparse in [attribute.sparse_tensor, *attribute.sparse_tensors]:
                yield from (sparse.values, sparse.indices)
            for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from tensors_of(graph)


def check_external(path: Path, model: Any) -> None:
    """Raise LoadError for a tensor that lies where none may lie."""
    in_functions = (tensor for function in model.functions for tensor in _of_nodes(function.node))
    for tensor in (*tensors_of(model.graph), *in_functions):
        for entry in tensor.external_data:
            if entry.key == "location":
                external_path(path, entry.value, tensor.name)


def external_path(path: Path, location: str, name: str = "") -> Path:
    """Where the file at a location of the model at `path` really lies; it may be missing. Raises LoadError for what is
    outside, and for what is not a plain file."""
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
    except (OSError, ValueError, RuntimeError) as error:  # names that are too long, a null in them, links in a circle
        raise LoadError(f"{path}: the weights {name!r} lie at {location!r}, which cannot be read: {error}") from None
    return resolved


def _is_beside(location: str) -> bool:
    """Whether weights lie in the model's folder or below, as the format demands: files are linked and copied there."""
    parts = {*PurePosixPath(location).parts, *PureWindowsPath(location).parts}
    absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor
    return not absolute and ".." not in parts
