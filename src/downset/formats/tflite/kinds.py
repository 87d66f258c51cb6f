"""Translation of TFLite's builtin operators to ONNX's: their kinds, their attributes, and which inputs they keep.

An operator without a counterpart in ONNX has the kind `tflite::NAME`; it is opaque, and plans can hold it. The layout
stays that of the file: channels last (attribute layout="NHWC"), and weights as they are stored. Operators of quantised
files compute on integers and have the same kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ACTIVATIONS", "NEW", "RENAMED", "TRANSLATED", "Translated"]

Shape = tuple[int, ...]
"""The shape of one input of an operator."""


@dataclass(frozen=True, slots=True)
class Translated:
    """An operator in ONNX's terms. `inputs`: the positions in the file of the inputs that the operator keeps, in ONNX's
    order; None if it keeps all inputs in the file's order."""

    kind: str
    attrs: Mapping[str, Any]
    inputs: tuple[int, ...] | None = None


PURE_CUSTOM = frozenset(
    {
        "Convolution2DTransposeBias",
        "Landmarks2TransformMatrix",
        "MaxPoolingWithArgmax2D",
        "MaxUnpooling2D",
        "SignalDelay",
        "SignalEnergy",
        "SignalFftAutoScale",
        "SignalFilterBank",
        "SignalFilterBankLog",
        "SignalFilterBankSpectralSubtraction",
        "SignalFilterBankSquareRoot",
        "SignalFramer",
        "SignalIrfft",
        "SignalOverlapAdd",
        "SignalPCAN",
        "SignalRfft",
        "SignalStacker",
        "SignalWindow",
        "TFLite_Detection_PostProcess",
        "TransformLandmarks",
        "TransformTensorBilinear",
        "ethos-u",
    }
)
"""Custom operators of LiteRT, MediaPipe and TFLite Micro that share nothing with other operators but tensors. Others
may."""

RENAMED: Mapping[str, str] = {
    "ABS": "Abs",
    "ARG_MAX": "ArgMax",
    "ARG_MIN": "ArgMin",
    "BROADCAST_TO": "Expand",
    "CAST": "Cast",
    "CEIL": "Ceil",
    "COS": "Cos",
    "DEQUANTIZE": "DequantizeLinear",
    "ELU": "Elu",
    "EQUAL": "Equal",
    "EXP": "Exp",
    "FLOOR": "Floor",
    "GATHER_ND": "GatherND",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "HARD_SWISH": "HardSwish",
    "IF": "If",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
    "LOG": "Log",
    "LOGICAL_AND": "And",
    "LOGICAL_NOT": "Not",
    "LOGICAL_OR": "Or",
    "LOGISTIC": "Sigmoid",
    "MAXIMUM": "Max",
    "MINIMUM": "Min",
    "NEG": "Neg",
    "POW": "Pow",
    "PRELU": "PRelu",
    "QUANTIZE": "QuantizeLinear",
    "RELU": "Relu",
    "ROUND": "Round",
    "SHAPE": "Shape",
    "SIGN": "Sign",
    "SIN": "Sin",
    "SQRT": "Sqrt",
    "TANH": "Tanh",
    "TILE": "Tile",
    "WHERE": "NonZero",
    "WHILE": "Loop",
    "SELECT": "Where",
    "SELECT_V2": "Where",
    "ADD_N": "Sum",
    "GELU": "Gelu",
    "TRANSPOSE": "Transpose",
    "RESHAPE": "Reshape",
    "EXPAND_DIMS": "Unsqueeze",
    "PAD": "Pad",
    "PADV2": "Pad",
    "STRIDED_SLICE": "tflite::STRIDED_SLICE",
    "RSQRT": "tflite::RSQRT",
    "SQUARE": "tflite::SQUARE",
}
"""Kinds of operators whose inputs and meaning are as in ONNX. Those with a `tflite::` kind differ, and are opaque."""

ACTIVATIONS = {1: "Relu", 2: "ReluN1To1", 3: "Relu6", 4: "Tanh", 5: "SignBit"}


def _fused(options: Any) -> dict[str, Any]:
    code = getattr(options, "fusedActivationFunction", 0)
    return {"activation": ACTIVATIONS[code]} if code in ACTIVATIONS else {}


def _pads(padding: int, size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]):  # type: ignore[no-untyped-def]
    """ONNX pads [top, left, bottom, right] of TFLite's SAME (0) or VALID (1). If SAME needs an odd number of
    rows or columns, the odd one is at the end."""
    if padding == 1:
        return [0, 0, 0, 0]
    begin, end = [], []
    for extent, window, stride, dilation in zip(size, kernel, strides, dilations, strict=True):
        covered = (window - 1) * dilation + 1
        total = max((-(-extent // stride) - 1) * stride + covered - extent, 0)
        begin.append(total // 2)
        end.append(total - total // 2)
    return [*begin, *end]


def _convolution(options: Any, shapes: Sequence[Shape]) -> Translated:
    image, weights = shapes[0], shapes[1]
    strides = [options.strideH, options.strideW]
    dilations = [max(options.dilationHFactor, 1), max(options.dilationWFactor, 1)]
    kernel = list(weights[1:3])
    depth = weights[3] or 1
    attrs = {
        "layout": "NHWC",
        "kernel_shape": kernel,
        "strides": strides,
        "dilations": dilations,
        "pads": _pads(options.padding, image[1:3], kernel, strides, dilations),
        "group": max(image[3] // depth, 1),
        **_fused(options),
    }
    return Translated("Conv", attrs)


def _depthwise(options: Any, shapes: Sequence[Shape]) -> Translated:
    translated = _convolution(options, shapes)
    # weights are (1, height, width, channels x multiplier)
    return Translated("Conv", {**translated.attrs, "group": shapes[0][3], "depthwise": 1})


def _pool(kind: str) -> Callable[[Any, Sequence[Shape]], Translated]:
    def translate(options: Any, shapes: Sequence[Shape]) -> Translated:
        kernel, strides = [options.filterHeight, options.filterWidth], [options.strideH, options.strideW]
        attrs = {
            "layout": "NHWC",
            "kernel_shape": kernel,
            "strides": strides,
            "pads": _pads(options.padding, shapes[0][1:3], kernel, strides, [1, 1]),
            "count_include_pad": 0,
            **_fused(options),
        }
        return Translated(kind, attrs)

    return translate


def _arithmetic(kind: str) -> Callable[[Any, Sequence[Shape]], Translated]:
    return lambda options, shapes: Translated(kind, _fused(options))


def _concat(options: Any, shapes: Sequence[Shape]) -> Translated:
    layout = {"layout": "NHWC"} if len(shapes[0]) == 4 else {}
    return Translated("Concat", {"axis": options.axis, **layout, **_fused(options)})


def _fully_connected(options: Any, shapes: Sequence[Shape]) -> Translated:
    # x · Wᵀ + b over the last axis; x may have any rank
    return Translated("Gemm", {"transB": 1, "layout": "NHWC", "keep_dims": int(options.keepNumDims), **_fused(options)})


def _reduce(kind: str) -> Callable[[Any, Sequence[Shape]], Translated]:
    return lambda options, shapes: Translated(kind, {"keepdims": int(options.keepDims)})


def _softmax(options: Any, shapes: Sequence[Shape]) -> Translated:
    return Translated("Softmax", {"axis": -1, "beta": float(options.beta)})


def _resize(mode: str) -> Callable[[Any, Sequence[Shape]], Translated]:
    def translate(options: Any, shapes: Sequence[Shape]) -> Translated:
        if options.alignCorners:
            transform = "align_corners"
        else:
            transform = "half_pixel" if options.halfPixelCenters else "asymmetric"
        return Translated(
            "Resize", {"layout": "NHWC", "mode": mode, "coordinate_transformation_mode": transform}, inputs=(0, 1)
        )

    return translate


def _leaky(options: Any, shapes: Sequence[Shape]) -> Translated:
    return Translated("LeakyRelu", {"alpha": float(options.alpha)})


def _block(kind: str) -> Callable[[Any, Sequence[Shape]], Translated]:
    return lambda options, shapes: Translated(kind, {"layout": "NHWC", "blocksize": options.blockSize})


def _matmul(options: Any, shapes: Sequence[Shape]) -> Translated:
    return Translated("MatMul", {"transA": int(options.adjX), "transB": int(options.adjY)})


def _pack(options: Any, shapes: Sequence[Shape]) -> Translated:
    return Translated("tflite::PACK", {"axis": options.axis})


def _unpack(options: Any, shapes: Sequence[Shape]) -> Translated:
    return Translated("tflite::UNPACK", {"axis": options.axis})


def _transposed(options: Any, shapes: Sequence[Shape]) -> Translated:
    return Translated("tflite::TRANSPOSE_CONV", {"strides": [options.strideH, options.strideW]})


def _clip(low: float, high: float) -> Callable[[Any, Sequence[Shape]], Translated]:
    return lambda options, shapes: Translated("Clip", {"min": low, "max": high})


def _mirror(options: Any, shapes: Sequence[Shape]) -> Translated:
    return Translated("Pad", {"mode": "reflect" if options.mode == 0 else "symmetric"})


def _gather(options: Any, shapes: Sequence[Shape]) -> Translated:
    batches = {"batch_dims": int(options.batchDims)} if getattr(options, "batchDims", 0) else {}
    return Translated("Gather", {"axis": options.axis, **batches})


def _squeezed(options: Any, shapes: Sequence[Shape]) -> Translated:
    axes = getattr(options, "squeezeDims", None)
    return Translated("Squeeze", {} if axes is None or not len(axes) else {"axes": [int(axis) for axis in axes]})


def _strided_slice(options: Any, shapes: Sequence[Shape]) -> Translated:
    masks = {
        name: getattr(options, name)
        for name in ("beginMask", "endMask", "ellipsisMask", "newAxisMask", "shrinkAxisMask")
    }
    return Translated("tflite::STRIDED_SLICE", masks)


def _fixed(kind: str, **attrs: Any) -> Callable[[Any, Sequence[Shape]], Translated]:
    return lambda options, shapes: Translated(kind, attrs)


TRANSLATED: Mapping[str, Callable[[Any, Sequence[Shape]], Translated]] = {
    "ADD": _arithmetic("Add"),
    "AVERAGE_POOL_2D": _pool("AveragePool"),
    "BATCH_MATMUL": _matmul,
    "CONCATENATION": _concat,
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _depthwise,
    "DEPTH_TO_SPACE": _block("DepthToSpace"),
    "DIV": _arithmetic("Div"),
    "FULLY_CONNECTED": _fully_connected,
    "GATHER": _gather,
    "LEAKY_RELU": _leaky,
    "LOG_SOFTMAX": _fixed("LogSoftmax", axis=-1),
    "MAX_POOL_2D": _pool("MaxPool"),
    "MEAN": _reduce("ReduceMean"),
    "MIRROR_PAD": _mirror,
    "MUL": _arithmetic("Mul"),
    "PACK": _pack,
    "REDUCE_MAX": _reduce("ReduceMax"),
    "REDUCE_MIN": _reduce("ReduceMin"),
    "REDUCE_PROD": _reduce("ReduceProd"),
    "RELU6": _clip(0.0, 6.0),
    "RELU_N1_TO_1": _clip(-1.0, 1.0),
    "RESIZE_BILINEAR": _resize("linear"),
    "RESIZE_NEAREST_NEIGHBOR": _resize("nearest"),
    "SOFTMAX": _softmax,
    "SPACE_TO_DEPTH": _block("SpaceToDepth"),
    "SQUEEZE": _squeezed,
    "SPLIT": lambda options, shapes: Translated("Split", {"num_outputs": options.numSplits}, inputs=(1, 0)),
    "SPLIT_V": lambda options, shapes: Translated("tflite::SPLIT_V", {}),
    "STRIDED_SLICE": _strided_slice,
    "SUB": _arithmetic("Sub"),
    "SUM": _reduce("ReduceSum"),
    "TRANSPOSE_CONV": _transposed,
    "UNPACK": _unpack,
}
"""Functions that translate operators with attributes, from their options and the shapes of their inputs."""

NEW: Mapping[str, tuple[str, str]] = {
    "Add": ("ADD", "AddOptions"),
    "Concat": ("CONCATENATION", "ConcatenationOptions"),
    "Pad": ("PAD", "PadOptions"),
    "Reshape": ("RESHAPE", "ReshapeOptions"),
    "Sum": ("ADD_N", "AddNOptions"),
    "tflite::SLICE": ("SLICE", "SliceOptions"),
}
"""The builtin operator and the class of options of each kind that a rewrite may add to a file."""
