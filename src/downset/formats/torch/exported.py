"""Translation of a `torch.export.ExportedProgram`, an object of PyTorch's in this process, into a TorchProgram."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import LoadError
from downset.extras import torch_library
from downset.formats.torch.program import TorchCall, TorchProgram, TorchValue, values_in
from downset.text import brief

__all__ = ["given_tensors", "operators_of", "program_of", "reloaded", "reordered", "saved"]


def saved(program: Any, path: Path) -> Path:
    """The path of the `.pt2` file that PyTorch writes of the program. Raises LoadError where it cannot."""
    torch = torch_library("fitting exported programs")
    try:
        torch.export.save(program, path)
    except Exception as error:  # PyTorch's writer can raise anything
        raise LoadError(f"PyTorch cannot save the exported program ({brief(error, 120)})") from None
    return path


def reloaded(path: Path) -> Any:
    """The ExportedProgram of a file that was written here from a program of this process."""
    return torch_library("fitting exported programs").export.load(path)


_DTYPES = {"float8_e4m3fn": "float8e4m3fn", "float8_e5m2": "float8e5m2"}


def program_of(program: Any) -> TorchProgram:
    """The program as data, with a function for each constant that reads it. Raises LoadError for symbolic shapes."""
    held, fx = _held(program), program.graph
    values: dict[Any, TorchValue] = {}
    inputs, constants = [], []
    for node in fx.nodes:
        if node.op == "placeholder":
            values[node] = value = _value(node.name, node.meta.get("val"))
            if node.name in held:
                constants.append((value, _reader(program, held[node.name])))
            else:
                inputs.append(value)
    calls = [_call(node, values) for node in _call_nodes(fx)]
    (output,) = (node for node in fx.nodes if node.op == "output")
    outputs = [item.name for item in values_in(_plain(output.args, values))]
    return TorchProgram(type(program).__name__, inputs, constants, calls, outputs)


def _call(node: Any, values: dict[Any, TorchValue]) -> TorchCall:
    """A node as a TorchCall. If it returns several values, each is named after the getitem node that picks it, or after
    the call and its position if none does."""
    result = node.meta.get("val")
    args, kwargs = _plain(node.args, values), _plain(node.kwargs, values)
    several = isinstance(result, (list, tuple))
    if result is None and not node.users:
        return TorchCall(node.name, str(node.target), tuple(args), kwargs, ())
    if not several:
        values[node] = _value(node.name, result)
        return TorchCall(node.name, str(node.target), tuple(args), kwargs, (values[node],))
    picked = {user.args[1]: user for user in node.users if _is_getitem(user)}
    results = []
    for position, item in enumerate(result):
        key = picked.get(position)
        results.append(_value(f"{node.name}.{position}" if key is None else key.name, item))
        if key is not None:
            values[key] = results[-1]
    return TorchCall(node.name, str(node.target), tuple(args), kwargs, tuple(results), several=True)


def _value(name: str, value: Any) -> TorchValue:
    if not hasattr(value, "shape"):
        return TorchValue(name)
    if not all(isinstance(extent, int) for extent in value.shape):
        raise LoadError(f"{name!r} has the symbolic shape {tuple(value.shape)}; export with fixed sizes")
    dtype = str(value.dtype).removeprefix("torch.")
    return TorchValue(name, tuple(int(extent) for extent in value.shape), _DTYPES.get(dtype, dtype))


def _plain(argument: Any, values: Mapping[Any, TorchValue]) -> Any:
    """Arguments with TorchValues in place of nodes, and None in place of nodes that are not values, such as the bodies
    of control flow."""
    if isinstance(argument, Mapping):
        return {key: _plain(item, values) for key, item in argument.items()}
    if isinstance(argument, (list, tuple)):
        return [_plain(item, values) for item in argument]
    return values.get(argument) if hasattr(argument, "users") else argument


def _reader(program: Any, name: str) -> Callable[[], npt.NDArray[Any]]:
    def read() -> npt.NDArray[Any]:
        value = _held_tensor(program, name)
        return np.asarray((value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy())

    return read


def operators_of(program: Any) -> list[Callable[..., Any]]:
    """The operator of each call of the program."""
    return [node.target for node in _call_nodes(program.graph)]


def given_tensors(program: Any) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """(the weights of the program, the strides of its inputs), by the names of their values."""
    held, weights, strides = _held(program), {}, {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in held:
            weights[node.name] = _held_tensor(program, held[node.name])
        elif node.op == "placeholder" and hasattr(node.meta.get("val"), "stride"):
            strides[node.name] = list(node.meta["val"].stride())
    return weights, strides


def _held(program: Any) -> dict[str, str]:
    """By the name of a value: the name of the parameter, buffer or constant that it is."""
    signature = program.graph_signature
    lifted = signature.inputs_to_lifted_tensor_constants
    return {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **lifted}


def _held_tensor(program: Any, name: str) -> Any:
    value = program.state_dict.get(name)
    return (program.constants[name] if value is None else value).detach().cpu()


def _call_nodes(graph: Any) -> list[Any]:
    """The nodes that become operators of the graph: all calls but the getitems, which only pick one of several results
    of another call."""
    return [node for node in graph.nodes if node.op == "call_function" and not _is_getitem(node)]


def _is_getitem(node: Any) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def reordered(program: Any, steps: Sequence[int]) -> Any:
    """A copy of the program with its calls in the order `steps`, and each getitem right after its call. Raises
    LoadError if `steps` does not have each call once, and PyTorch's RuntimeError if a call would run before one that it
    reads."""
    program = copy.deepcopy(program)
    fx = program.graph
    calls = _call_nodes(fx)
    if sorted(steps) != list(range(len(calls))):
        raise LoadError(f"{len(steps)} steps for a program of {len(calls)} operators")
    (output,) = (node for node in fx.nodes if node.op == "output")
    for step in steps:
        node = calls[step]
        output.prepend(node)
        for user in sorted((user for user in node.users if _is_getitem(user)), key=lambda item: item.args[1]):
            output.prepend(user)
    fx.lint()
    program.graph_module.recompile()
    return program
