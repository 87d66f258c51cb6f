"""Which rows (or columns) of its inputs an operator reads to make given rows of its output: the halo arithmetic.

Axis 0 is rows, 1 is columns. Tensors of rank 4 have both; every other tensor counts as one row that is always wanted
whole. Layout is the graph's: NCHW, or NHWC where its operators say so. Intervals and maps are those of `rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from downset.errors import UnsupportedError
from downset.graph import ABSENT, Graph, Op
from downset.rows import SAME, AxisMap, Interval

__all__ = [
    "Window",
    "channels_last",
    "extent",
    "input_interval",
    "input_map",
    "is_whole",
    "pad_sides",
    "spatial_axis",
    "window",
]


class Window(NamedTuple):
    """A sliding window along one axis; `reach` is dilation · (kernel - 1) + 1."""

    kernel: int
    stride: int
    dilation: int
    pad_begin: int
    pad_end: int

    @property
    def reach(self) -> int:
        return self.dilation * (self.kernel - 1) + 1


_CONVOLUTIONS = {"Conv", "com.microsoft::FusedConv"}
_POOLS = {"MaxPool", "AveragePool"}
_POINTWISE = {
    "Abs", "Add", "And", "BatchNormalization", "Cast", "Ceil", "Clip", "Cos", "DequantizeLinear", "Div", "Dropout",
    "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
    "LRN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mul", "Neg", "Not", "Or", "PRelu", "Pow",
    "QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt",
    "Sub", "Sum", "Tanh", "Where", "Xor", "com.microsoft::Gelu", "com.microsoft::QuickGelu", "tflite::RSQRT",
    "tflite::SQUARE",
}  # fmt: skip
_WHOLE = {
    "ArgMax", "ArgMin", "Constant", "Expand", "Flatten", "Gather", "GatherElements", "Gemm", "GlobalAveragePool",
    "GlobalMaxPool", "InstanceNormalization", "MatMul", "Reshape", "Shape", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    "com.microsoft::FusedGemm", "com.microsoft::FusedMatMul", "tflite::PACK", "tflite::UNPACK",
}  # fmt: skip
_REDUCTIONS = {"ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"}
_ALONG_AXIS = {"Concat": 0, "Split": 0, "Softmax": -1, "LogSoftmax": -1}
"""Kinds that mix positions along one axis only, with that attribute's default: elsewhere they are pointwise."""


def channels_last(graph: Graph) -> bool:
    """Whether the graph's tensors of rank 4 are NHWC."""
    if graph.source.format in ("onnx", "torch"):
        return False
    for op in graph.ops:
        # Fully connected layers say NHWC for "over the last axis", also in channels-first graphs.
        if op.attrs.get("layout") == "NHWC" and op.kind != "Gemm":
            return True
        if op.kind in _CONVOLUTIONS | _POOLS:
            return False  # they always say it
    return False


def spatial_axis(graph: Graph, tensor: int, axis: int) -> int | None:
    """The dimension of a tensor that is its rows (0) or columns (1); None where it has neither."""
    if len(graph.tensors[tensor].shape) != 4:
        return None
    return axis + (1 if channels_last(graph) else 2)


def extent(graph: Graph, tensor: int, axis: int = 0) -> int:
    """How many rows (or columns) a tensor has; 1 for one without any."""
    dimension = spatial_axis(graph, tensor, axis)
    return 1 if dimension is None else graph.tensors[tensor].shape[dimension]


def window(graph: Graph, op: Op, axis: int) -> Window:
    """The window of a convolution or pool along rows (0) or columns (1), `auto_pad` resolved."""
    last = channels_last(graph)
    if op.kind in _CONVOLUTIONS:
        shape = graph.tensors[op.inputs[1]].shape
        kernel = shape[1 + axis] if last else shape[2 + axis]
    else:
        kernel = op.attrs["kernel_shape"][axis]
    stride = (op.attrs.get("strides") or (1, 1))[axis]
    dilation = (op.attrs.get("dilations") or (1, 1))[axis]
    mode = op.attrs.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        size = extent(graph, op.inputs[0], axis)
        total = max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
        small, large = total // 2, total - total // 2
        return Window(kernel, stride, dilation, *((small, large) if mode == "SAME_UPPER" else (large, small)))
    pads = op.attrs.get("pads") if mode in ("NOTSET", "") else None
    begin, end = (pads[axis], pads[axis + 2]) if pads else (0, 0)
    return Window(kernel, stride, dilation, begin, end)


def is_whole(graph: Graph, op: Op, axis: int = 0) -> bool:
    """Whether the operator cannot be computed by rows: it is given everything and makes everything.

    Raises UnsupportedError for a kind whose halo is not known.
    """
    if not op.outputs or op.outputs[0] == ABSENT:
        return True
    # Only pointwise kinds can be given all of a broadcast input and still make some rows.
    return extent(graph, op.outputs[0], axis) > 1 and any(
        input_map(graph, op, position, axis) is None and (op.kind not in _POINTWISE or extent(graph, tensor, axis) > 1)
        for position, tensor in enumerate(op.inputs)
        if tensor != ABSENT and graph.tensors[tensor].role == "activation"
    )


def input_map(graph: Graph, op: Op, position: int, axis: int = 0) -> AxisMap | None:
    """How the rows of input `position` follow from those of the outputs; None: it is read whole.

    Raises UnsupportedError for a kind whose halo is not known.
    """
    kind, known = op.kind, op.kind in _WHOLE
    tensor, result = op.inputs[position], op.outputs[0]
    dimension = spatial_axis(graph, result, axis)
    rows, made = extent(graph, tensor, axis), extent(graph, result, axis)
    if known or dimension is None or spatial_axis(graph, tensor, axis) is None:
        if not known and kind not in _KNOWN:
            raise _unknown(graph, op)
        return None
    if kind in _CONVOLUTIONS | _POOLS:
        if kind in _CONVOLUTIONS and position == 3:
            return SAME  # ONNX Runtime's fused sum
        found = window(graph, op, axis)
        return AxisMap(found.stride, 1, -found.pad_begin, found.reach - 1 - found.pad_begin)
    if kind in _ALONG_AXIS:
        along = int(op.attrs.get("axis", _ALONG_AXIS[kind])) % 4
        return None if along == dimension or rows != made else SAME
    if kind == "LayerNormalization":
        return None if int(op.attrs.get("axis", -1)) % 4 <= dimension or rows != made else SAME
    if kind in _POINTWISE:
        return SAME if rows == made else None
    if kind in _REDUCTIONS:
        return SAME if rows == made and rows > 1 and _keeps(graph, op, dimension) else None
    if kind == "SpaceToDepth":
        block = int(op.attrs["blocksize"])
        return AxisMap(block, 1, 0, block - 1)
    if kind == "DepthToSpace":
        return AxisMap(1, int(op.attrs["blocksize"]), 0, 0)
    if kind in ("Resize", "Upsample"):
        return _resize_map(graph, op, position, dimension, rows, made)
    if kind == "Pad":
        return _pad_map(graph, op, position, dimension)
    if kind == "Slice":
        return _slice_map(graph, op, position, dimension)
    raise _unknown(graph, op)


_KNOWN = (
    _CONVOLUTIONS | _POOLS | _POINTWISE | _WHOLE | _REDUCTIONS | set(_ALONG_AXIS)
    | {"LayerNormalization", "SpaceToDepth", "DepthToSpace", "Resize", "Upsample", "Pad", "Slice"}
)  # fmt: skip


def _unknown(graph: Graph, op: Op) -> UnsupportedError:
    return UnsupportedError(
        f"{graph.name}: operator {op.name!r} of kind {op.kind} has no known halo; plan the network unsplit there"
    )


def _keeps(graph: Graph, op: Op, dimension: int) -> bool:
    """Whether a reduction leaves a dimension alone."""
    axes = op.attrs.get("axes")
    if len(op.inputs) > 1 and op.inputs[1] != ABSENT:
        value = graph.constant(op.inputs[1])
        axes = None if value is None else value.reshape(-1).tolist()
    if axes is None or not op.attrs.get("keepdims", 1):
        return False
    return dimension not in [int(reduced) % 4 for reduced in axes]


def _resize_map(graph: Graph, op: Op, position: int, dimension: int, rows: int, made: int) -> AxisMap | None:
    """Integer factors; every other resize is computed whole."""
    place = 2 if op.kind == "Resize" else 1
    factor = made // rows
    scales = op.attrs.get("scales")
    if op.attrs.get("layout") != "NHWC" and len(op.inputs) > place and op.inputs[place] != ABSENT:
        scales = graph.constant(op.inputs[place])
    if position != 0 or (scales is not None and len(scales) and float(scales[dimension]) != factor):
        return None
    transform = op.attrs.get("coordinate_transformation_mode", "half_pixel" if op.kind == "Resize" else "asymmetric")
    if factor * rows != made:
        return None
    if factor == 1:
        return SAME
    mode = op.attrs.get("mode", "nearest")
    half = transform in ("half_pixel", "pytorch_half_pixel")
    if (not half and transform != "asymmetric") or mode not in ("nearest", "linear", "bilinear"):
        return None
    if mode == "nearest":
        rounding = op.attrs.get("nearest_mode", "round_prefer_floor")
        if half or op.kind == "Upsample" or op.attrs.get("layout") == "NHWC" or rounding == "floor":
            # Half-pixel centres fall inside the row they copy unless rounding is forced one way.
            spread = factor if half and rounding in ("floor", "ceil") else 0
            return AxisMap(1, factor, -spread, spread)
        return AxisMap(1, factor, 0, factor - 1)
    return AxisMap(2, 2 * factor, 1 - factor, 1 + factor) if half else AxisMap(1, factor, 0, factor)


def _pad_map(graph: Graph, op: Op, position: int, dimension: int) -> AxisMap | None:
    if position != 0:
        return None
    if op.attrs.get("mode", "constant") not in ("constant", "edge"):
        return None
    begin = pad_sides(graph, op)[dimension][0]
    return AxisMap(1, 1, -begin, -begin)


def pad_sides(graph: Graph, op: Op) -> list[tuple[int, int]]:
    """(begin, end) of a Pad by dimension. Raises UnsupportedError where they are not constant."""
    rank = len(graph.tensors[op.inputs[0]].shape)
    given: Any = op.attrs.get("pads") or [0] * (2 * rank)
    if len(op.inputs) > 1 and op.inputs[1] != ABSENT:
        value = graph.constant(op.inputs[1])
        if value is None:
            raise UnsupportedError(f"{graph.name}: the pads of operator {op.name!r} are not constant")
        if value.ndim == 2:  # TFLite: a row [begin, end] a dimension
            return [(int(begin), int(end)) for begin, end in value.tolist()]
        given = value.tolist()
    sides = [(0, 0)] * rank
    axes: Sequence[int] = range(rank)
    if len(op.inputs) > 3 and op.inputs[3] != ABSENT:
        named = graph.constant(op.inputs[3])
        axes = [] if named is None else [int(axis) % rank for axis in named.tolist()]
    for place, axis in enumerate(axes):
        sides[axis] = (int(given[place]), int(given[place + len(given) // 2]))
    return sides


def _slice_map(graph: Graph, op: Op, position: int, dimension: int) -> AxisMap | None:
    if position != 0:
        return None
    if len(op.inputs) > 1:
        values = [None if tensor == ABSENT else graph.constant(tensor) for tensor in op.inputs[1:]]
        if any(value is None for value in values):
            return None
        lists = [value.reshape(-1).tolist() for value in values if value is not None]
        starts = lists[0]
        axes = lists[2] if len(lists) > 2 else list(range(len(starts)))
        steps = lists[3] if len(lists) > 3 else [1] * len(starts)
    else:
        starts = op.attrs["starts"]
        axes, steps = op.attrs.get("axes", list(range(len(starts)))), [1] * len(starts)
    rows = graph.tensors[op.inputs[0]].shape[dimension]
    for start, along, step in zip(starts, axes, steps, strict=True):
        if along % 4 == dimension:
            if step < 1:
                return None
            offset = min(start + rows if start < 0 else start, rows)
            return AxisMap(step, 1, offset, offset)
    return SAME


def input_interval(op: Op, graph: Graph, position: int, wanted: Interval, axis: int = 0) -> Interval:
    """The rows of input `position` that the operator reads to make the rows `wanted` of its outputs, clipped.

    Kinds that need everything (global pools, Flatten, Gemm, …) read the whole extent. Raises UnsupportedError for a
    kind whose halo is not known.
    """
    found = input_map(graph, op, position, axis)
    rows = extent(graph, op.inputs[position], axis)
    if wanted[0] >= wanted[1]:
        return (0, 0)
    return (0, rows) if found is None else found(wanted, rows)
