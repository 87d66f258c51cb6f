"""`.pt2` -> Graph. A file is read as data (see `archive`), and only with `trust` by PyTorch itself."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt

from downset.errors import LoadError
from downset.extras import torch_library
from downset.formats.torch.archive import Archive, ArchiveNode
from downset.formats.torch.effects import earlier_calls, overwritten
from downset.formats.torch.exported import program_of
from downset.formats.torch.kinds import adds_first, translated
from downset.formats.torch.program import TorchCall, TorchProgram, TorchSetting, TorchValue, values_in
from downset.graph.core import Graph, Op, Role, Source, Tensor, tensor_bytes
from downset.text import brief

__all__ = ["archive_program", "load_exported", "trusted_program"]

_DAMAGE = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)
_LARGEST = 1 << 48


def load_exported(program: Any, *, trust: bool = False) -> Graph:
    """An ExportedProgram, or the `.pt2` file of one, as a graph with fixed shapes.

    Parameters and buffers are constants, read when they are needed. Code in a file never runs, except with `trust`:
    PyTorch then loads the file, which needs the extra `torch`. Raises LoadError for damaged files, for symbolic shapes,
    and for files that can only be read with `trust`.
    """
    if not isinstance(program, (str, os.PathLike)):
        return _graph(program_of(program), "")
    path = Path(program)
    if trust:
        return _graph(program_of(trusted_program(path)), str(path), trusted=True)
    try:
        return _graph(archive_program(Archive(path)), str(path))
    except (*_DAMAGE, RecursionError) as error:
        raise LoadError(f"{path} is not an exported program or is damaged ({type(error).__name__}: {error})") from None


def trusted_program(path: Path) -> Any:
    """The ExportedProgram that PyTorch makes of a file; code that the file brings runs in this process."""
    torch = torch_library("reading .pt2 files with trust")
    if not zipfile.is_zipfile(path):  # torch would log a traceback before it says so
        raise LoadError(f"{path} is not an exported program or is damaged (no zip archive)")
    try:
        return torch.export.load(path)
    except Exception as error:  # unpickling a damaged archive can raise anything
        raise LoadError(f"{path} is not an exported program or is damaged ({brief(error, 120)})") from None


def archive_program(archive: Archive) -> TorchProgram:
    """The program in an archive."""
    reader = _Names(archive)
    inputs: list[TorchValue] = []
    constants: list[tuple[TorchValue, Callable[[], npt.NDArray[Any]]]] = []
    for spec in archive.input_specs:
        ((kind, content),) = spec.items()
        weight = next((content[key] for key in _HELD if key in content), None)
        if weight is not None:
            value = reader.made(content["arg"]["name"])
            constants.append((value, archive.weight(weight, archive.tensor(value.name))))
        else:
            name = content["name"] if kind == "constant_input" else _name_of(content["arg"])
            inputs.append(reader.made(name))
    calls = [_call(node, position, reader) for position, node in enumerate(archive.graph.nodes)]
    outputs = [value.name for item in archive.graph.outputs for value in values_in(reader.argument(item))]
    return TorchProgram(archive.path.stem, inputs, constants, calls, outputs)


_HELD = ("parameter_name", "buffer_name", "tensor_constant_name")


def _name_of(argument: Any) -> str:
    """The name of an input: a tensor, token or object, wrapped in its type or not."""
    if "name" not in argument:
        (argument,) = argument.values()
    return str(argument["name"])


def _call(node: ArchiveNode, position: int, reader: _Names) -> TorchCall:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in node.inputs:
        value = reader.argument(argument.arg)
        if argument.kind == 1 and not kwargs:
            args.append(value)
        else:
            kwargs[argument.name] = value
    several = len(node.outputs) != 1 or "as_tensors" in node.outputs[0]
    results = [reader.made(name) for output in node.outputs for name in _result_names(output, node, position)]
    names = tuple((argument.name, argument.kind) for argument in node.inputs)
    name = node.name or (results[0].name if results and not several else f"call_{position}")
    return TorchCall(name, node.target.removeprefix("torch.ops."), tuple(args), kwargs, tuple(results), several, names)


def _result_names(output: dict[str, Any], node: ArchiveNode, position: int) -> list[str]:
    ((kind, content),) = output.items()
    if kind == "as_tensors":
        return [str(item["name"]) for item in content]
    if kind in ("as_tensor", "as_custom_obj"):
        return [str(content["name"])]
    if kind.startswith("as_sym"):
        raise LoadError(f"operator {node.name or position!r} makes a symbolic number; export with fixed sizes")
    return [f"{node.name or position} {kind}"]  # None, for example


class _Names:
    """Values by name, as the program makes them."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._values: dict[str, TorchValue] = {}

    def made(self, name: str) -> TorchValue:
        if name in self._values:
            raise LoadError(f"{self._archive.path}: the name {name!r} is given to two values")
        meta = self._archive.tensor(name)
        self._values[name] = value = TorchValue(name) if meta is None else TorchValue(name, meta.shape, meta.dtype)
        return value

    def argument(self, argument: Any) -> Any:
        """An argument as plain data."""
        ((kind, content),) = argument.items()
        if kind in ("as_tensor", "as_custom_obj"):
            return self._read(content["name"])
        if kind in ("as_tensors", "as_nested_tensors"):
            return self._tensors(content)
        if kind == "as_optional_tensor":
            return self.argument(content)
        if kind == "as_optional_tensors":
            return [self.argument(item) for item in content]
        if kind == "as_string_to_argument":
            return {key: self.argument(item) for key, item in content.items()}
        if kind.startswith("as_sym"):
            return self._numbers(content)
        if kind == "as_float":
            return float(content)
        plain = ("as_int", "as_ints", "as_floats", "as_string", "as_strings", "as_bool", "as_bools", "as_int_lists")
        if kind in plain:
            return content
        return None if kind == "as_none" else TorchSetting(kind, content)

    def _read(self, name: str) -> TorchValue:
        if name not in self._values:
            raise LoadError(f"{self._archive.path}: {name!r} is read, and nothing before makes it")
        return self._values[name]

    def _tensors(self, content: Any) -> list[Any]:
        return [self._tensors(item) if isinstance(item, list) else self._read(item["name"]) for item in content]

    def _numbers(self, content: Any) -> Any:
        """Numbers from the file's form of them. Raises LoadError for a symbolic number."""
        if isinstance(content, list):
            return [self._numbers(item) for item in content]
        ((kind, number),) = content.items()
        if kind not in ("as_int", "as_float", "as_bool"):
            raise LoadError(f"{self._archive.path}: the number {number!r} is symbolic; export with fixed sizes")
        return number


def _graph(program: TorchProgram, path: str, *, trusted: bool = False) -> Graph:
    tensors: list[Tensor] = []
    number: dict[str, int] = {}

    def add(value: TorchValue, role: Role = "activation", name: str = "") -> int:
        name = name or value.name
        shape, nbytes = value.shape or (), 0
        if value.shape is not None:
            nbytes = tensor_bytes(shape, value.dtype)
        if nbytes >= _LARGEST:
            raise LoadError(f"{path}: tensor {name!r} of shape {list(shape)} is impossibly large")
        number[value.name] = len(tensors)
        tensors.append(Tensor(name, shape, value.dtype, nbytes, role))
        return number[value.name]

    constants = {add(value, "constant"): read for value, read in program.constants}
    inputs = tuple(add(value) for value in program.inputs)
    ops: list[Op] = []
    made_by: dict[int, int] = {}
    needs: list[int] = []  # by operator: those from which its inputs follow, as bits
    for call, after in zip(program.calls, earlier_calls(program.calls), strict=True):
        outputs = tuple(
            add(value, name=f"{call.name}.{position}" if call.several else "")
            for position, value in enumerate(call.results)
        )
        read = tuple(number[value.name] for value in values_in((call.args, call.kwargs)))
        kind, attrs = translated(call)
        if adds_first(call.target, kind):
            read = (*read[1:], read[0])
        needed = 0
        for maker in {made_by[tensor] for tensor in read if tensor in made_by}:
            needed |= needs[maker] | 1 << maker
        needs.append(needed)
        made_by |= dict.fromkeys(outputs, len(ops))
        ops.append(Op(call.name, kind, read, outputs, attrs, tuple(one for one in after if not needed >> one & 1)))
        written = overwritten(call)
        if written is not None:  # who reads it later, by any of its names, reads the result
            before = number[written.name]
            number |= {name: outputs[0] for name, tensor in number.items() if tensor == before}
    outputs = tuple(number[name] for name in program.outputs)
    source = Source("torch", path, tuple(range(len(ops))), (-1,) * len(tensors), trusted=trusted)
    name = Path(path).stem or program.name
    return Graph(name, tuple(tensors), tuple(ops), inputs, outputs, constants, source).check()
