"""The arguments of a call of PyTorch's operator, each read by its place and its name, and as the type that it has."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from downset.formats.torch.program import TorchCall, TorchValue

__all__ = [
    "Arguments",
    "Meaning",
    "axis_of",
    "flag",
    "float_of",
    "integer",
    "integers",
    "integers_in",
    "number",
    "per_axis",
    "rank_of",
]


@dataclass(frozen=True, slots=True)
class Meaning:
    """`inputs`: values, None for one that is not given, and numbers, which ONNX's operators have as constants."""

    kind: str | tuple[str, ...]
    settings: Mapping[str, Hashable]
    inputs: tuple[Any, ...]


_Read = TypeVar("_Read")


def number(item: Any) -> Hashable:
    """The number as a setting, with its type: equal only for equal bits."""
    return ("float", struct.pack("<d", item)) if isinstance(item, float) else (type(item).__name__, item)


class Arguments:
    """The arguments of a call. PyTorch orders them by their names, so a positional one must have the name of its
    position."""

    def __init__(self, call: TorchCall) -> None:
        self.call, self._read = call, set[str]()

    def __call__(self, position: int, name: str, default: Any = None) -> Any:
        self._read.add(name)
        args = self.call.args
        if len(args) > position and self.call.names[position] != (name, 1):
            raise ValueError(name)
        return args[position] if len(args) > position else self.call.kwargs.get(name, default)

    def all_read(self, reader: Callable[[Arguments], _Read]) -> _Read:
        """The result of the reader. Raises ValueError where the call has one that it does not read."""
        result, behind = reader(self), self.call.names[len(self.call.args) :]
        named = [name for name, _ in self.call.names]
        if not self._read.issuperset(named) or len(set(named)) != len(named) or any(kind != 2 for _, kind in behind):
            raise ValueError(named)
        return result


def integer(value: Any) -> int:
    """The value; raises TypeError where it is not an integer."""
    if type(value) is not int:
        raise TypeError(value)
    return value


def axis_of(value: Any, rank: int) -> int:
    """The dimension, counted from the first; raises ValueError for one that a tensor of this rank lacks."""
    if not -rank <= integer(value) < rank:
        raise ValueError(value)
    return int(value) % rank


def flag(value: Any) -> int:
    """0 or 1 for a bool; raises TypeError for all else."""
    if type(value) is not bool:
        raise TypeError(value)
    return int(value)


def float_of(value: Any) -> Hashable:
    """A float as a setting; raises TypeError where the value is not a number."""
    if type(value) not in (int, float):
        raise TypeError(value)
    return number(float(value))


def integers_in(value: Any) -> list[int]:
    """The value; raises TypeError where it is not a list of integers."""
    if not isinstance(value, list):
        raise TypeError(value)
    return [integer(item) for item in value]


def per_axis(value: Any, rank: int) -> list[int]:
    """An integer for each of `rank` dimensions, of which one may stand for all. Raises ValueError for another count."""
    values = integers_in(value)
    values = values * rank if len(values) == 1 else values
    if len(values) != rank:
        raise ValueError(rank)
    return values


def integers(**lists: Any) -> dict[str, Hashable]:
    """Lists of integers as ONNX's attributes."""
    return {name: (7, tuple(values)) for name, values in lists.items()}


def rank_of(value: TorchValue) -> int:
    """The number of dimensions."""
    return len(value.shape or ())
