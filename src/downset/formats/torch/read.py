"""`torch.export.ExportedProgram` -> Graph. Common operators get ONNX's words, the others stay `aten::NAME`, opaque."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from downset.errors import LoadError
from downset.extras import torch_library
from downset.graph.core import Graph, Op, Role, Source, Tensor, tensor_bytes
from downset.text import brief

__all__ = ["call_nodes", "load_exported"]

_DTYPES = {"float8_e4m3fn": "float8e4m3fn", "float8_e5m2": "float8e5m2"}
_Kind = tuple[str, dict[str, Any]]


def load_exported(program: Any) -> Graph:
    """An ExportedProgram, or the `.pt2` file of one, as a graph with fixed shapes.

    Parameters and buffers are constants, read when asked for. Raises LoadError for damaged files and symbolic shapes,
    UnsupportedError without `downset[torch]`.
    """
    torch = torch_library("reading .pt2 files")
    path = ""
    if isinstance(program, (str, os.PathLike)):
        path = str(program)
        if not zipfile.is_zipfile(path):  # torch would log a traceback before it says so
            raise LoadError(f"{path} is not an exported program or is damaged (no zip archive)")
        try:
            program = torch.export.load(path)
        except Exception as error:  # unpickling a damaged archive can raise anything
            raise LoadError(f"{path} is not an exported program or is damaged ({brief(error, 120)})") from None
    return _Reader(program, path).graph().check()


def call_nodes(graph: Any) -> list[Any]:
    """The nodes that are operators of ours: calls, without the getitems that only pick an output."""
    return [node for node in graph.nodes if node.op == "call_function" and not _is_getitem(node)]


def _is_getitem(node: Any) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


class _Reader:
    def __init__(self, program: Any, path: str) -> None:
        self._program, self._path = program, path
        self._tensors: list[Tensor] = []
        self._number: dict[Any, int] = {}
        self._constants: dict[int, Callable[[], npt.NDArray[Any]]] = {}

    def graph(self) -> Graph:
        signature, fx = self._program.graph_signature, self._program.graph
        held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        held.update(signature.inputs_to_lifted_tensor_constants)
        inputs: list[int] = []
        for node in fx.nodes:
            if node.op == "placeholder":
                role: Role = "constant" if node.name in held else "activation"
                index = self._add(node, node.meta.get("val"), role)
                if node.name in held:
                    self._constants[index] = self._reader(held[node.name])
                else:
                    inputs.append(index)
        calls = call_nodes(fx)
        ops = [self._operator(node) for node in calls]
        (output,) = (node for node in fx.nodes if node.op == "output")
        outputs = tuple(self._number[node] for node in _flat(output.args) if node in self._number)
        name = Path(self._path).stem or type(self._program).__name__
        source = Source("torch", self._path, tuple(range(len(ops))), (-1,) * len(self._tensors))
        return Graph(name, tuple(self._tensors), tuple(ops), tuple(inputs), outputs, self._constants, source)

    def _reader(self, name: str) -> Callable[[], npt.NDArray[Any]]:
        program = self._program

        def read() -> npt.NDArray[Any]:
            value = program.state_dict.get(name)
            value = program.constants[name] if value is None else value
            return value.detach().cpu().numpy()  # type: ignore[no-any-return]

        return read

    def _add(self, key: Any, value: Any, role: Role = "activation", name: str = "") -> int:
        name = name or key.name
        if not hasattr(value, "shape"):
            self._tensors.append(Tensor(name, (), "opaque", 0, role))
        else:
            if not all(isinstance(extent, int) for extent in value.shape):
                raise LoadError(f"{name!r} has the symbolic shape {tuple(value.shape)}; export with fixed sizes")
            dtype = str(value.dtype).removeprefix("torch.")
            dtype = _DTYPES.get(dtype, dtype)
            shape = tuple(int(extent) for extent in value.shape)
            self._tensors.append(Tensor(name, shape, dtype, tensor_bytes(shape, dtype), role))
        self._number[key] = len(self._tensors) - 1
        return len(self._tensors) - 1

    def _operator(self, node: Any) -> Op:
        value = node.meta.get("val")
        if isinstance(value, (list, tuple)):
            picked = {user.args[1]: user for user in node.users if _is_getitem(user)}
            outputs = tuple(
                self._add(picked.get(position, (node, position)), item, name=f"{node.name}.{position}")
                for position, item in enumerate(value)
            )
        else:
            outputs = (self._add(node, value),)
        inputs = tuple(self._number[item] for item in _flat((node.args, node.kwargs)) if item in self._number)
        kind, attrs = self._kind(node)
        return Op(node.name, kind, inputs, outputs, attrs)

    def _kind(self, node: Any) -> _Kind:
        name = str(node.target).removeprefix("aten.")
        base = name.partition(".")[0]
        numbers = any(isinstance(argument, (int, float)) for argument in node.args[:2])
        if base in _ELEMENTWISE and not node.kwargs and not (base in _BINARY and numbers):
            return _ELEMENTWISE[base], {}
        if base in _TRANSLATED and not node.kwargs:
            found: _Kind | None = _TRANSLATED[base](node)
            if found is not None:
                return found
        return f"aten::{name}", {}


def _flat(value: Any) -> list[Any]:
    """The nodes in nested arguments, in order."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [node for item in value for node in _flat(item)]
    return [value] if hasattr(value, "users") else []


_BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "matmul": "MatMul",
}
_ELEMENTWISE = {
    **_BINARY,
    "relu": "Relu", "relu_": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "hardswish": "HardSwish", "exp": "Exp",
    "sqrt": "Sqrt", "abs": "Abs", "neg": "Neg", "erf": "Erf", "log": "Log",
    "silu": "Swish", "silu_": "Swish",
    "flatten": "Reshape", "view": "Reshape", "reshape": "Reshape", "squeeze": "Squeeze", "unsqueeze": "Unsqueeze",
}  # fmt: skip
"""Operators that need no attributes here: reshapes take the shape of their output."""


def _argument(node: Any, position: int, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else default


def _pair(value: Any) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(item) for item in (values * 2 if len(values) == 1 else values)]


def _conv(node: Any) -> _Kind | None:
    strides, pads = _pair(_argument(node, 3, 1)), _argument(node, 4, 0)
    if isinstance(pads, str):
        return None
    kernel = list(node.args[1].meta["val"].shape[2:])
    attrs = {
        "kernel_shape": kernel,
        "strides": strides[: len(kernel)],
        "pads": _pair(pads)[: len(kernel)] * 2,
        "dilations": _pair(_argument(node, 5, 1))[: len(kernel)],
        "group": int(_argument(node, 6, 1)),
    }
    return "Conv", attrs


def _conv_transpose(node: Any) -> _Kind:
    rank = node.args[1].meta["val"].dim() - 2
    return "ConvTranspose", {
        "kernel_shape": list(node.args[1].meta["val"].shape[2:]),
        "strides": _pair(_argument(node, 3, 1))[:rank],
        "pads": _pair(_argument(node, 4, 0))[:rank] * 2,
        "output_padding": _pair(_argument(node, 5, 0))[:rank],
        "group": int(_argument(node, 6, 1)),
        "dilations": _pair(_argument(node, 7, 1))[:rank],
    }


def _pool(kind: str, rank: int = 2) -> Callable[[Any], _Kind | None]:
    def translate(node: Any) -> _Kind | None:
        kernel = _pair(node.args[1])[:rank]
        attrs: dict[str, Any] = {
            "kernel_shape": kernel,
            "strides": _pair(_argument(node, 2, None) or kernel)[:rank],
            "pads": _pair(_argument(node, 3, 0))[:rank] * 2,
        }
        if kind == "MaxPool":
            attrs.update(dilations=_pair(_argument(node, 4, 1))[:rank], ceil_mode=int(_argument(node, 5, False)))
        else:
            include = int(_argument(node, 5, True))
            attrs.update(ceil_mode=int(_argument(node, 4, False)), count_include_pad=include)
            if _argument(node, 6, None) is not None:
                return None
        return kind, attrs

    return translate


def _adaptive(node: Any) -> _Kind | None:
    return ("GlobalAveragePool", {}) if _pair(node.args[1]) == [1, 1] else None


def _batch_norm(node: Any) -> _Kind | None:
    training = bool(_argument(node, 5, False))
    return None if training or None in node.args[:5] else ("BatchNormalization", {"epsilon": float(node.args[7])})


def _concat(node: Any) -> _Kind:
    return "Concat", {"axis": int(_argument(node, 1, 0))}


def _linear(node: Any) -> _Kind:
    return "Gemm", {"transB": 1, "layout": "NHWC"}  # over the last axis of any rank


def _clip(node: Any) -> _Kind:
    return "Clip", {"min": float(_argument(node, 1, -1.0)), "max": float(_argument(node, 2, 1.0))}


def _mean(node: Any) -> _Kind | None:
    axes = _argument(node, 1, None)
    return ("ReduceMean", {"axes": list(axes), "keepdims": int(_argument(node, 2, False))}) if axes else None


def _softmax(node: Any) -> _Kind:
    return "Softmax", {"axis": int(node.args[1])}


def _permute(node: Any) -> _Kind:
    return "Transpose", {"perm": [int(axis) for axis in node.args[1]]}


def _transpose(node: Any) -> _Kind:
    rank = node.args[0].meta["val"].dim()
    perm: list[int] = list(range(rank))
    first, second = (int(axis) % rank for axis in node.args[1:3])
    perm[first], perm[second] = perm[second], perm[first]
    return "Transpose", {"perm": perm}


def _split(node: Any) -> _Kind:
    return "Split", {"axis": int(_argument(node, 2, 0))}


def _leaky(node: Any) -> _Kind:
    return "LeakyRelu", {"alpha": float(_argument(node, 1, 0.01))}


def _gelu(node: Any) -> _Kind:
    return "Gelu", {}


def _dropout(node: Any) -> _Kind | None:
    return None if _argument(node, 2, False) else ("Identity", {})


_TRANSLATED: Mapping[str, Callable[[Any], _Kind | None]] = {
    "adaptive_avg_pool2d": _adaptive,
    "avg_pool1d": _pool("AveragePool", 1),
    "avg_pool2d": _pool("AveragePool"),
    "batch_norm": _batch_norm,
    "cat": _concat,
    "chunk": _split,
    "conv1d": _conv,
    "conv2d": _conv,
    "conv_transpose1d": _conv_transpose,
    "conv_transpose2d": _conv_transpose,
    "dropout": _dropout,
    "gelu": _gelu,
    "hardtanh": _clip,
    "hardtanh_": _clip,
    "leaky_relu": _leaky,
    "linear": _linear,
    "max_pool1d": _pool("MaxPool", 1),
    "max_pool2d": _pool("MaxPool"),
    "mean": _mean,
    "permute": _permute,
    "softmax": _softmax,
    "split": _split,
    "split_with_sizes": _split,
    "transpose": _transpose,
}


def reordered(program: Any, steps: Sequence[int]) -> Any:
    """The same program with its calls in another order (each getitem right after its call); a new ExportedProgram is
    not made: the graph is permuted in a copy and linted."""
    import copy

    program = copy.deepcopy(program)
    fx = program.graph
    calls = call_nodes(fx)
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
