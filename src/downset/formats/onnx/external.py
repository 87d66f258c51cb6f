"""Weights that lie in files next to an `.onnx` file, and the check of which files may be opened.

A location must lie in the model's folder or below, both by its name and after links are followed. If the model's path
is a link itself, the folder of the link's target is allowed as well: caches of model hubs keep all files of a model
there.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from downset.errors import LoadError

__all__ = ["check_external", "external_path", "tensors_of"]


def tensors_of(model: Any) -> Iterator[Any]:
    """Every tensor that is stored in a model: in its graph, its functions, and the graphs and functions inside, as an
    initializer or an attribute."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_attributes(function.attribute_proto)
        yield from _of_nodes(function.node)
    for training in model.training_info:
        yield from _of_graph(training.initialization)
        yield from _of_graph(training.algorithm)


def _of_graph(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield from _of_attributes(node.attribute)


def _of_attributes(attributes: Any) -> Iterator[Any]:
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for sparse in [attribute.sparse_tensor, *attribute.sparse_tensors]:
            yield from (sparse.values, sparse.indices)
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            yield from _of_graph(graph)


def check_external(path: Path, model: Any) -> None:
    """Raise LoadError, as `external_path` does, if the data of any tensor of the model lie where they may not."""
    for tensor in tensors_of(model):
        for entry in tensor.external_data:
            if entry.key == "location":
                external_path(path, entry.value, tensor.name)


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
