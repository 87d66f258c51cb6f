"""An exported program as plain data, the form into which both `.pt2` archives and PyTorch's own objects are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

__all__ = ["TorchCall", "TorchProgram", "TorchSetting", "TorchValue", "values_in"]


@dataclass(frozen=True, slots=True)
class TorchValue:
    """A value of a program, identified by its name. `shape` is None if the value is not a tensor."""

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str = "opaque"


@dataclass(frozen=True, slots=True)
class TorchSetting:
    """An argument that is an object of PyTorch's, such as an element type or a device, as the file states it. `kind`:
    the name of its form in the file."""

    kind: str
    value: Any


@dataclass(frozen=True, slots=True)
class TorchCall:
    """One call of an operator. `target` is PyTorch's name of the operator, such as "aten.conv2d.default". The arguments
    are numbers, strings, None, TorchValues, TorchSettings (or PyTorch's own objects), and lists and mappings of these.
    `several`: whether the call returns a list or tuple, even one of length 1. `names`: the name of each argument in the
    order of the file, and whether it is positional (1) or given by its name (2); none for PyTorch's own objects."""

    name: str
    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[TorchValue, ...]
    several: bool = False
    names: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class TorchProgram:
    """The inputs that a user gives, the constants with functions that read them, the calls in the order in which they
    run, and the names of the outputs."""

    name: str
    inputs: Sequence[TorchValue]
    constants: Sequence[tuple[TorchValue, Callable[[], npt.NDArray[Any]]]]
    calls: Sequence[TorchCall]
    outputs: Sequence[str]


def values_in(argument: Any) -> list[TorchValue]:
    """The TorchValues in nested arguments, in order."""
    if isinstance(argument, Mapping):
        argument = list(argument.values())
    if isinstance(argument, (list, tuple)):
        return [value for item in argument for value in values_in(item)]
    return [argument] if isinstance(argument, TorchValue) else []
