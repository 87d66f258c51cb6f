"""Translation of calls of PyTorch's operators to the graph's kinds. Without a counterpart the kind is `aten::NAME`,
which is opaque; PyTorch's own operator computes it, if it is pure (`kernels.aten`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from downset.formats.torch.archive import DTYPES
from downset.formats.torch.program import TorchCall, TorchSetting, TorchValue

__all__ = ["adds_first", "translated"]

Kind = tuple[str, dict[str, Any]]


def adds_first(target: str, kind: str) -> bool:
    """Whether a call has first what it adds to a product, which its kind in the graph has last."""
    return target == "aten.addmm.default" and kind == "Gemm"


def translated(call: TorchCall) -> Kind:
    """The graph's kind of a call, and its attributes. Arguments that the operator cannot have raise Python's own
    errors, such as IndexError and TypeError."""
    name = call.target.removeprefix("aten.")
    base = name.partition(".")[0]
    numbers = any(isinstance(argument, (int, float)) for argument in call.args[:2])
    typed = any(
        type(argument).__name__ in ("dtype", "TorchSetting") for argument in call.args
    )  # softmax, view as a type
    if base in _ELEMENTWISE and not call.kwargs and not typed and not (base in _BINARY and numbers):
        return _ELEMENTWISE[base], {}
    if base in _TRANSLATED and not call.kwargs and not typed:
        translation = _TRANSLATED[base](call)
        if translation is not None:
            return translation
    positions = itertools.count()
    args, kwargs = _plain(list(call.args), positions), _plain(dict(call.kwargs), positions)
    attrs = {"call": {"args": args, "kwargs": kwargs}}
    return f"aten::{name}", {**attrs, **(_GEOMETRY[name](call) if name in _GEOMETRY else {})}


def _bounds(call: TorchCall) -> dict[str, Any]:
    """The bounds of a slice in steps of one, as ONNX's Slice states them; none of another."""
    axis, start, end, step = (_argument(call, place, default) for place, default in enumerate((0, 0, None, 1), 1))
    if call.kwargs or step != 1:
        return {}
    return {"axes": [int(axis)], "starts": [int(start or 0)], "ends": [_END if end is None else int(end)]}


_END = (1 << 63) - 1


def _taken(call: TorchCall) -> dict[str, Any]:
    """The bounds of one position, whose dimension the result lacks, as TFLite's StridedSlice states them."""
    shape = call.args[0].shape
    if call.kwargs or len(call.args) != 3 or not shape:
        return {}
    axis, index = int(call.args[1]) % len(shape), int(call.args[2])
    index += shape[axis] if index < 0 else 0
    masks = {"shrinkAxisMask": 1 << axis, "newAxisMask": 0, "ellipsisMask": 0}
    return {"axes": [axis], "starts": [index], "ends": [index + 1], **masks}


def _divided(call: TorchCall) -> dict[str, Any]:
    """The dimension that no result has, as ONNX's reductions state it."""
    return {} if call.kwargs else {"axes": [int(_argument(call, 1, 0))], "keepdims": 0}


_GEOMETRY: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "select.int": _taken,
    "slice.Tensor": _bounds,
    "unbind.int": _divided,
}
"""By operator: what the rules of its kind read of a call."""


def _plain(argument: Any, positions: Iterator[int]) -> Any:
    """An argument as plain data, in which {"tensor": n} stands for the input n of the graph's operator, and
    {"element_type": name} for an element type."""
    if isinstance(argument, TorchValue):
        return {"tensor": next(positions)}
    if isinstance(argument, Mapping):
        return {str(name): _plain(value, positions) for name, value in argument.items()}
    if isinstance(argument, (list, tuple)):
        return [_plain(item, positions) for item in argument]
    if type(argument).__name__ == "dtype":
        return {"element_type": str(argument).removeprefix("torch.")}
    if isinstance(argument, TorchSetting) and argument.kind == "as_scalar_type":
        return {"element_type": DTYPES[argument.value]}
    plain = argument is None or isinstance(argument, (bool, int, float, str))
    return argument if plain else {"setting": "an element type, a device or a layout"}


_BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "bmm": "MatMul",
    "matmul": "MatMul",
    "mm": "MatMul",
}
_ELEMENTWISE = {
    **_BINARY,
    "relu": "Relu",
    "relu_": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "hardswish": "HardSwish",
    "exp": "Exp",
    "silu": "Swish",
    "silu_": "Swish",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "neg": "Neg",
    "erf": "Erf",
    "log": "Log",
    "flatten": "Reshape",
    "view": "Reshape",
    "reshape": "Reshape",
    "squeeze": "Squeeze",
    "unsqueeze": "Unsqueeze",
}
"""Kinds of operators that need no attributes. A reshape has the shape of its output tensor."""


def _argument(call: TorchCall, position: int, default: Any) -> Any:
    return call.args[position] if len(call.args) > position else default


def _pair(value: Any) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(item) for item in (values * 2 if len(values) == 1 else values)]


def _conv(call: TorchCall) -> Kind | None:
    strides, pads = _pair(_argument(call, 3, 1)), _argument(call, 4, 0)
    if isinstance(pads, str):
        return None
    kernel = list(call.args[1].shape[2:])
    attrs = {
        "kernel_shape": kernel,
        "strides": strides[: len(kernel)],
        "pads": _pair(pads)[: len(kernel)] * 2,
        "dilations": _pair(_argument(call, 5, 1))[: len(kernel)],
        "group": int(_argument(call, 6, 1)),
    }
    return "Conv", attrs


def _conv_transpose(call: TorchCall) -> Kind:
    shape = call.args[1].shape
    rank = len(shape) - 2
    return "ConvTranspose", {
        "kernel_shape": list(shape[2:]),
        "strides": _pair(_argument(call, 3, 1))[:rank],
        "pads": _pair(_argument(call, 4, 0))[:rank] * 2,
        "output_padding": _pair(_argument(call, 5, 0))[:rank],
        "group": int(_argument(call, 6, 1)),
        "dilations": _pair(_argument(call, 7, 1))[:rank],
    }


def _pool(kind: str, rank: int = 2) -> Callable[[TorchCall], Kind | None]:
    def translate(call: TorchCall) -> Kind | None:
        kernel = _pair(call.args[1])[:rank]
        attrs: dict[str, Any] = {
            "kernel_shape": kernel,
            "strides": _pair(_argument(call, 2, None) or kernel)[:rank],
            "pads": _pair(_argument(call, 3, 0))[:rank] * 2,
        }
        if kind == "MaxPool":
            attrs.update(dilations=_pair(_argument(call, 4, 1))[:rank], ceil_mode=int(_argument(call, 5, False)))
        else:
            include = int(_argument(call, 5, True))
            attrs.update(ceil_mode=int(_argument(call, 4, False)), count_include_pad=include)
            if _argument(call, 6, None) is not None:
                return None
        return kind, attrs

    return translate


def _adaptive(call: TorchCall) -> Kind | None:
    return ("GlobalAveragePool", {}) if _pair(call.args[1]) == [1, 1] else None


def _batch_norm(call: TorchCall) -> Kind | None:
    training = bool(_argument(call, 5, False))
    return None if training or None in call.args[:5] else ("BatchNormalization", {"epsilon": float(call.args[7])})


def _concat(call: TorchCall) -> Kind:
    return "Concat", {"axis": int(_argument(call, 1, 0))}


def _linear(call: TorchCall) -> Kind:
    return "Gemm", {"transB": 1, "layout": "NHWC"}  # over the last axis, for an input of any rank


def _sum_and_product(call: TorchCall) -> Kind:
    return "Gemm", {}


def _clip(call: TorchCall) -> Kind:
    return "Clip", {"min": float(_argument(call, 1, -1.0)), "max": float(_argument(call, 2, 1.0))}


def _mean(call: TorchCall) -> Kind | None:
    axes = _argument(call, 1, None)
    return ("ReduceMean", {"axes": list(axes), "keepdims": int(_argument(call, 2, False))}) if axes else None


def _softmax(call: TorchCall) -> Kind:
    return "Softmax", {"axis": int(call.args[1])}


def _permute(call: TorchCall) -> Kind:
    return "Transpose", {"perm": [int(axis) for axis in call.args[1]]}


def _transpose(call: TorchCall) -> Kind:
    rank = len(call.args[0].shape)
    perm: list[int] = list(range(rank))
    first, second = (int(axis) % rank for axis in call.args[1:3])
    perm[first], perm[second] = perm[second], perm[first]
    return "Transpose", {"perm": perm}


def _split(call: TorchCall) -> Kind:
    return "Split", {"axis": int(_argument(call, 2, 0))}


def _leaky(call: TorchCall) -> Kind:
    return "LeakyRelu", {"alpha": float(_argument(call, 1, 0.01))}


def _layer_norm(call: TorchCall) -> Kind | None:
    scaled = isinstance(_argument(call, 2, None), TorchValue)
    attrs = {"axis": -len(call.args[1]), "epsilon": float(_argument(call, 4, 1e-5))}
    return ("LayerNormalization", attrs) if scaled else None


def _embedding(call: TorchCall) -> Kind:
    return "Gather", {"axis": 0}


def _gelu(call: TorchCall) -> Kind:
    return "Gelu", {}


def _dropout(call: TorchCall) -> Kind | None:
    return None if _argument(call, 2, False) else ("Identity", {})


_TRANSLATED: Mapping[str, Callable[[Any], Kind | None]] = {
    "adaptive_avg_pool2d": _adaptive,
    "addmm": _sum_and_product,
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
    "embedding": _embedding,
    "gelu": _gelu,
    "hardtanh": _clip,
    "hardtanh_": _clip,
    "layer_norm": _layer_norm,
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
