"""Whether two files take the same inputs, which is asked before both are run on them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from downset.formats.onnx.bodies import is_fixed
from downset.formats.onnx.model_file import onnx_library, read_unfixed
from downset.graph.core import Graph

__all__ = ["inputs_difference"]


@dataclass(frozen=True, slots=True)
class _Input:
    """`sizes`: None for an open one. `shape` is None where the file does not state the number of axes."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return self.dtype
        return f"{self.dtype}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"

    def takes(self, other: _Input) -> bool:
        """Whether both may be given the same array."""
        if self.dtype != other.dtype or self.shape is None or other.shape is None:
            return self.dtype == other.dtype
        return len(self.shape) == len(other.shape) and all(
            None in (one, size) or one == size for one, size in zip(self.shape, other.shape, strict=True)
        )


def inputs_difference(first: str | os.PathLike[str], second: str | os.PathLike[str], graphs: Sequence[Graph]) -> str:
    """How the inputs of two files differ, so that no array could be given to both; "" where they do not. A size that an
    .onnx file leaves open may be any number. `graphs`: the networks of the files with the sizes that are run.

    Inputs correspond by their names in .onnx files, whose second may have fewer, and by position in other files."""
    if Path(first).suffix.lower() != ".onnx":
        ours, theirs = ([_of_graph(graph, tensor) for tensor in graph.inputs] for graph in graphs)
        if len(ours) != len(theirs):
            return f"the first takes {len(ours)} inputs, the second {len(theirs)}"
        pairs = list(zip(ours, theirs, strict=True))
    else:
        named, others = ({item.name: item for item in _of_onnx(path)} for path in (first, second))
        unknown = next((name for name in others if name not in named), None)
        if unknown is not None:
            listed = ", ".join(map(repr, named)) or "none"
            return f"the second takes an input {unknown!r}, which the first does not have; its inputs are {listed}"
        pairs = [(named[name], item) for name, item in others.items()]
    one, other = next(((one, other) for one, other in pairs if not one.takes(other)), (None, None))
    return "" if one is None else f"the input {one.name!r} is {one} in the first, {other} in the second"


def _of_graph(graph: Graph, tensor: int) -> _Input:
    meta = graph.tensors[tensor]
    return _Input(meta.name, meta.dtype, meta.shape)


def _of_onnx(path: str | os.PathLike[str]) -> list[_Input]:
    """The inputs of a file that are tensors without a default value, as it states them."""
    onnx = onnx_library()
    graph = read_unfixed(Path(path)).graph
    weights = {weight.name for weight in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))}
    inputs = []
    for value in graph.input:
        if value.name in weights or not value.type.HasField("tensor_type"):
            continue
        kind = value.type.tensor_type
        sizes = tuple(dim.dim_value if is_fixed(dim) else None for dim in kind.shape.dim)
        called = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
        dtype = {"float": "float32", "double": "float64"}.get(called, called)
        inputs.append(_Input(value.name, dtype, sizes if kind.HasField("shape") else None))
    return inputs
