"""An exported program as plain data: what is read from a `.pt2` archive and from PyTorch's own objects alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

__all__ = ["TorchCall", "TorchProgram", "TorchValue", "values_in"]


@dataclass(frozen=True, slots=True)
class TorchValue:
    """A value of a program, known by its name. `shape` is None where it is not a tensor."""

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str = "opaque"


@dataclass(frozen=True, slots=True)
class TorchCall:
    """One operator. `target` is PyTorch's name of it ("aten.conv2d.default"); the arguments are numbers, strings,
    None, Values, and lists and mappings of these. `several`: it returns a list or tuple, even one of length 1."""

    name: str
    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[TorchValue, ...]
    several: bool = False


@dataclass(frozen=True, slots=True)
class TorchProgram:
    """Inputs of the user, constants with what reads them, calls in the order they run, and outputs by name."""

    name: str
    inputs: Sequence[TorchValue]
    constants: Sequence[tuple[TorchValue, Callable[[], npt.NDArray[Any]]]]
    calls: Sequence[TorchCall]
    outputs: Sequence[str]


def values_in(argument: Any) -> list[TorchValue]:
    """The values in nested arguments, in order."""
    if isinstance(argument, Mapping):
        argument = list(argument.values())
    if isinstance(argument, (list, tuple)):
        return [value for item in argument for value in values_in(item)]
    return [argument] if isinstance(argument, TorchValue) else []
