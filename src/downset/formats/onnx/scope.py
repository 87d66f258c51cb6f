"""The known types and values of an `.onnx` graph while its shapes are inferred, and the type of each element of its
sequences: ONNX's inference keeps one type for all elements, and not their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from downset.formats.onnx.bodies import is_fixed
from downset.formats.onnx.values import LARGEST_ELEMENTS, Array, small

__all__ = ["Scope", "element_type", "elements_of", "is_open", "shape_of"]


def is_open(kind: Any) -> bool:
    """Whether a type is missing, is a tensor whose sizes are not all fixed, or is a sequence or optional of an open
    type."""
    form = None if kind is None else kind.WhichOneof("value")
    if form in ("sequence_type", "optional_type"):
        return is_open(getattr(kind, form).elem_type)
    if form != "tensor_type":
        return form is None
    return not kind.tensor_type.HasField("shape") or not all(map(is_fixed, kind.tensor_type.shape.dim))


def shape_of(kind: Any) -> tuple[int, ...] | None:
    """The sizes of a tensor type; None if the type is open or not a tensor."""
    if is_open(kind) or not kind.HasField("tensor_type"):
        return None
    return tuple(dim.dim_value for dim in kind.tensor_type.shape.dim)


class Scope:
    """The known types of one graph's values, the values themselves where they are small, and the elements of sequences.
    A name that the graph does not have is looked up in `outer`, the scope around a body."""

    def __init__(
        self, onnx: Any, types: Mapping[str, Any], weights: Sequence[Any] = (), outer: Scope | None = None
    ) -> None:
        self._onnx, self._types, self._outer = onnx, types, outer
        self._weights = {weight.name: weight for weight in weights}
        self._values: dict[str, Array | None] = {}
        self._elements: dict[str, Elements] = {}
        self.found: dict[str, Any] = {}
        """Types that the inference found, by name."""
        self.refused = False
        """Whether a node cannot run with the types of its inputs."""

    def type(self, name: str) -> Any:
        for types in (self.found, self._types):
            if name in types:
                return types[name]
        if name in self._weights:
            weight = self._weights[name]
            return self._onnx.helper.make_tensor_type_proto(weight.data_type, tuple(weight.dims))
        return None if self._outer is None else self._outer.type(name)

    def value(self, name: str) -> Array | None:
        if name not in self._values and name in self._weights:
            self._values[name] = small(self._onnx, self._weights[name])
        if name in self._values or name in self._types or self._outer is None:
            return self._values.get(name)
        return self._outer.value(name)

    def elements(self, name: str) -> Elements | None:
        """The elements of a sequence, where they are known."""
        if name in self._elements or name in self._types or self._outer is None:
            return self._elements.get(name)
        return self._outer.elements(name)

    def learn_elements(self, name: str, elements: Elements) -> None:
        self._elements[name] = elements

    def learn(self, name: str, kind: Any, value: Array | None) -> None:
        if kind is not None:
            self.found[name] = kind
        if value is not None and value.size <= LARGEST_ELEMENTS:
            self._values[name] = value


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
    has_position = len(node.input) > place and bool(node.input[place])
    position = _position(values[place], len(elements[0])) if has_position else None
    if has_position and position is None:
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
