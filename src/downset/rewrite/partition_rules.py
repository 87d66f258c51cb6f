"""How one reader of a concatenation is split over the concatenation's parts.

`rule_for` names the rule or says that there is none; a rule edits the graph so that this reader no longer reads the
concatenation. Rules of kind "kernel-wise" compute every element as before and leave a concatenation
behind the reader; those of kind "channel-wise" add partial results up, which is equal up to the rounding of the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.graph import ABSENT, Graph, Op, Tensor
from downset.rewrite.edit import Edit

__all__ = ["Accumulate", "Kind", "Rule", "concat_axis", "moves_behind", "rule_for"]

Accumulate = Literal["sum", "chain", "fused"]
Kind = Literal["channel-wise", "kernel-wise"]
Transformation = Callable[[Edit, int, int, Accumulate], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """`apply(edit, site, reader, accumulate)`, indices of the edit's original graph."""

    kind: Kind
    apply: Transformation


_UNARY = frozenset(
    {"Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Selu", "Softplus", "Softsign",
     "Abs", "Neg", "Exp", "Sqrt", "Erf", "Gelu", "Mish", "Swish", "Identity", "ThresholdedRelu", "Celu"}
)  # fmt: skip
_BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"})
_PER_CHANNEL = frozenset({"MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"})
_FUSED = "com.microsoft::FusedConv"
_CONVOLUTIONS = frozenset({"Conv", _FUSED})
_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


def concat_axis(graph: Graph, op: Op) -> int:
    """The axis of a concatenation, counted from the front."""
    axis = int(op.attrs.get("axis", 0))
    return axis + len(graph.tensors[op.outputs[0]].shape) if axis < 0 else axis


def moves_behind(op: Op) -> bool:
    """Whether a concatenation can move behind operators of this kind (see `rule_for` for whether this one can)."""
    kinds = _UNARY | _BINARY | _PER_CHANNEL | {"Concat", "Flatten", "Pad", "BatchNormalization"}
    return op.kind in kinds or (op.kind in _CONVOLUTIONS and int(op.attrs.get("group", 1)) > 1)


def rule_for(graph: Graph, site: int, reader: int, inexact: bool) -> Rule | None:
    """The rule by which the operator `reader` can be split over the parts of the concatenation `site`, or None.

    Quantised results are summed part by part only if `inexact`.
    """
    op, concat = graph.ops[reader], graph.ops[site]
    joined = concat.outputs[0]
    axis = concat_axis(graph, concat)
    if len(op.outputs) != 1 or op.after:
        return None
    if op.kind == "Concat":
        return Rule("kernel-wise", _flatten) if concat_axis(graph, op) == axis else None
    if op.kind in _BINARY:
        return Rule("kernel-wise", _move_behind) if _binary(graph, op, joined, axis) else None
    if op.inputs.count(joined) != 1 or op.inputs[0] != joined:
        return None
    constant = all(tensor == ABSENT or tensor in graph.constants for tensor in op.inputs[1:])
    if op.kind in _UNARY and (len(op.inputs) == 1 or (op.kind == "Clip" and constant)):
        return Rule("kernel-wise", _move_behind)
    if op.kind in ("Gemm", "MatMul"):
        sums = _matrix(graph, op, joined, axis) and (inexact or _floats(graph, op))
        return Rule("channel-wise", _split_product if op.kind == "Gemm" else _split_sum) if sums else None
    rank = len(graph.tensors[joined].shape)
    if op.kind == "Pad":
        return Rule("kernel-wise", _move_behind) if constant and _leaves_alone(graph, op, axis, rank) else None
    if rank < 3 or axis != _channel_axis(op, rank):
        return None
    if op.kind in _PER_CHANNEL and len(op.inputs) == 1:
        return Rule("kernel-wise", _move_behind)
    if op.kind == "Flatten" and int(op.attrs.get("axis", 1)) == 1:
        return Rule("kernel-wise", _flatten_images)
    if not constant:
        return None
    if op.kind == "BatchNormalization" and len(op.inputs) == 5 and not op.attrs.get("training_mode"):
        return Rule("kernel-wise", _move_behind)
    return _convolution(graph, concat, op, axis, inexact)


def _floats(graph: Graph, op: Op) -> bool:
    """Whether an operator computes on floats throughout: kernels for integer weights round their inputs as well."""
    return all(graph.tensors[tensor].dtype in _FLOATS for tensor in (op.inputs[0], op.inputs[1], op.outputs[0]))


def _channel_axis(op: Op, rank: int) -> int:
    return rank - 1 if op.attrs.get("layout") == "NHWC" else 1


def _leaves_alone(graph: Graph, op: Op, axis: int, rank: int) -> bool:
    """Whether a Pad adds and takes nothing along the axis."""
    if len(op.inputs) > 3:  # for some axes only
        return False
    given = graph.constant(op.inputs[1]) if len(op.inputs) > 1 else np.asarray(op.attrs.get("pads", ()))
    if given is None or given.size != 2 * rank:
        return False
    pads = given if given.shape == (rank, 2) else given.reshape(2, rank).T  # TFLite's pairs; ONNX's begins, then ends
    return not pads[axis].any()


def _convolution(graph: Graph, concat: Op, op: Op, axis: int, inexact: bool) -> Rule | None:
    if op.kind not in _CONVOLUTIONS or len(op.inputs) > 3:  # a fourth input is added to the result
        return None
    groups = int(op.attrs.get("group", 1))
    channels = [graph.tensors[tensor].shape[axis] for tensor in concat.inputs]
    if groups == 1:
        return Rule("channel-wise", _split_convolution) if inexact or _floats(graph, op) else None
    per_group = sum(channels) // groups
    return Rule("kernel-wise", _move_behind) if all(count % per_group == 0 for count in channels) else None


def _binary(graph: Graph, op: Op, joined: int, axis: int) -> bool:
    """Whether an element-wise operator of two operands falls apart: the other one is a constant, does not vary along
    the axis, or is a concatenation of the same parts."""
    shape = graph.tensors[joined].shape
    if len(op.inputs) != 2 or graph.tensors[op.outputs[0]].shape != shape:
        return False
    if op.kind == "PRelu" and op.inputs[0] != joined:
        return False
    return all(_operand(graph, tensor, joined, axis) is not None for tensor in op.inputs)


def _operand(graph: Graph, tensor: int, joined: int, axis: int) -> str | None:
    """How an operand is cut along the axis: "parts" of a concatenation, "whole" where it is the same for all parts,
    "cut" from a constant; None if it cannot be."""
    if tensor == joined:
        return "parts"
    if tensor == ABSENT:
        return None
    shape, whole = graph.tensors[tensor].shape, graph.tensors[joined].shape
    at = axis - (len(whole) - len(shape))
    if at < 0 or shape[at] == 1:
        return "whole"
    if tensor in graph.constants:
        return "cut"
    made = _maker(graph, tensor)
    if made is None or made.kind != "Concat" or concat_axis(graph, made) != axis or made.attrs.get("activation"):
        return None
    ours = _maker(graph, joined)
    extents = [[graph.tensors[part].shape for part in op.inputs] for op in (made, ours) if op is not None]
    same = extents[0] == extents[1]
    scales = {repr(graph.tensors[part].quantization) for part in (*made.inputs, tensor)}
    return "parts" if same and len(scales) == 1 else None


def _maker(graph: Graph, tensor: int) -> Op | None:
    return next((op for op in graph.ops if tensor in op.outputs), None)


def _matrix(graph: Graph, op: Op, joined: int, axis: int) -> bool:
    """Whether a matrix product sums over the axis of the concatenation, by weights that can be cut."""
    rank = len(graph.tensors[joined].shape)
    weights = op.inputs[1] if len(op.inputs) > 1 else ABSENT
    if axis != rank - 1 or rank < 2 or weights not in graph.constants:
        return False
    shape = graph.tensors[weights].shape
    if op.kind == "MatMul":
        return len(shape) == 2 and not op.attrs.get("transA") and not op.attrs.get("transB")
    total = graph.tensors[joined].shape[axis]
    bias = all(tensor == ABSENT or tensor in graph.constants for tensor in op.inputs[2:])
    return len(shape) == 2 and not op.attrs.get("transA") and shape[_summed_axis(op)] == total and bias


def _summed_axis(op: Op) -> int:
    """The axis of the weights that runs over what is summed."""
    if op.kind in _CONVOLUTIONS:
        return 3 if op.attrs.get("layout") == "NHWC" else 1
    return 1 if op.attrs.get("transB") else 0


def _slice(
    whole: Tensor, read: Callable[[], npt.NDArray[Any]], axis: int, start: int, stop: int
) -> Callable[[], npt.NDArray[Any]]:
    """A part of a constant, cut when it is read. Raises UnsupportedError then for packed and sparse ones."""

    def cut() -> npt.NDArray[Any]:
        value = np.asarray(read())
        if value.shape != whole.shape:
            raise UnsupportedError(f"{whole.name!r} is packed or sparse ({whole.dtype}) and cannot be cut")
        index = [slice(None)] * value.ndim
        index[axis] = slice(start, stop)
        return np.ascontiguousarray(value[tuple(index)])

    return cut


def _part_constant(edit: Edit, tensor: int, axis: int, start: int, stop: int, suffix: str) -> int:
    whole = edit.tensors[tensor]
    shape = list(whole.shape)
    shape[axis] = stop - start
    value = _slice(whole, edit.constants[tensor], axis, start, stop)
    scales = whole.quantization
    if scales is not None and len(scales["scale"]) > 1 and scales["axis"] == axis:  # a scale for each channel
        cut = {key: scales[key][start:stop] for key in ("scale", "zero_point")}
        whole = replace(whole, quantization={**scales, **cut})
    return edit.add_tensor(f"{whole.name}{suffix}", shape, whole, role="constant", value=value)


def _zeros_like(edit: Edit, tensor: int) -> int:
    like = edit.tensors[tensor]
    read = edit.constants[tensor]
    return edit.add_tensor(f"{like.name}/zero", like.shape, like, role="constant", value=lambda: np.zeros_like(read()))


def _flatten(edit: Edit, site: int, reader: int, accumulate: Accumulate) -> None:
    """concat(…, concat(x_1 … x_n), …) -> concat(…, x_1 … x_n, …)."""
    del accumulate
    graph = edit.graph
    concat, op = graph.ops[site], graph.ops[reader]
    inputs: list[int] = []
    for tensor in op.inputs:
        inputs += concat.inputs if tensor == concat.outputs[0] else (tensor,)
    edit.replace(reader, [replace(op, inputs=tuple(inputs))])


def _flatten_images(edit: Edit, site: int, reader: int, accumulate: Accumulate) -> None:
    """flatten(concat(x_1 … x_n)) -> concat(flatten(x_1) … flatten(x_n)): rows are contiguous, channels come first."""
    del accumulate
    graph = edit.graph
    concat, op = graph.ops[site], graph.ops[reader]
    result = graph.tensors[op.outputs[0]]
    whole = graph.tensors[concat.outputs[0]].shape[1]
    ops, parts = [], []
    for number, tensor in enumerate(concat.inputs):
        width = result.shape[1] * graph.tensors[tensor].shape[1] // whole
        made = edit.add_tensor(f"{result.name}/part{number}", (result.shape[0], width), result)
        ops.append(Op(f"{op.name}/part{number}", op.kind, (tensor,), (made,), dict(op.attrs)))
        parts.append(made)
    ops.append(Op(f"{concat.name}/after/{op.name}", "Concat", tuple(parts), op.outputs, {"axis": 1}))
    edit.replace(reader, ops)


def _move_behind(edit: Edit, site: int, reader: int, accumulate: Accumulate) -> None:
    """reader(concat(x_1 … x_n)) -> concat(reader_1(x_1) … reader_n(x_n)): exact, each channel is computed as before."""
    del accumulate  # nothing is summed here
    graph = edit.graph
    concat, op = graph.ops[site], graph.ops[reader]
    axis = concat_axis(graph, concat)
    result = graph.tensors[op.outputs[0]]
    whole = graph.tensors[concat.outputs[0]].shape[axis]
    # A depthwise convolution may multiply channels; a grouped one may make more or fewer of them.
    made_channels = result.shape[axis]
    parts, ops, start = [], [], 0
    for number, tensor in enumerate(concat.inputs):
        stop = start + graph.tensors[tensor].shape[axis]
        shape = list(result.shape)
        shape[axis] = (stop - start) * made_channels // whole
        made = edit.add_tensor(f"{result.name}/part{number}", shape, result)
        attrs = dict(op.attrs)
        if op.kind in _CONVOLUTIONS:
            attrs["group"] = int(op.attrs.get("group", 1)) * (stop - start) // whole
        inputs = _inputs_of_part(edit, concat, op, axis, number, start, stop)
        ops.append(Op(f"{op.name}/part{number}", op.kind, inputs, (made,), attrs))
        parts.append(made)
        start = stop
    joined = Op(f"{concat.name}/after/{op.name}", "Concat", tuple(parts), op.outputs, dict(concat.attrs))
    edit.replace(reader, [*ops, joined], settings_of=[*[reader] * len(ops), site])


def _inputs_of_part(edit: Edit, concat: Op, op: Op, axis: int, number: int, start: int, stop: int) -> tuple[int, ...]:
    graph, joined = edit.graph, concat.outputs[0]
    if op.kind in _BINARY:
        found = []
        for tensor in op.inputs:
            how = _operand(graph, tensor, joined, axis)
            if how == "parts":
                made = _maker(graph, tensor)
                assert made is not None  # a concatenation
                tensor = made.inputs[number]
            elif how == "cut":
                at = axis - len(graph.tensors[joined].shape) + len(graph.tensors[tensor].shape)
                tensor = _part_constant(edit, tensor, at, start, stop, f"/part{number}")
            found.append(tensor)
        return tuple(found)
    inputs = [concat.inputs[number], *op.inputs[1:]]
    if op.kind in _CONVOLUTIONS or op.kind == "BatchNormalization":
        whole = graph.tensors[joined].shape[axis]
        made_channels = graph.tensors[op.outputs[0]].shape[axis]
        for position, constant in enumerate(op.inputs[1:], start=1):
            if constant != ABSENT:
                at = _output_axis(op) if position == 1 else 0
                cut = (start * made_channels // whole, stop * made_channels // whole)
                inputs[position] = _part_constant(edit, constant, at, *cut, f"/part{number}")
    return tuple(inputs)


def _output_axis(op: Op) -> int:
    """The axis of a Conv's weights that runs over output channels: depthwise weights of channels-last files are
    (1, height, width, channels)."""
    return 3 if op.attrs.get("layout") == "NHWC" and op.attrs.get("depthwise") else 0


def _split_convolution(edit: Edit, site: int, reader: int, accumulate: Accumulate) -> None:
    """conv(concat(x_1 … x_n)) -> Σ conv_i(x_i): equation 6."""
    op = edit.graph.ops[reader]
    dtype = edit.graph.tensors[op.outputs[0]].dtype
    if op.kind == _FUSED or (accumulate == "fused" and dtype == "float32" and "layout" not in op.attrs):
        _accumulated(edit, site, reader)
    else:
        _split_sum(edit, site, reader, accumulate)


def _split_sum(edit: Edit, site: int, reader: int, accumulate: Accumulate) -> None:
    """The bias is in the first part, a fused activation after the sum."""
    graph = edit.graph
    concat, op = graph.ops[site], graph.ops[reader]
    result = graph.tensors[op.outputs[0]]
    activation = op.attrs.get("activation")
    attrs = {key: value for key, value in op.attrs.items() if key != "activation"}
    no_bias: tuple[int, ...] = ()
    if "layout" in op.attrs and op.inputs[2:3] not in ((), (ABSENT,)):  # LiteRT runs no convolution without a bias
        no_bias = (_zeros_like(edit, op.inputs[2]),)
    ops: list[Op] = []
    parts: list[int] = []
    for number, (tensor, weights) in enumerate(_cut_weights(edit, concat, op)):
        made = edit.add_tensor(f"{result.name}/partial{number}", result.shape, result)
        bias = op.inputs[2:3] if number == 0 else no_bias
        ops.append(Op(f"{op.name}/partial{number}", op.kind, (tensor, weights, *bias), (made,), dict(attrs)))
        parts.append(made)
    layout = {"layout": op.attrs["layout"]} if "layout" in op.attrs else {}
    fused = {**layout, "activation": activation} if activation else layout
    if accumulate == "sum":
        ops.append(Op(f"{op.name}/sum", "Sum", tuple(parts), op.outputs, {**fused, "partial_sum": 1}))
    else:
        total = parts[0]
        for number, part in enumerate(parts[1:], start=1):
            last = number == len(parts) - 1
            into = op.outputs[0] if last else edit.add_tensor(f"{result.name}/sum{number}", result.shape, result)
            ops.append(Op(f"{op.name}/add{number}", "Add", (total, part), (into,), dict(fused if last else layout)))
            total = into
    edit.replace(reader, ops)


def _cut_weights(edit: Edit, concat: Op, op: Op) -> list[tuple[int, int]]:
    """By part: its tensor, and the weights that read it."""
    axis, start, found = concat_axis(edit.graph, concat), 0, []
    for number, tensor in enumerate(concat.inputs):
        stop = start + edit.graph.tensors[tensor].shape[axis]
        found.append((tensor, _part_constant(edit, op.inputs[1], _summed_axis(op), start, stop, f"/part{number}")))
        start = stop
    return found


def _accumulated(edit: Edit, site: int, reader: int) -> None:
    """Σ conv_i(x_i) where each convolution but the first adds to the sum of those before it, its fourth input; the last
    one activates."""
    graph = edit.graph
    concat, op = graph.ops[site], graph.ops[reader]
    result = graph.tensors[op.outputs[0]]
    plain = {key: value for key, value in op.attrs.items() if not key.startswith("activation")}
    ops: list[Op] = []
    total, last = ABSENT, len(concat.inputs) - 1
    for number, (tensor, weights) in enumerate(_cut_weights(edit, concat, op)):
        into = op.outputs[0] if number == last else edit.add_tensor(f"{result.name}/sum{number}", result.shape, result)
        inputs = (tensor, weights, *op.inputs[2:3]) if number == 0 else (tensor, weights, ABSENT, total)
        attrs = op.attrs if number == last else plain
        ops.append(Op(f"{op.name}/partial{number}", "Conv" if number == 0 else _FUSED, inputs, (into,), dict(attrs)))
        total = into
    edit.replace(reader, ops)


def _split_product(edit: Edit, site: int, reader: int, accumulate: Accumulate) -> None:
    """A·B + C with A = concat(x_1 … x_n): ONNX's Gemm adds what it is given, so each adds to the sum before it."""
    graph = edit.graph
    concat, op = graph.ops[site], graph.ops[reader]
    if "layout" in op.attrs:  # TFLite's has no such input
        _split_sum(edit, site, reader, accumulate)
        return
    result = graph.tensors[op.outputs[0]]
    ops: list[Op] = []
    total, last = ABSENT, len(concat.inputs) - 1
    for number, (tensor, weights) in enumerate(_cut_weights(edit, concat, op)):
        into = op.outputs[0] if number == last else edit.add_tensor(f"{result.name}/sum{number}", result.shape, result)
        inputs = (tensor, weights, *op.inputs[2:3]) if number == 0 else (tensor, weights, total)
        attrs = dict(op.attrs) if number == 0 else {**op.attrs, "beta": 1.0}
        ops.append(Op(f"{op.name}/partial{number}", "Gemm", inputs, (into,), attrs))
        total = into
    edit.replace(reader, ops)
