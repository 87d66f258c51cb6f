"""The kernel table: the PyTorch kernel of every operator kind. Every executor of the project computes with it.

A kernel takes the operator, its input tensors (None where absent) and the shapes of its outputs, and returns the
outputs. Tensors of channels-last operators (attribute layout="NHWC") keep that layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from downset.errors import UnsupportedError
from downset.extras import torch_library
from downset.graph.core import ABSENT, Graph, Op
from downset.kernels import nn as nn
from downset.kernels import shape as shape
from downset.kernels import space as space
from downset.kernels.aten import aten_call, is_pure_aten
from downset.kernels.layout import Inputs, Shapes
from downset.text import brief

__all__ = ["KERNELS", "check_kernels", "compute", "has_kernel"]

Kernel = Callable[[Op, Inputs, Shapes], list[Any]]


def has_kernel(kind: str) -> bool:
    """Whether operators of this kind can be computed."""
    return kind in KERNELS or is_pure_aten(kind)


def check_kernels(graph: Graph) -> None:
    """Raise UnsupportedError that names the first operator without a kernel and counts those of its kind, or the first
    quantised tensor that an operator makes. Operators that make only known constants need no kernel."""
    outputs = [[tensor for tensor in op.outputs if tensor != ABSENT] for op in graph.ops]
    constant = [bool(tensors) and all(tensor in graph.constants for tensor in tensors) for tensors in outputs]
    ops = [op for op, constant in zip(graph.ops, constant, strict=True) if not constant]
    counts = Counter(op.kind for op in ops)
    for op in ops:
        if not has_kernel(op.kind):
            others = {kind: count for kind, count in counts.items() if not has_kernel(kind) and kind != op.kind}
            more = f"; also missing: {', '.join(f'{kind} ({n})' for kind, n in others.items())}" if others else ""
            raise UnsupportedError(
                f"no kernel for operator {op.name!r} of kind {op.kind} ({counts[op.kind]} of it){more}; fit, order "
                "and split plan it without these kernels"
            )
    quantised = next((t for op in ops for t in op.outputs if t != ABSENT and graph.tensors[t].quantization), None)
    if quantised is not None:
        raise UnsupportedError(f"tensor {graph.tensors[quantised].name!r} is quantised; the kernels compute on floats")


def compute(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    """The outputs of an operator. Raises UnsupportedError, with its name, where the kernel refuses inputs or
    attributes."""
    try:
        return (KERNELS.get(op.kind) or aten_call)(op, inputs, shapes)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if not isinstance(error, RuntimeError) or _misfits(error):
            raise UnsupportedError(f"operator {op.name!r} ({op.kind}) cannot be computed: {brief(error)}") from error
        raise


def _misfits(error: RuntimeError) -> bool:
    """Whether PyTorch refuses the arguments; other errors are about memory or the device."""
    own = type(error) in (RuntimeError, NotImplementedError)
    return own and "allocate memory" not in str(error) and "CUDA" not in str(error)


def _activate(op: Op, result: Any) -> list[Any]:
    return [nn.activation(op.attrs.get("activation"), op.attrs.get("activation_params", ()), result)]


def _unary(name: str) -> Kernel:
    return lambda op, inputs, shapes: [getattr(torch_library(), name)(inputs[0])]


def _binary(name: str) -> Kernel:
    return lambda op, inputs, shapes: _activate(op, getattr(torch_library(), name)(inputs[0], inputs[1]))


def _quotient(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    """A quotient; of integers it is rounded towards zero. Integer division by 0, and of the least integer by -1, would
    end the process. ONNX does not define them: here the first gives 0, the second the least integer."""
    torch, (dividend, divisor) = torch_library(), inputs
    if dividend.is_floating_point() or divisor.is_floating_point():
        return _activate(op, torch.div(dividend, divisor))
    negated = divisor == -1
    whole = torch.div(dividend, divisor.masked_fill((divisor == 0) | negated, 1), rounding_mode="trunc")
    return _activate(op, torch.where(negated, -dividend, whole).masked_fill(divisor == 0, 0))


def _many(name: str) -> Kernel:
    def kernel(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
        total = inputs[0]
        for other in inputs[1:]:
            total = getattr(torch_library(), name)(total, other)
        return _activate(op, total)

    return kernel


def _mean(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    return [sum(inputs[1:], inputs[0]) / len(inputs)]


def _functional(name: str, **defaults: float) -> Kernel:
    """The kernel torch.nn.functional.NAME(x, ...) with ONNX attributes as arguments, in the given sequence. `defaults`
    states their defaults."""

    def kernel(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
        arguments = [float(op.attrs.get(key, value)) for key, value in defaults.items()]
        return [getattr(torch_library().nn.functional, name)(inputs[0], *arguments)]

    return kernel


def _reduce(name: str) -> Kernel:
    def kernel(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
        axes = shape.axes_of(op, inputs)
        if not axes and op.attrs.get("noop_with_empty_axes"):
            return [inputs[0]]
        axes = axes or list(range(inputs[0].dim()))
        return [getattr(torch_library(), name)(inputs[0], dim=axes).reshape(shapes[0])]

    return kernel


def _concat(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    return _activate(op, torch_library().cat(list(inputs), dim=int(op.attrs.get("axis", 0))))


def _cast(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    return [inputs[0]]  # the executor converts results to the element type that the graph states


def _clip(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    low = inputs[1] if len(inputs) > 1 and inputs[1] is not None else op.attrs.get("min")
    high = inputs[2] if len(inputs) > 2 and inputs[2] is not None else op.attrs.get("max")
    bounds = [None if bound is None else float(bound) for bound in (low, high)]
    return [inputs[0] if bounds == [None, None] else torch_library().clamp(inputs[0], *bounds)]


def _arg(name: str) -> Kernel:
    def kernel(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
        axis = int(inputs[1]) if len(inputs) > 1 else int(op.attrs.get("axis", 0))
        if not op.attrs.get("select_last_index"):
            return [getattr(torch_library(), name)(inputs[0], dim=axis).reshape(shapes[0])]
        last = getattr(torch_library(), name)(inputs[0].flip(axis), dim=axis)
        return [(inputs[0].shape[axis] - 1 - last).reshape(shapes[0])]

    return kernel


def _where(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    return [torch_library().where(inputs[0].bool(), inputs[1], inputs[2])]


def _matmul(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    first = inputs[0].transpose(-1, -2) if op.attrs.get("transA") else inputs[0]
    second = inputs[1].transpose(-1, -2) if op.attrs.get("transB") else inputs[1]
    return [nn.scaled(torch_library().matmul(first, second), op.attrs.get("alpha", 1.0))]


def _constant(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    raise UnsupportedError(f"the value of constant {op.name!r} is not known")


def _sign(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    values, torch = inputs[0], torch_library()
    result = torch.sign(values)  # 0 for NaN; ONNX Runtime returns NaN
    return [torch.where(values.isnan(), values, result) if values.is_floating_point() else result]


def _dequantize(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    if not inputs[0].is_floating_point():
        raise UnsupportedError(f"operator {op.name!r}: the kernels compute on floats, not on quantised values")
    return [inputs[0]]  # TFLite's float16 weights


def _infinite(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    signs = [op.attrs.get(f"detect_{name}", 1) for name in ("negative", "positive")]
    torch, (below, above) = torch_library(), signs
    return [torch.isinf(inputs[0]) & ((inputs[0] < 0) & bool(below) | (inputs[0] > 0) & bool(above))]


def _identity(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    return [inputs[0]]


def _dropout(op: Op, inputs: Inputs, shapes: Shapes) -> list[Any]:
    return [inputs[0], torch_library().ones_like(inputs[0])][: len(op.outputs)]


KERNELS: Mapping[str, Kernel] = {
    "Abs": _unary("abs"),
    "Acos": _unary("acos"),
    "Acosh": _unary("acosh"),
    "Add": _binary("add"),
    "And": _binary("logical_and"),
    "ArgMax": _arg("argmax"),
    "ArgMin": _arg("argmin"),
    "Asin": _unary("asin"),
    "Asinh": _unary("asinh"),
    "Atan": _unary("atan"),
    "Atanh": _unary("atanh"),
    "AveragePool": nn.average_pool,
    "BatchNormalization": nn.batch_normalization,
    "Cast": _cast,
    "Ceil": _unary("ceil"),
    "Celu": _functional("celu", alpha=1.0),
    "Clip": _clip,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": shape.constant_of_shape,
    "Conv": nn.convolution,
    "ConvTranspose": nn.transposed_convolution,
    "Cos": _unary("cos"),
    "Cosh": _unary("cosh"),
    "DepthToSpace": space.depth_to_space,
    "DequantizeLinear": _dequantize,
    "Div": _quotient,
    "Dropout": _dropout,
    "Elu": _functional("elu", alpha=1.0),
    "Equal": _binary("eq"),
    "Erf": _unary("erf"),
    "Exp": _unary("exp"),
    "Expand": shape.expand,
    "Flatten": shape.reshape,
    "Floor": _unary("floor"),
    "Gather": shape.gather,
    "GatherElements": shape.gather_elements,
    "Gelu": nn.gelu,
    "Gemm": nn.gemm,
    "GlobalAveragePool": nn.global_pool("mean"),
    "GlobalMaxPool": nn.global_pool("amax"),
    "Greater": _binary("gt"),
    "GreaterOrEqual": _binary("ge"),
    "HardSigmoid": nn.hard_sigmoid,
    "HardSwish": _functional("hardswish"),
    "Identity": _identity,
    "InstanceNormalization": nn.instance_normalization,
    "IsInf": _infinite,
    "IsNaN": _unary("isnan"),
    "LRN": nn.local_response_normalization,
    "LayerNormalization": nn.layer_normalization,
    "LeakyRelu": _functional("leaky_relu", alpha=0.01),
    "Less": _binary("lt"),
    "LessOrEqual": _binary("le"),
    "Log": _unary("log"),
    "LogSoftmax": nn.softmax("log_softmax"),
    "MatMul": _matmul,
    "Max": _many("maximum"),
    "MaxPool": nn.max_pool,
    "Mean": _mean,
    "Min": _many("minimum"),
    "Mish": _functional("mish"),
    "Mul": _binary("mul"),
    "Neg": _unary("neg"),
    "Not": _unary("logical_not"),
    "Or": _binary("logical_or"),
    "PRelu": nn.prelu,
    "Pad": space.pad,
    "Pow": _binary("pow"),
    "RMSNormalization": nn.rms_normalization,
    "Reciprocal": _unary("reciprocal"),
    "ReduceMax": _reduce("amax"),
    "ReduceMean": _reduce("mean"),
    "ReduceMin": _reduce("amin"),
    "ReduceSum": _reduce("sum"),
    "Relu": _unary("relu"),
    "Reshape": shape.reshape,
    "Resize": space.resize,
    "Round": _unary("round"),
    "Selu": nn.selu,
    "Shape": shape.shape,
    "Shrink": nn.shrink,
    "Sigmoid": _unary("sigmoid"),
    "Sign": _sign,
    "Sin": _unary("sin"),
    "Sinh": _unary("sinh"),
    "Slice": shape.slices,
    "Softmax": nn.softmax("softmax"),
    "Softplus": _functional("softplus"),
    "Softsign": _functional("softsign"),
    "SpaceToDepth": space.space_to_depth,
    "Split": shape.split,
    "Sqrt": _unary("sqrt"),
    "Squeeze": shape.reshape,
    "Sub": _binary("sub"),
    "Sum": _many("add"),
    "Swish": nn.swish(1.0),
    "Tan": _unary("tan"),
    "Tanh": _unary("tanh"),
    "ThresholdedRelu": nn.thresholded_relu,
    "Tile": shape.tile,
    "Transpose": shape.transpose,
    "Unsqueeze": shape.reshape,
    "Upsample": space.resize,
    "Where": _where,
    "Xor": _binary("logical_xor"),
    "com.microsoft::FusedConv": nn.convolution,
    "com.microsoft::FusedGemm": nn.gemm,
    "com.microsoft::FusedMatMul": _matmul,
    "com.microsoft::Gelu": nn.gelu,
    "com.microsoft::QuickGelu": nn.swish(1.702),
    "com.microsoft::SkipLayerNormalization": nn.skip_layer_normalization,
    "tflite::PACK": shape.pack,
    "tflite::RSQRT": _unary("rsqrt"),
    "tflite::SPLIT_V": shape.split_v,
    "tflite::SQUARE": _unary("square"),
    "tflite::STRIDED_SLICE": shape.strided_slice,
    "tflite::UNPACK": shape.unpack,
}
