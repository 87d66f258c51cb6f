"""The type of each element of a sequence. ONNX's inference keeps one type for all elements, and not their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from downset.formats.onnx.values import Array

__all__ = ["Elements", "element_type", "elements_of"]

Elements = tuple[Any, ...]
"""The type of each element of a sequence, in order."""


def elements_of(
    node: Any, types: Sequence[Any], elements: Sequence[Elements | None], values: Sequence[Array | None]
) -> Elements | None:
    """The elements of the sequence that a node makes, from the types, elements and values of its inputs. None if they
    are not known or the node makes no sequence."""
    if node.op_type == "SequenceEmpty":
        return ()
    if node.op_type == "SequenceConstruct":
        return tuple(types)
    if not elements or elements[0] is None:
        return None
    if node.op_type == "Identity":
        return elements[0]
    place = 2 if node.op_type == "SequenceInsert" else 1
    given = len(node.input) > place and bool(node.input[place])
    position = _position(values[place], len(elements[0])) if given else None
    if given and position is None:
        return None
    if node.op_type == "SequenceInsert":
        where = len(elements[0]) if position is None else position
        return (*elements[0][:where], types[1], *elements[0][where:])
    if node.op_type == "SequenceErase" and elements[0]:
        where = len(elements[0]) - 1 if position is None else position
        return (*elements[0][:where], *elements[0][where + 1 :])
    return None


def element_type(node: Any, elements: Elements, position: Array | None) -> Any:
    """The type of the element that a SequenceAt takes, or of the tensor that a ConcatFromSequence joins. None if it is
    not known, and for other operators."""
    if node.op_type == "SequenceAt":
        where = _position(position, len(elements))
        return None if where is None or where >= len(elements) else elements[where]
    if node.op_type != "ConcatFromSequence" or not elements:
        return None
    if not all(item is not None and item.tensor_type.HasField("shape") for item in elements):
        return None
    settings = {item.name: item.i for item in node.attribute}
    joined = type(elements[0])()
    joined.CopyFrom(elements[0])
    dims, new = joined.tensor_type.shape.dim, bool(settings.get("new_axis"))
    rank, axis = len(dims) + new, settings.get("axis", 0)
    if not -rank <= axis < rank or any(len(item.tensor_type.shape.dim) != len(dims) for item in elements):
        return None
    axis %= rank
    sizes = [[dim.dim_value for dim in item.tensor_type.shape.dim] for item in elements]
    extent = len(elements) if new else sum(shape[axis] for shape in sizes)
    left = sizes[0]
    del dims[:]
    for size in (*left[:axis], extent, *left[axis if new else axis + 1 :]):
        dims.add().dim_value = size
    return joined


def _position(value: Array | None, count: int) -> int | None:
    """A position in a sequence of `count` elements, where a negative value counts from the end. None if the value is
    not known, is not one number, or lies outside."""
    if value is None or value.size != 1 or not -count <= int(value.reshape(-1)[0]) <= count:
        return None
    number = int(value.reshape(-1)[0])
    return number + count if number < 0 else number
