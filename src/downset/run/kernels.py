"""The one kernel table: operator kind -> PyTorch call. Every executor of the project computes with it.

A kernel gets the operator, its input tensors (None where absent) and the shapes of its outputs, and returns the
outputs. Channels-last operators (attribute layout="NHWC") are computed in place of the file's layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from downset.errors import UnsupportedError
from downset.graph import Graph, Op
from downset.run import kernels_nn as nn
from downset.run.library import torch_library

__all__ = ["KERNELS", "check_kernels"]

Kernel = Callable[[Op, Sequence[Any], Sequence[tuple[int, ...]]], list[Any]]


def check_kernels(graph: Graph) -> None:
    """Raise UnsupportedError naming the first operator without a kernel, and how many of its kind there are."""
    counts = Counter(op.kind for op in graph.ops)
    for op in graph.ops:
        if op.kind not in KERNELS:
            others = {kind: count for kind, count in counts.items() if kind not in KERNELS and kind != op.kind}
            more = f"; also lacking: {', '.join(f'{kind} ({n})' for kind, n in others.items())}" if others else ""
            raise UnsupportedError(
                f"no kernel for operator {op.name!r} of kind {op.kind} ({counts[op.kind]} of it){more}"
            )
    quantised = next((t for op in graph.ops for t in op.outputs if t >= 0 and graph.tensors[t].quantization), None)
    if quantised is not None:
        raise UnsupportedError(f"tensor {graph.tensors[quantised].name!r} is quantised; the kernels compute on floats")


def _activate(op: Op, result: Any) -> list[Any]:
    return [nn.activation(op.attrs.get("activation"), op.attrs.get("activation_params", ()), result)]


def _unary(name: str) -> Kernel:
    return lambda op, inputs, shapes: [getattr(torch_library(), name)(inputs[0])]


def _binary(name: str) -> Kernel:
    return lambda op, inputs, shapes: _activate(op, getattr(torch_library(), name)(inputs[0], inputs[1]))


def _many(name: str) -> Kernel:
    def kernel(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        total = inputs[0]
        for other in inputs[1:]:
            total = getattr(torch_library(), name)(total, other)
        return _activate(op, total)

    return kernel


def _mean(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return [sum(inputs[1:], inputs[0]) / len(inputs)]


def _functional(name: str, **defaults: float) -> Kernel:
    """torch.nn.functional.NAME(x, **attributes); ONNX attribute names, given as attribute=default."""

    def kernel(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        arguments = [float(op.attrs.get(key, value)) for key, value in defaults.items()]
        return [getattr(torch_library().nn.functional, name)(inputs[0], *arguments)]

    return kernel


def _axes(op: Op, inputs: Sequence[Any], position: int = 1) -> list[int]:
    if len(inputs) > position and inputs[position] is not None:
        return [int(axis) for axis in inputs[position].reshape(-1).tolist()]
    found = op.attrs.get("axes", op.attrs.get("axis", []))
    return [int(axis) for axis in found] if isinstance(found, (list, tuple)) else [int(found)]


def _reduce(name: str) -> Kernel:
    def kernel(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        axes = _axes(op, inputs)
        if not axes and op.attrs.get("noop_with_empty_axes"):
            return [inputs[0]]
        axes = axes or list(range(inputs[0].dim()))
        return [getattr(torch_library(), name)(inputs[0], dim=axes).reshape(shapes[0])]

    return kernel


def _reshape(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return [inputs[0].reshape(shapes[0])]


def _concat(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return _activate(op, torch_library().cat(list(inputs), dim=int(op.attrs.get("axis", 0))))


def _transpose(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    order = op.attrs.get("perm") or (_axes(op, inputs) if len(inputs) > 1 else list(range(inputs[0].dim()))[::-1])
    return [inputs[0].permute(*order)]


def _split(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    if op.attrs.get("num_outputs") and len(inputs) > 1 and inputs[1] is not None and "axis" not in op.attrs:
        axis = int(inputs[1])  # TFLite: the second input is the axis
    else:
        axis = int(op.attrs.get("axis", 0))
    return list(torch_library().split(inputs[0], [shape[axis] for shape in shapes], dim=axis))


def _slice(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    torch = torch_library()
    values = inputs[0]
    if len(inputs) > 1:
        starts, ends = inputs[1].tolist(), inputs[2].tolist()
        axes = inputs[3].tolist() if len(inputs) > 3 and inputs[3] is not None else list(range(len(starts)))
        strides = inputs[4].tolist() if len(inputs) > 4 and inputs[4] is not None else [1] * len(starts)
    else:
        starts, ends = op.attrs["starts"], op.attrs["ends"]
        axes, strides = op.attrs.get("axes", list(range(len(starts)))), [1] * len(starts)
    for start, end, axis, stride in zip(starts, ends, axes, strides, strict=True):
        chosen = range(values.shape[axis])[slice(start, end if abs(end) < 1 << 31 else None, stride)]
        if stride < 0 and end < -values.shape[axis]:
            chosen = range(values.shape[axis])[slice(start, None, stride)]
        if stride == 1 and chosen:
            values = values.narrow(axis, chosen.start, len(chosen))  # a view
        else:
            index = torch.tensor(list(chosen), dtype=torch.long, device=values.device)
            values = torch.index_select(values, axis, index)
    return [values]


def _strided_slice(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """TFLite's: begin, end and stride by dimension, with masks; ellipsis and new axes are not used by converters."""
    torch = torch_library()
    if op.attrs.get("ellipsisMask") or op.attrs.get("newAxisMask"):
        raise UnsupportedError(f"operator {op.name!r}: STRIDED_SLICE with an ellipsis or a new axis has no kernel")
    values = inputs[0]
    begin, end, strides = (item.reshape(-1).tolist() for item in inputs[1:4])
    for axis, (low, high, stride) in enumerate(zip(begin, end, strides, strict=True)):
        bit = 1 << axis
        if op.attrs.get("shrinkAxisMask", 0) & bit:
            chosen = [range(values.shape[axis])[low]]
        else:
            whole = slice(
                None if op.attrs.get("beginMask", 0) & bit else low,
                None if op.attrs.get("endMask", 0) & bit else high,
                stride,
            )
            chosen = list(range(values.shape[axis])[whole])
        values = torch.index_select(values, axis, torch.tensor(chosen, dtype=torch.long))
    return [values.reshape(shapes[0])]


def _gather(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    axis = int(op.attrs.get("axis", 0)) % max(inputs[0].dim(), 1)
    index = inputs[1].long()
    index = index + (index < 0) * inputs[0].shape[axis]
    return [torch_library().index_select(inputs[0], axis, index.reshape(-1)).reshape(shapes[0])]


def _gather_elements(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    axis, index = int(op.attrs.get("axis", 0)), inputs[1].long()
    return [torch_library().gather(inputs[0], axis, index + (index < 0) * inputs[0].shape[axis])]


def _cast(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return [inputs[0]]  # the executor stores results in the element type the graph states


def _clip(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    low = inputs[1] if len(inputs) > 1 and inputs[1] is not None else op.attrs.get("min")
    high = inputs[2] if len(inputs) > 2 and inputs[2] is not None else op.attrs.get("max")
    bounds = [None if bound is None else float(bound) for bound in (low, high)]
    return [inputs[0] if bounds == [None, None] else torch_library().clamp(inputs[0], *bounds)]


def _arg(name: str) -> Kernel:
    def kernel(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        axis = int(inputs[1]) if len(inputs) > 1 else int(op.attrs.get("axis", 0))
        if not op.attrs.get("select_last_index"):
            return [getattr(torch_library(), name)(inputs[0], dim=axis).reshape(shapes[0])]
        last = getattr(torch_library(), name)(inputs[0].flip(axis), dim=axis)
        return [(inputs[0].shape[axis] - 1 - last).reshape(shapes[0])]

    return kernel


def _where(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return [torch_library().where(inputs[0].bool(), inputs[1], inputs[2])]


def _pack(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return [torch_library().stack(list(inputs), dim=int(op.attrs["axis"]))]


def _unpack(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return list(torch_library().unbind(inputs[0], dim=int(op.attrs["axis"])))


def _split_v(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    axis = int(inputs[2])
    return list(torch_library().split(inputs[0], [shape[axis] for shape in shapes], dim=axis))


def _matmul(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    first = inputs[0].transpose(-1, -2) if op.attrs.get("transA") else inputs[0]
    second = inputs[1].transpose(-1, -2) if op.attrs.get("transB") else inputs[1]
    return [torch_library().matmul(first, second) * float(op.attrs.get("alpha", 1.0))]


def _shape(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return [torch_library().tensor(list(inputs[0].shape)[int(op.attrs.get("start", 0)) : op.attrs.get("end")])]


def _expand(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return [inputs[0].expand(shapes[0])]


def _tile(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return [inputs[0].repeat(*[int(times) for times in inputs[1].reshape(-1).tolist()])]


def _constant(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    raise UnsupportedError(f"the value of constant {op.name!r} is not known")


def _dequantize(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    if not inputs[0].is_floating_point():
        raise UnsupportedError(f"operator {op.name!r}: the kernels compute on floats, not on quantised values")
    return [inputs[0]]  # TFLite's float16 weights


def _identity(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return [inputs[0]]


def _dropout(op: Op, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return [inputs[0], torch_library().ones_like(inputs[0])][: len(op.outputs)]


KERNELS: Mapping[str, Kernel] = {
    "Abs": _unary("abs"),
    "Add": _binary("add"),
    "And": _binary("logical_and"),
    "ArgMax": _arg("argmax"),
    "ArgMin": _arg("argmin"),
    "AveragePool": nn.average_pool,
    "BatchNormalization": nn.batch_normalization,
    "Cast": _cast,
    "Ceil": _unary("ceil"),
    "Clip": _clip,
    "Concat": _concat,
    "Constant": _constant,
    "Conv": nn.convolution,
    "ConvTranspose": nn.transposed_convolution,
    "Cos": _unary("cos"),
    "DepthToSpace": nn.depth_to_space,
    "DequantizeLinear": _dequantize,
    "Div": _binary("div"),
    "Dropout": _dropout,
    "Elu": _functional("elu", alpha=1.0),
    "Equal": _binary("eq"),
    "Erf": _unary("erf"),
    "Exp": _unary("exp"),
    "Expand": _expand,
    "Flatten": _reshape,
    "Floor": _unary("floor"),
    "Gather": _gather,
    "GatherElements": _gather_elements,
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
    "Mul": _binary("mul"),
    "Neg": _unary("neg"),
    "Not": _unary("logical_not"),
    "Or": _binary("logical_or"),
    "PRelu": nn.prelu,
    "Pad": nn.pad,
    "Pow": _binary("pow"),
    "RMSNormalization": nn.rms_normalization,
    "Reciprocal": _unary("reciprocal"),
    "ReduceMax": _reduce("amax"),
    "ReduceMean": _reduce("mean"),
    "ReduceMin": _reduce("amin"),
    "ReduceSum": _reduce("sum"),
    "Relu": _unary("relu"),
    "Reshape": _reshape,
    "Resize": nn.resize,
    "Round": _unary("round"),
    "Selu": nn.selu,
    "Shape": _shape,
    "Sigmoid": _unary("sigmoid"),
    "Sign": _unary("sign"),
    "Sin": _unary("sin"),
    "Slice": _slice,
    "Softmax": nn.softmax("softmax"),
    "Softplus": _functional("softplus"),
    "Softsign": _functional("softsign"),
    "SpaceToDepth": nn.space_to_depth,
    "Split": _split,
    "Sqrt": _unary("sqrt"),
    "Squeeze": _reshape,
    "Sub": _binary("sub"),
    "Sum": _many("add"),
    "Tanh": _unary("tanh"),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
    "Upsample": nn.resize,
    "Where": _where,
    "com.microsoft::FusedConv": nn.convolution,
    "com.microsoft::FusedGemm": nn.gemm,
    "com.microsoft::FusedMatMul": _matmul,
    "com.microsoft::Gelu": nn.gelu,
    "com.microsoft::QuickGelu": nn.quick_gelu,
    "com.microsoft::SkipLayerNormalization": nn.skip_layer_normalization,
    "tflite::PACK": _pack,
    "tflite::RSQRT": _unary("rsqrt"),
    "tflite::SPLIT_V": _split_v,
    "tflite::SQUARE": _unary("square"),
    "tflite::STRIDED_SLICE": _strided_slice,
    "tflite::UNPACK": _unpack,
}
