"""The meaning of PyTorch's operators, as far as proofs about parts need it: their kind, settings and inputs in the form
of ONNX's operators. It is written from PyTorch's documentation, and does not use the table of planning."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from downset.equivalence.meaning import ATTENTION, GROUP_NORM
from downset.equivalence.torch_arguments import (
    Arguments,
    Meaning,
    axis_of,
    flag,
    float_of,
    integer,
    integers,
    integers_in,
    number,
    per_axis,
    rank_of,
)
from downset.equivalence.torch_selection import divided, looked_up, selected, sliced, unbound
from downset.formats.torch.program import TorchCall, TorchSetting, TorchValue

__all__ = ["FILLS", "elementwise_settings", "meaning_of"]


_UNARY = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "hardswish": "HardSwish",
    "hardsigmoid": "HardSigmoid",
    "silu": "Swish",
    "gelu": "Gelu",
    "elu": "Elu",
    "mish": "Mish",
    "softplus": "Softplus",
    "hardtanh": "Clip",
    "relu6": "Clip",
    "clamp": "Clip",
    "leaky_relu": "LeakyRelu",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "rsqrt": "Sqrt",
    "cos": "Cos",
    "sin": "Sin",
    "abs": "Abs",
    "neg": "Neg",
    "rsub": "Neg",
    "erf": "Erf",
    "clone": "Identity",
    "contiguous": "Identity",
}
_BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "pow": "Pow",
}
_ELEMENTWISE = {**_UNARY, **_BINARY}
FILLS: Mapping[Hashable, float] = {"Conv": 0.0, "AveragePool": 0.0, "MaxPool": -math.inf}
"""By kind of a window that may pad: the value that its kernel pads with."""


def meaning_of(call: TorchCall) -> Meaning | None:
    """The meaning of a call; None where it is not known."""
    space, _, rest = call.target.partition(".")
    name, _, overload = rest.partition(".")
    if space != "aten" or (call.several and name not in _SEVERAL) or not call.results or "out" in overload:
        return None
    reader, plain = _READERS.get(name), name.removesuffix("_")
    try:
        if plain in _ELEMENTWISE:
            return _elementwise(call, plain)
        return None if reader is None else Arguments(call).all_read(reader)
    except (TypeError, ValueError, IndexError, AttributeError, ArithmeticError):
        return None


def _elementwise(call: TorchCall, name: str) -> Meaning | None:
    """An operator of which each element follows from the same elements of its inputs; its numbers are settings."""
    inputs = [item for item in call.args if isinstance(item, TorchValue)]
    if len(inputs) != (2 if name in _BINARY and isinstance(call.args[1], TorchValue) else 1):
        return None
    numbers = [None if isinstance(item, TorchValue) else number(item) for item in call.args]
    named = tuple(sorted((key, number(item)) for key, item in call.kwargs.items()))
    plain = (bool, int, float, str, type(None))
    given = [*(item for item in call.args if not isinstance(item, TorchValue)), *call.kwargs.values()]
    if not all(isinstance(item, plain) for item in given):
        return None
    settings = {"operator": name, "numbers": (tuple(numbers), named), "names": call.names}
    return Meaning(_ELEMENTWISE[name], settings, tuple(inputs))


def elementwise_settings(operator: str, arguments: Sequence[float | None]) -> dict[str, Hashable]:
    """The settings of a call `operator(self)` or `operator(self, other)`, whose arguments are tensors (None) or
    numbers."""
    numbers = tuple(None if one is None else number(one) for one in arguments)
    names = (("self", 1), ("other", 1))[: len(numbers)]
    return {"operator": operator, "numbers": (numbers, ()), "names": names}


def _convolution(read: Arguments) -> Meaning:
    return _layer("Conv", read, dilation_at=5)


def _transposed(read: Arguments) -> Meaning:
    added = per_axis(read(5, "output_padding", [0]), rank_of(read(1, "weight")) - 2)
    return _layer("ConvTranspose", read, dilation_at=7, output_padding=added)


def _layer(kind: str, read: Arguments, dilation_at: int, **further: list[int]) -> Meaning:
    source, weight = read(0, "input"), read(1, "weight")
    rank = rank_of(weight) - 2
    if rank_of(source) != rank + 2:  # without a batch
        raise ValueError(rank)
    settings = integers(
        strides=per_axis(read(3, "stride", [1]), rank),
        pads=per_axis(read(4, "padding", [0]), rank) * 2,  # unknown for a word
        dilations=per_axis(read(dilation_at, "dilation", [1]), rank),
        **further,
    )
    settings["group"] = (2, integer(read(6, "groups", 1)))
    return Meaning(kind, settings, (source, weight, read(2, "bias")))


def _pool(kind: str, rank: int) -> Callable[[Arguments], Meaning]:
    def reader(read: Arguments) -> Meaning:
        source, kernel = read(0, "self"), per_axis(read(1, "kernel_size"), rank)
        if rank_of(source) != rank + 2:
            raise ValueError(rank)
        strides = per_axis(read(2, "stride", []) or kernel, rank)
        settings = integers(kernel_shape=kernel, strides=strides, pads=per_axis(read(3, "padding", [0]), rank) * 2)
        if kind == "MaxPool":
            settings |= integers(dilations=per_axis(read(4, "dilation", [1]), rank))
            settings["ceil_mode"] = (2, flag(read(5, "ceil_mode", False)))
        else:
            settings["ceil_mode"] = (2, flag(read(4, "ceil_mode", False)))
            settings["count_include_pad"] = (2, flag(read(5, "count_include_pad", True)))
            if read(6, "divisor_override") is not None:
                raise ValueError("divisor_override")
        return Meaning(kind, settings, (source,))

    return reader


def _batch_norm(read: Arguments) -> Meaning:
    names = ("input", "weight", "bias", "running_mean", "running_var")
    inputs = tuple(read(position, name) for position, name in enumerate(names))
    float_of(read(6, "momentum")), flag(read(8, "cudnn_enabled"))  # which change no result
    if flag(read(5, "training", True)) or None in inputs:
        raise ValueError("training")
    settings = {"epsilon": float_of(read(7, "eps")), "statistics": "given"}
    return Meaning("BatchNormalization", settings, inputs)


def _global_pool(read: Arguments) -> Meaning:
    source = read(0, "self")
    if per_axis(read(1, "output_size"), 2) != [1, 1] or rank_of(source) != 4:
        raise ValueError("output_size")
    return Meaning("GlobalAveragePool", {}, (source,))


def _concatenation(read: Arguments) -> Meaning:
    joined = tuple(read(0, "tensors"))
    return Meaning("Concat", {"axis": (2, axis_of(read(1, "dim", 0), rank_of(joined[0])))}, joined)


def _reshape(read: Arguments) -> Meaning:
    """The sizes are those that the call states: the file's types of its result are only claimed."""
    source, name = read(0, "self"), read.call.target.split(".")[1]
    sizes = list(source.shape or ())
    if name in ("view", "reshape"):
        sizes = integers_in(read(1, "size" if name == "view" else "shape"))
    elif name == "flatten":
        first, last = (axis_of(axis, len(sizes)) for axis in (read(1, "start_dim", 0), read(2, "end_dim", -1)))
        sizes[first : last + 1] = [math.prod(sizes[first : last + 1])]
    elif name == "unsqueeze":
        sizes.insert(axis_of(read(1, "dim"), len(sizes) + 1), 1)
    else:
        stated = read(1, "dim")
        several = read.call.target.split(".")[-1] == "dims"
        axes = {axis_of(axis, len(sizes)) for axis in (integers_in(stated) if several else [stated])}
        sizes = [size for axis, size in enumerate(sizes) if axis not in axes or size != 1]
    return Meaning("Reshape", {"allowzero": (2, 1)}, (source, np.array(sizes, np.int64)))


def _permutation(read: Arguments) -> Meaning:
    rank = rank_of(read(0, "self"))
    return Meaning(
        "Transpose", integers(perm=[axis_of(axis, rank) for axis in integers_in(read(1, "dims"))]), (read(0, "self"),)
    )


def _transposition(read: Arguments) -> Meaning:
    rank = rank_of(read(0, "self"))
    first, second = axis_of(read(1, "dim0"), rank), axis_of(read(2, "dim1"), rank)
    order = list(range(rank))
    order[first], order[second] = second, first
    return Meaning("Transpose", integers(perm=order), (read(0, "self"),))


def _softmax(read: Arguments) -> Meaning:
    if read(2, "dtype") is not None:
        raise ValueError("dtype")
    source = read(0, "self")
    return Meaning("Softmax", {"axis": (2, axis_of(read(1, "dim"), rank_of(source)))}, (source,))


def _product(read: Arguments) -> Meaning:
    other = "other" if ".matmul." in read.call.target else "mat2"
    return Meaning("MatMul", {}, (read(0, "self"), read(1, other)))


def _linear(read: Arguments) -> Meaning:
    return Meaning("Gemm", {"transB": (2, 1)}, (read(0, "input"), read(1, "weight"), read(2, "bias")))


def _sum_and_product(read: Arguments) -> Meaning:
    return Meaning("Gemm", {}, (read(1, "mat1"), read(2, "mat2"), read(0, "self")))


def _layer_norm(read: Arguments) -> Meaning:
    source, sizes = read(0, "input"), read(1, "normalized_shape")
    if sizes != list(source.shape or ())[-len(sizes) :]:
        raise ValueError(sizes)
    flag(read(5, "cudnn_enable", True))  # which changes no result
    settings = {"axis": (2, rank_of(source) - len(sizes)), "epsilon": float_of(read(4, "eps", 1e-5))}
    return Meaning("LayerNormalization", settings, (source, read(2, "weight"), read(3, "bias")))


def _group_norm(read: Arguments) -> Meaning:
    flag(read(5, "cudnn_enabled", True))  # which changes no result
    settings = {"num_groups": (2, integer(read(1, "num_groups"))), "epsilon": float_of(read(4, "eps", 1e-5))}
    return Meaning(GROUP_NORM, settings, (read(0, "input"), read(2, "weight"), read(3, "bias")))


def _instance_norm(read: Arguments) -> Meaning:
    kept = (read(3, "running_mean"), read(4, "running_var"))
    float_of(read(6, "momentum")), flag(read(8, "cudnn_enabled"))  # which change no result
    if not flag(read(5, "use_input_stats")) or kept != (None, None):
        raise ValueError("running statistics")
    inputs = (read(0, "input"), read(1, "weight"), read(2, "bias"))
    return Meaning("InstanceNormalization", {"epsilon": float_of(read(7, "eps"))}, inputs)


def _mean(read: Arguments) -> Meaning:
    if read(3, "dtype") is not None:
        raise ValueError("dtype")
    source = read(0, "self")
    axes = [axis_of(axis, rank_of(source)) for axis in integers_in(read(1, "dim"))]
    if len({*axes}) != len(axes):
        raise ValueError(axes)
    settings = {"keepdims": (2, flag(read(2, "keepdim", False)))}
    return Meaning("ReduceMean", settings, (source, np.array(axes, np.int64)))


def _nearest(read: Arguments) -> Meaning:
    """A resize by powers of two, for which PyTorch's float scale is exact."""
    vector = ".vec" in read.call.target
    source, size = read(0, "input" if vector else "self"), read(1, "output_size")
    scales = read(2, "scale_factors") if vector else None
    if scales is not None and size is not None:
        raise ValueError("scales")
    if not vector and (read(2, "scales_h"), read(3, "scales_w")) != (None, None):  # of which places follow
        raise ValueError("scales")
    read_sizes = (source.shape or ())[2:]
    factors = [out / size for out, size in zip(size or (), read_sizes, strict=True)] if scales is None else list(scales)
    if len(factors) != 2 or any(factor not in (1, 2, 4, 8, 16, 32) for factor in factors):
        raise ValueError("scales")
    factors = [1, 1, *factors]
    settings = {
        "mode": (3, b"nearest"),
        "nearest_mode": (3, b"floor"),
        "coordinate_transformation_mode": (3, b"asymmetric"),
    }
    return Meaning("Resize", settings, (source, None, np.array(factors, np.float32)))


def _attention(read: Arguments) -> Meaning:
    if float_of(read(4, "dropout_p", 0.0)) != float_of(0.0):
        raise ValueError("dropout_p")
    scale = read(6, "scale")
    settings = {
        "is_causal": (2, flag(read(5, "is_causal", False))),
        "enable_gqa": (2, flag(read(7, "enable_gqa", False))),
        "scale": None if scale is None else float_of(scale),
    }
    inputs = (read(0, "query"), read(1, "key"), read(2, "value"), read(3, "attn_mask"))
    return Meaning(ATTENTION, settings, inputs)


def _cast(read: Arguments) -> Meaning:
    dtype = read(1, "dtype")
    flag(read(2, "non_blocking", False)), flag(read(3, "copy", False))  # which change no value
    if read.call.target != "aten.to.dtype" or not isinstance(dtype, TorchSetting) or read(4, "memory_format"):
        raise ValueError("dtype")
    return Meaning("Cast", {"to": (dtype.kind, dtype.value)}, (read(0, "self"),))


_DIVIDING = ("split", "split_with_sizes", "chunk")
_SEVERAL = (*_DIVIDING, "unbind")
"""Operators with several results."""


def _identity(read: Arguments) -> Meaning:
    float_of(read(1, "p"))
    if flag(read(2, "train", True)):
        raise ValueError("train")
    settings = {"operator": "clone", "numbers": ((None,), ()), "names": (("self", 1),)}
    return Meaning("Identity", settings, (read(0, "input"),))


_READERS: Mapping[str, Callable[[Arguments], Meaning]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    **{
        f"{name}_pool{rank}d": _pool(kind, rank)
        for name, kind in (("max", "MaxPool"), ("avg", "AveragePool"))
        for rank in (1, 2)
    },
    "batch_norm": _batch_norm,
    "adaptive_avg_pool2d": _global_pool,
    "cat": _concatenation,
    **dict.fromkeys(("slice", "slice_copy"), sliced),
    **dict.fromkeys(("view", "reshape", "flatten", "unsqueeze", "squeeze"), _reshape),
    **dict.fromkeys(_DIVIDING, divided),
    "unbind": unbound,
    "select": selected,
    "embedding": looked_up,
    "permute": _permutation,
    "transpose": _transposition,
    "softmax": _softmax,
    **dict.fromkeys(("matmul", "bmm", "mm"), _product),
    "linear": _linear,
    "addmm": _sum_and_product,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "mean": _mean,
    "to": _cast,
    "upsample_nearest2d": _nearest,
    "scaled_dot_product_attention": _attention,
    "dropout": _identity,
}
