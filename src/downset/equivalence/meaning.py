"""The meaning of operators of both formats, as far as proofs about parts need it: windows, channels, fused activations.

It is written from the formats' specifications. Except for the name of one kind it does not use the table of planning
and rewriting (`graph.kinds`), so that a wrong row there cannot make a wrong rewrite look proven.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from downset.equivalence.file_network import FileNode
from downset.graph.kinds import FUSED_CONV

__all__ = [
    "ATTENTION",
    "ELEMENTWISE",
    "GROUP_NORM",
    "LAYER_NORMS",
    "PRODUCTS",
    "PYTORCH",
    "Along",
    "base_kind",
    "channels_axis",
    "fused",
    "integers",
    "listed_integers",
    "number",
    "others",
    "real",
    "split_inputs",
    "windowed",
    "windows",
]

_ONNX = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Celu "
    "Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN "
    "LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink "
    "Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor "
    "com.microsoft::BiasGelu com.microsoft::FastGelu com.microsoft::Gelu com.microsoft::QuickGelu "
)
_TFLITE = (
    "ABS ADD ADD_N CAST CEIL COS DEQUANTIZE DIV ELU EQUAL EXP FLOOR FLOOR_DIV FLOOR_MOD GELU GREATER GREATER_EQUAL "
    "HARD_SWISH LEAKY_RELU LESS LESS_EQUAL LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR LOGISTIC MAXIMUM MINIMUM MUL NEG "
    "NOT_EQUAL POW PRELU QUANTIZE RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 ROUND RSQRT SELECT_V2 SIGN SIN SQRT SQUARE "
    "SQUARED_DIFFERENCE SUB TANH "
)
ELEMENTWISE = frozenset((_ONNX + _TFLITE).split())
"""Kinds of which each element of the result follows from the same element of every input, broadcast from the last axis
on."""

_MULTIPLY = "MatMul Gemm BATCH_MATMUL com.microsoft::FusedMatMul"
_NORMALISE = "LayerNormalization RMSNormalization com.microsoft::SkipLayerNormalization"
PRODUCTS, LAYER_NORMS = frozenset(_MULTIPLY.split()), frozenset(_NORMALISE.split())
"""Kinds that multiply two matrices, and kinds that normalise over the dimensions from an axis on."""

PYTORCH = ("version of PyTorch's operators",)
"""The setting that exported programs have, and no other files."""
ATTENTION = "torch::scaled_dot_product_attention"
"""PyTorch's attention of queries, keys and values, with a mask that may be absent."""
GROUP_NORM = "torch::group_norm"
"""PyTorch's normalisation of groups of channels, whose scale and bias, which may be absent, are for each channel."""

_WINDOWED = frozenset({"Conv", "AveragePool", "MaxPool", "LpPool"})
_TFLITE_WINDOWED = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D"})
_PLACED = frozenset(
    {
        "activation",
        "activation_params",
        "auto_pad",
        "ceil_mode",
        "dilations",
        "fusedActivationFunction",
        "group",
        "kernel_shape",
        "padding",
        "pads",
        "strides",
    }
)
"""Settings of windowed operators that are compared by their meaning, not literally."""


@dataclass(frozen=True, slots=True)
class Along:
    """A window along one axis: it covers `reach` positions, moves by `stride`, and begins `pad_begin` before the first.
    `made`: the number of positions of the result."""

    size: int
    stride: int
    dilation: int
    pad_begin: int
    pad_end: int
    made: int

    @property
    def reach(self) -> int:
        return (self.size - 1) * self.dilation + 1


def base_kind(node: FileNode) -> str:
    """The kind; a FusedConv counts as a Conv."""
    return "Conv" if node.kind == FUSED_CONV else node.kind


def windowed(node: FileNode) -> bool:
    return base_kind(node) in _WINDOWED or node.kind in _TFLITE_WINDOWED


def channels_axis(node: FileNode, rank: int) -> int:
    return rank - 1 if node.kind in _TFLITE_WINDOWED else 1


def fused(node: FileNode) -> Hashable:
    """The activation fused into an operator, with its parameters; None where there is none."""
    if "fusedActivationFunction" in node.settings:
        return node.settings["fusedActivationFunction"] or None
    kind = node.settings.get("activation")
    return None if kind is None else (kind, node.settings.get("activation_params"))


def others(node: FileNode, *, without: frozenset[str] = _PLACED) -> Mapping[str, Hashable]:
    """The settings that must be literally equal: all but those in `without`."""
    return {key: value for key, value in node.settings.items() if key not in without}


def number(node: FileNode, name: str, default: int) -> int:
    """An integer setting; in ONNX it is a pair with the number of its type. Raises ValueError for another type."""
    value = node.settings.get(name, default)
    if isinstance(value, tuple):
        value = value[1]
    if not isinstance(value, int):
        raise ValueError(name)
    return int(value)


def real(node: FileNode, name: str, default: float) -> float:
    """A float setting of ONNX, or of PyTorch, whose floats have twice the bytes."""
    value = node.settings.get(name)
    if not isinstance(value, tuple):
        return default
    return float(struct.unpack("<d" if len(value[1]) == struct.calcsize("<d") else "<f", value[1])[0])


def integers(node: FileNode, name: str, default: Sequence[int]) -> tuple[int, ...]:
    """A setting of several integers of ONNX."""
    value = node.settings.get(name)
    return tuple(default) if not isinstance(value, tuple) else tuple(value[1])


def split_inputs(node: FileNode) -> tuple[int, int | None]:
    """The positions of the tensor and of the axis among the inputs of Split, SPLIT and SPLIT_V. None: the axis is a
    setting."""
    return {"SPLIT": (1, 0), "SPLIT_V": (0, 2)}.get(node.kind, (0, None))


def listed_integers(stated: Hashable) -> list[int]:
    """The integers of a list in the settings of a .tflite file, which holds (type, shape, bytes); none of another."""
    if not isinstance(stated, tuple) or len(stated) != 3 or not isinstance(stated[2], bytes):
        return []
    return [int(one) for one in np.frombuffer(stated[2], stated[0])]


def windows(node: FileNode, size: Sequence[int], kernel: Sequence[int] | None) -> tuple[Along, ...]:
    """The window along each spatial axis, for an input of these sizes. `kernel`: the sizes of the weights' window,
    where there are weights. Raises ValueError, which names the setting, for settings that are not understood."""
    rank = len(size)
    if node.kind in _TFLITE_WINDOWED:
        shape = tuple(kernel or (number(node, "filterHeight", 0), number(node, "filterWidth", 0)))
        strides: tuple[int, ...] = (number(node, "strideH", 1), number(node, "strideW", 1))
        dilations: tuple[int, ...] = (number(node, "dilationHFactor", 1) or 1, number(node, "dilationWFactor", 1) or 1)
        how, pads = {0: "SAME_UPPER", 1: "VALID"}.get(number(node, "padding", 0), "padding"), (0,) * (2 * rank)
    else:
        shape = tuple(kernel or integers(node, "kernel_shape", ()))
        strides, dilations = integers(node, "strides", (1,) * rank), integers(node, "dilations", (1,) * rank)
        pads = integers(node, "pads", (0,) * (2 * rank))
        stated = node.settings.get("auto_pad")
        how = stated[1].decode() if isinstance(stated, tuple) and isinstance(stated[1], bytes) else "NOTSET"
    if kernel and integers(node, "kernel_shape", kernel) != tuple(kernel):
        raise ValueError("kernel_shape")
    if not len(shape) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        raise ValueError("window")
    if min((*strides, *dilations), default=1) < 1:
        raise ValueError("stride or dilation")
    windows_of = []
    for axis in range(rank):
        reach = (shape[axis] - 1) * dilations[axis] + 1
        begin, end = pads[axis], pads[axis + rank]
        if how in ("SAME_UPPER", "SAME_LOWER"):
            total = max((-(-size[axis] // strides[axis]) - 1) * strides[axis] + reach - size[axis], 0)
            small, large = total // 2, total - total // 2
            begin, end = (small, large) if how == "SAME_UPPER" else (large, small)
        elif how == "VALID":
            begin = end = 0
        elif how != "NOTSET":
            raise ValueError("auto_pad")
        room = size[axis] + begin + end - reach
        positions = (-(-room // strides[axis]) if number(node, "ceil_mode", 0) else room // strides[axis]) + 1
        windows_of.append(Along(shape[axis], strides[axis], dilations[axis], begin, end, positions))
    return tuple(windows_of)
