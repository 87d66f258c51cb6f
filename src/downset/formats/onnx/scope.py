"""The known types and values of an `.onnx` graph while its shapes are inferred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from downset.formats.onnx.bodies import is_fixed
from downset.formats.onnx.sequences import Elements
from downset.formats.onnx.values import LARGEST_ELEMENTS, Array, small

__all__ = ["Scope", "is_open", "shape_of"]


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
