"""A `.pt2` file as a program that PyTorch runs in this process, call after call.

Without trust the file stays data: arguments are numbers, words and tensors, and only operators of PyTorch's own run, of
which none opens a file. With trust PyTorch loads the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from downset.errors import LoadError, UnsupportedError
from downset.extras import torch_library
from downset.formats.torch.archive import DTYPES, STRIDED, TRUST, Archive
from downset.formats.torch.effects import OPERATORS
from downset.formats.torch.exported import given_tensors, operators_of, program_of
from downset.formats.torch.program import TorchProgram, TorchSetting, TorchValue, values_in
from downset.formats.torch.read import archive_program, trusted_program

__all__ = ["RunnableProgram", "runnable_operator", "runnable_program", "torch_dtype"]

Tensors = Mapping[str, Any]
"""PyTorch's tensors by the names of their values."""
Around = Callable[[int], AbstractContextManager[Any]]
"""The context in which a call runs, by the number of the call."""


@dataclass(frozen=True, slots=True)
class RunnableProgram:
    """A program with the operator of each call, its weights, and the strides of its inputs, by name."""

    program: TorchProgram
    operators: Sequence[Callable[..., Any]]
    weights: Tensors
    strides: Mapping[str, Sequence[int]]

    def inputs_of(self, torch: Any, arrays: Sequence[Any]) -> Tensors:
        """The inputs by name, with the strides that they have in the program. Raises ValueError for an input that is no
        tensor."""
        given = {}
        for value, array in zip(self.program.inputs, arrays, strict=True):
            if value.shape is None:
                raise ValueError(f"input {value.name!r} is not a tensor")
            dtype = torch_dtype(torch, value.dtype)
            placed = torch.empty_strided(value.shape, self.strides[value.name], dtype=dtype)
            given[value.name] = placed.copy_(torch.from_numpy(array))
        return given

    def run(self, inputs: Tensors, around: Around = lambda _: nullcontext(), *, check_types: bool = True) -> list[Any]:
        """The outputs. A value is let go after its last reader, as the module that PyTorch makes of the file does.
        Raises LoadError where a call makes another type or shape than the file says: plans and proofs rest on these
        (`check_types`)."""
        torch, tensors = torch_library(), {**self.weights, **inputs}
        unread = _unread_after(self.program)
        for number, (call, operator) in enumerate(zip(self.program.calls, self.operators, strict=True)):
            with around(number):
                result = operator(*_given(torch, call.args, tensors), **_given(torch, call.kwargs, tensors))
            results = (result,) if not call.several else result or ()  # None: a call that makes nothing
            for value, one in zip(call.results, results, strict=False):
                if check_types:
                    self._check_type(torch, value, one)
                tensors[value.name] = one
            del result, results
            for name in unread[number]:
                tensors.pop(name, None)
        return [tensors[name] for name in self.program.outputs]

    def _check_type(self, torch: Any, value: TorchValue, tensor: Any) -> None:
        if value.shape is None or not isinstance(tensor, torch.Tensor):
            return
        if (tensor.shape, tensor.dtype) != (value.shape, torch_dtype(torch, value.dtype)):
            type_and_shape = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            raise LoadError(
                f"{self.program.name}.pt2 is damaged: it says that {value.name!r} is {value.dtype} "
                f"{list(value.shape)}, and PyTorch makes {type_and_shape}; export the model again"
            )


def _unread_after(program: TorchProgram) -> list[list[str]]:
    """By call: the values that it makes or reads, and that nothing reads afterwards. Weights and inputs are the
    caller's, and stay."""
    last = {value.name: number for number, call in enumerate(program.calls) for value in call.results}
    for number, call in enumerate(program.calls):
        last.update({value.name: number for value in values_in((call.args, call.kwargs)) if value.name in last})
    unread: list[list[str]] = [[] for _ in program.calls]
    for name, number in last.items():
        if name not in program.outputs:
            unread[number].append(name)
    return unread


def _given(torch: Any, argument: Any, tensors: Tensors) -> Any:
    """The argument of a call with PyTorch's own objects in place of values and settings."""
    if isinstance(argument, Mapping):
        return {key: _given(torch, item, tensors) for key, item in argument.items()}
    if isinstance(argument, (list, tuple)):
        return [_given(torch, item, tensors) for item in argument]
    if isinstance(argument, TorchValue):
        return tensors[argument.name]
    return _setting(torch, argument) if isinstance(argument, TorchSetting) else argument


_MEMORY_FORMATS = {1: "contiguous_format", 2: "channels_last", 3: "channels_last_3d", 4: "preserve_format"}
"""By the numbers of PyTorch's schema of `.pt2` files."""


def _setting(torch: Any, setting: TorchSetting) -> Any:
    if setting.kind == "as_scalar_type" and setting.value in DTYPES:
        return torch_dtype(torch, DTYPES[setting.value])
    if setting.kind == "as_memory_format" and setting.value in _MEMORY_FORMATS:
        return getattr(torch, _MEMORY_FORMATS[setting.value])
    if setting.kind == "as_layout" and setting.value == STRIDED:
        return torch.strided
    if setting.kind == "as_device" and setting.value.get("type") == "cpu":
        return torch.device("cpu")
    raise UnsupportedError(f"an argument {setting.kind.removeprefix('as_')} {setting.value!r} is not run here; ", TRUST)


def torch_dtype(torch: Any, name: str) -> Any:
    """PyTorch's element type of that name."""
    return getattr(torch, name.replace("float8e", "float8_e").replace("e8m0", "e8m0fnu"))


def runnable_program(path: Path, *, trust: bool = False) -> RunnableProgram:
    """The program in a `.pt2` file. Raises LoadError for a damaged file, UnsupportedError for one that holds operators
    other than PyTorch's own, or arguments that are neither numbers, words nor tensors; with `trust` these run."""
    torch = torch_library("running .pt2 files")
    if trust:
        exported = trusted_program(path)
        program = program_of(exported)
        weights, strides = given_tensors(exported)
        return RunnableProgram(program, operators_of(exported), weights, strides)
    archive = Archive(path)
    program = archive_program(archive)
    operators = [runnable_operator(torch, call.target) for call in program.calls]
    weights = {
        value.name: _weight(torch, value, read(), archive.strides(value.name)) for value, read in program.constants
    }
    strides = {value.name: archive.strides(value.name) for value in program.inputs}
    return RunnableProgram(program, operators, weights, strides)


def _weight(torch: Any, value: TorchValue, array: Any, strides: Sequence[int]) -> Any:
    """The value of a weight with the strides that it has in the program, by which kernels choose what they do."""
    assert value.shape is not None
    dtype = torch_dtype(torch, value.dtype)
    flat = torch.from_numpy(array.copy())
    if flat.dtype != dtype:  # of types that numpy does not have, bfloat16 is read as float32, and others as bytes
        flat = flat.to(dtype) if value.dtype == "bfloat16" else flat.view(dtype)
    return torch.empty_strided(value.shape, strides, dtype=dtype).copy_(flat.reshape(value.shape))


def runnable_operator(torch: Any, target: str) -> Callable[..., Any]:
    """PyTorch's operator of that name, such as "aten.conv2d.default". Raises UnsupportedError for an operator of
    others, for one that runs bodies, for one whose arguments name a file, and for a private one that is not in
    PyTorch's core set."""
    space, _, rest = target.partition(".")
    if space == "higher_order":
        raise UnsupportedError(f"{target} runs bodies, which are not run here")
    name, _, overload = rest.partition(".")
    packet = getattr(torch.ops.aten, name, None) if space == "aten" and name.isidentifier() else None
    operator = getattr(packet, overload, None) if overload.isidentifier() else None
    if not isinstance(operator, torch._ops.OpOverload):
        raise UnsupportedError(f"this PyTorch ({torch.__version__}) has no operator {target}; ", TRUST)
    public = name[0] != "_" or name.startswith("_assert_") or name in OPERATORS or torch.Tag.core in operator.tags
    if not public or any(argument.name == "filename" for argument in operator._schema.arguments):
        raise UnsupportedError(f"{target} is not run from a file that is not trusted; ", TRUST)
    return operator  # type: ignore[no-any-return]
