"""The axes whose sizes an `.onnx` file leaves open: which they are, at which other sizes a file may be tried, and
declarations that keep them open in a file that was made from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from downset.errors import DownsetError
from downset.formats.onnx.bodies import is_fixed
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.model_file import infer, onnx_library, read_unfixed
from downset.formats.onnx.skeleton import save
from downset.results.open_axes import OpenAxis

__all__ = ["declare_as", "open_axes", "open_shapes", "other_shapes", "resized"]

Shapes = Mapping[str, tuple[int, ...]]
_STEP = 32
"""Networks that halve an image several times take multiples of this alone."""


def open_axes(path: Path, shapes: Shapes) -> list[OpenAxis]:
    """The open axes of the inputs in `shapes`. Axes with one symbol have one size; others have a size each."""
    graph = read_skeleton(path).graph
    weights = {initializer.name for initializer in graph.initializer}
    places: dict[str, list[tuple[str, int]]] = {}
    for value in graph.input:
        if value.name in weights or value.name not in shapes:
            continue
        dims = value.type.tensor_type.shape.dim
        for axis in range(len(shapes[value.name])):
            dim = dims[axis] if axis < len(dims) else None
            if dim is None or not is_fixed(dim):
                symbol = "" if dim is None else dim.dim_param
                name = symbol if symbol.isidentifier() else f"{value.name}[{axis}]"
                places.setdefault(name, []).append((value.name, axis))
    return [OpenAxis(name, tuple(axes), shapes[axes[0][0]][axes[0][1]]) for name, axes in places.items()]


def open_shapes(path: Path) -> dict[str, tuple[int | str | None, ...]]:
    """The sizes of the file's values for all sizes that its inputs leave open, by name: a number, the symbol of an open
    size, or None. Values whose number of dimensions is not known are left out; so are all where ONNX infers nothing."""
    try:
        graph = infer(onnx_library(), path, read_unfixed(path)).graph
    except DownsetError:
        return {}
    types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.input, *graph.output)}
    shapes: dict[str, tuple[int | str | None, ...]] = {weight.name: tuple(weight.dims) for weight in graph.initializer}
    for name, kind in types.items():
        if kind.HasField("shape"):
            shapes[name] = tuple(dim.dim_value if is_fixed(dim) else dim.dim_param or None for dim in kind.shape.dim)
    return shapes


def other_shapes(axes: Sequence[OpenAxis], shapes: Shapes, *, larger: bool) -> Iterator[Shapes]:
    """Shapes with smaller or larger open axes: all axes at once, then one alone. A size of 1 is never made smaller. Not
    every network takes all of them."""
    for moved in (axes, *([axis] for axis in axes if len(axes) > 1)):
        for move in range(3):
            sizes = {axis.name: _other(axis.size, move, larger=larger) for axis in moved}
            if any(sizes[axis.name] != axis.size for axis in moved):
                yield resized(moved, shapes, sizes)


def _other(size: int, move: int, *, larger: bool) -> int:
    step = _STEP if size > _STEP else max(size // 2, 1)  # a batch of 1 becomes one of 2
    if larger:
        return (size + 1, size + step, 2 * size)[move]
    return max((size - 1, size - step, size // 2)[move], 1)


def resized(axes: Sequence[OpenAxis], shapes: Shapes, sizes: Mapping[str, int]) -> Shapes:
    """The shapes with these sizes of open axes, by their names."""
    extents = {place: sizes[axis.name] for axis in axes if axis.name in sizes for place in axis.places}
    return {
        name: tuple(extents.get((name, axis), extent) for axis, extent in enumerate(shape))
        for name, shape in shapes.items()
    }


def declare_as(path: Path, original: Path) -> None:
    """Declare the inputs and outputs of the file at `path` as `original` does, where that leaves sizes of inputs open,
    and the values between them not at all: ONNX Runtime infers these, also at other sizes."""
    declared = read_skeleton(original).graph
    if all(value.type.HasField("tensor_type") and _is_fixed(value.type.tensor_type) for value in declared.input):
        return
    model = read_skeleton(path)
    values: dict[str, Any] = {value.name: value for value in (*declared.input, *declared.output)}
    for value in (*model.graph.input, *model.graph.output):
        if value.name in values:
            value.CopyFrom(values[value.name])
    del model.graph.value_info[:]
    save(model, path)


def _is_fixed(kind: Any) -> bool:
    return kind.HasField("shape") and all(map(is_fixed, kind.shape.dim))
