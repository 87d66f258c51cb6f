"""SERENITY's identity graph rewriting: convolutions that read a concatenation are computed part by part.

Source: "Ordering Chaos", section 3.3, equations 3-8, figure 9.
Names: channel-wise partitioning is `partition` at a convolution (partial conv + add); kernel-wise partitioning is
    `partition` at a depthwise convolution (the concatenation moves behind it); x_i are the concatenation's inputs, y
    the result, w_*i the slice of the weights that reads x_i.
Complexity: linear in the graph and the weights that are sliced (when they are read).
Deviations: the paper shows the two patterns alone. Here the concatenation also moves behind element-wise operators and
    batch normalisation (each acts on every channel alone), so that chains such as concat, ReLU, depthwise, pointwise
    fall apart as a whole; grouped convolutions are split where parts are whole groups. The bias is added once, by the
    first part. Partial sums are an n-ary Sum (`accumulate="sum"`: what the paper's accounting assumes, one result
    written part by part), a chain of Adds (`accumulate="chain"`: what runtimes execute, accumulator plus part), or
    convolutions that add to the sum so far (`accumulate="fused"`: ONNX Runtime's FusedConv, which does it in place).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from downset.graph import ABSENT, Graph, Op
from downset.rewrite.edit import Edit

__all__ = ["Accumulate", "concat_partition", "partition_sites"]

Accumulate = Literal["sum", "chain", "fused"]

_UNARY = frozenset(
    {"Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Selu", "Softplus", "Softsign",
     "Abs", "Neg", "Exp", "Sqrt", "Erf", "Gelu", "Mish", "Swish"}
)  # fmt: skip
_FUSED = "com.microsoft::FusedConv"
_CONVOLUTIONS = frozenset({"Conv", _FUSED})
_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


def partition_sites(graph: Graph, *, inexact: bool = False) -> tuple[int, ...]:
    """The concatenations that can be taken apart: operator indices, ascending.

    A site is a Concat along the channels, of activations with known shapes, whose result is read by exactly one
    operator, is no graph output, and is read by something the concatenation can move behind or dissolve in. Quantised
    convolutions are summed part by part only if `inexact`: rounding each part changes the result.
    """
    return tuple(index for index, op in enumerate(graph.ops) if _is_site(graph, index, op, inexact))


def _is_site(graph: Graph, index: int, op: Op, inexact: bool) -> bool:
    if op.kind != "Concat" or len(op.inputs) < 2 or len(op.outputs) != 1 or _channel_axis(graph, op) is None:
        return False
    readers = [at for at, other in enumerate(graph.ops) if op.outputs[0] in other.inputs]
    return (
        op.outputs[0] not in graph.outputs
        and len(readers) == 1
        and not op.attrs.get("activation")
        and all(
            tensor != ABSENT and graph.tensors[tensor].role == "activation" and graph.tensors[tensor].nbytes > 0
            for tensor in op.inputs
        )
        and _rule(graph, index, readers[0], inexact) is not None
    )


def concat_partition(
    graph: Graph, sites: Iterable[int], *, accumulate: Accumulate = "chain", inexact: bool = False
) -> Graph:
    """The same network with the concatenations at `sites` (see `partition_sites`) taken apart.

    Each moves behind its reader until it dissolves in a convolution or its result is read more than once. Float results
    are equal up to the association of the sums; depthwise and element-wise operators compute every channel as before.
    """
    names = {graph.tensors[graph.ops[site].outputs[0]].name for site in sites}
    while True:
        found = partition_sites(graph, inexact=inexact)
        site = next((at for at in found if graph.tensors[graph.ops[at].outputs[0]].name in names), None)
        if site is None:
            return graph
        reader = next(at for at, op in enumerate(graph.ops) if graph.ops[site].outputs[0] in op.inputs)
        rule = _rule(graph, site, reader, inexact)
        assert rule is not None  # partition_sites promised it
        # Where the concatenation moved behind its reader, the reader's result is the next one to look at.
        names.add(graph.tensors[graph.ops[reader].outputs[0]].name)
        graph = rule(graph, site, reader, accumulate)


_Rule = Callable[[Graph, int, int, Accumulate], Graph]


def _rule(graph: Graph, site: int, reader: int, inexact: bool) -> _Rule | None:
    """How the reader can be split over the concatenation's parts, or None."""
    op, concat = graph.ops[reader], graph.ops[site]
    joined = concat.outputs[0]
    if any(graph.tensors[part].quantization != graph.tensors[joined].quantization for part in concat.inputs):
        return None  # the concatenation itself rescales some of its parts
    if len(op.outputs) != 1 or op.inputs.count(joined) != 1 or op.inputs[0] != joined:
        return None
    if op.kind in _UNARY and len(op.inputs) == 1:
        return _move_behind
    if op.kind == "Clip" and all(tensor == ABSENT or tensor in graph.constants for tensor in op.inputs[1:]):
        return _move_behind
    if op.kind == "BatchNormalization" and all(tensor in graph.constants for tensor in op.inputs[1:5]):
        return _move_behind
    if op.kind not in _CONVOLUTIONS or len(op.inputs) > 3:  # a fourth input is added to the result
        return None
    if any(tensor not in graph.constants for tensor in op.inputs[1:] if tensor != ABSENT):
        return None
    groups = int(op.attrs.get("group", 1))
    axis = _channel_axis(graph, concat)
    assert axis is not None  # it is a site
    channels = [graph.tensors[tensor].shape[axis] for tensor in concat.inputs]
    if groups == 1:
        return _split_convolution if inexact or graph.tensors[joined].dtype in _FLOATS else None
    per_group = sum(channels) // groups
    if all(count % per_group == 0 for count in channels):
        return _move_behind
    return None


def _channel_axis(graph: Graph, op: Op) -> int | None:
    """The channel axis (1, or the last one channels-last) if the concatenation is along it."""
    rank = len(graph.tensors[op.outputs[0]].shape)
    axis = int(op.attrs.get("axis", 0))
    axis += rank if axis < 0 else 0
    channel = rank - 1 if op.attrs.get("layout") == "NHWC" else 1
    return channel if rank >= 3 and axis == channel else None


def _slice(read: Callable[[], npt.NDArray[Any]], axis: int, start: int, stop: int) -> Callable[[], npt.NDArray[Any]]:
    """A part of a constant, cut when it is read."""

    def cut() -> npt.NDArray[Any]:
        value = np.asarray(read())
        index = [slice(None)] * value.ndim
        index[axis] = slice(start, stop)
        return np.ascontiguousarray(value[tuple(index)])

    return cut


def _part_constant(edit: Edit, tensor: int, axis: int, start: int, stop: int, suffix: str) -> int:
    whole = edit.tensors[tensor]
    shape = list(whole.shape)
    shape[axis] = stop - start
    value = _slice(edit.constants[tensor], axis, start, stop)
    scales = whole.quantization
    if scales is not None and len(scales["scale"]) > 1 and scales["axis"] == axis:  # a scale for each channel
        cut = {key: scales[key][start:stop] for key in ("scale", "zero_point")}
        whole = replace(whole, quantization={**scales, **cut})
    return edit.add_tensor(f"{whole.name}{suffix}", shape, whole, role="constant", value=value)


def _zeros_like(edit: Edit, tensor: int) -> int:
    like = edit.tensors[tensor]
    read = edit.constants[tensor]
    return edit.add_tensor(f"{like.name}/zero", like.shape, like, role="constant", value=lambda: np.zeros_like(read()))


def _move_behind(graph: Graph, site: int, reader: int, accumulate: Accumulate) -> Graph:
    """reader(concat(x_1 … x_n)) -> concat(reader_1(x_1) … reader_n(x_n)): exact, each channel is computed as before."""
    del accumulate  # nothing is summed here
    edit = Edit(graph)
    concat, op = graph.ops[site], graph.ops[reader]
    axis = _channel_axis(graph, concat)
    assert axis is not None
    result = graph.tensors[op.outputs[0]]
    groups = int(op.attrs.get("group", 1))
    whole = graph.tensors[concat.outputs[0]].shape[axis]
    ratio = result.shape[axis] / whole  # a depthwise convolution may multiply channels
    parts, ops, start = [], [], 0
    for number, tensor in enumerate(concat.inputs):
        count = graph.tensors[tensor].shape[axis]
        shape = list(result.shape)
        shape[axis] = round(count * ratio)
        made = edit.add_tensor(f"{result.name}/part{number}", shape, result)
        inputs, attrs = [tensor, *op.inputs[1:]], dict(op.attrs)
        if op.kind in _CONVOLUTIONS or op.kind == "BatchNormalization":
            per_channel = (round(start * ratio), round((start + count) * ratio))
            for position, constant in enumerate(op.inputs[1:], start=1):
                if constant != ABSENT:
                    weight_axis = _output_axis(op) if position == 1 else 0
                    inputs[position] = _part_constant(edit, constant, weight_axis, *per_channel, f"/part{number}")
        if op.kind in _CONVOLUTIONS:
            attrs["group"] = groups * count // whole
        ops.append(Op(f"{op.name}/part{number}", op.kind, tuple(inputs), (made,), attrs))
        parts.append(made)
        start += count
    joined = Op(f"{concat.name}/after/{op.name}", "Concat", tuple(parts), op.outputs, dict(concat.attrs))
    edit.replace(site, [])
    edit.replace(reader, [*ops, joined], settings_of=[*[reader] * len(ops), site])
    return edit.finish()


def _output_axis(op: Op) -> int:
    """The axis of a Conv's weights that runs over output channels: depthwise weights of channels-last files are
    (1, height, width, channels)."""
    return 3 if op.attrs.get("layout") == "NHWC" and op.attrs.get("depthwise") else 0


def _split_convolution(graph: Graph, site: int, reader: int, accumulate: Accumulate) -> Graph:
    """conv(concat(x_1 … x_n)) -> Σ conv_i(x_i): equation 6. The bias is in the first part, a fused activation after
    the sum."""
    edit = Edit(graph)
    concat, op = graph.ops[site], graph.ops[reader]
    axis = _channel_axis(graph, concat)
    assert axis is not None
    result = graph.tensors[op.outputs[0]]
    if op.kind == _FUSED or (accumulate == "fused" and result.dtype == "float32" and "layout" not in op.attrs):
        return _accumulated(edit, site, reader)
    activation = op.attrs.get("activation")
    attrs = {key: value for key, value in op.attrs.items() if key != "activation"}
    weight_axis = 3 if op.attrs.get("layout") == "NHWC" else 1
    ops: list[Op] = []
    parts: list[int] = []
    start = 0
    no_bias: tuple[int, ...] = ()
    if "layout" in op.attrs and op.inputs[2:3] not in ((), (ABSENT,)):  # LiteRT runs no convolution without a bias
        no_bias = (_zeros_like(edit, op.inputs[2]),)
    for number, tensor in enumerate(concat.inputs):
        count = graph.tensors[tensor].shape[axis]
        weights = _part_constant(edit, op.inputs[1], weight_axis, start, start + count, f"/part{number}")
        made = edit.add_tensor(f"{result.name}/partial{number}", result.shape, result)
        bias = op.inputs[2:3] if number == 0 else no_bias
        ops.append(Op(f"{op.name}/partial{number}", "Conv", (tensor, weights, *bias), (made,), dict(attrs)))
        parts.append(made)
        start += count
    layout = {"layout": op.attrs["layout"]} if "layout" in op.attrs else {}
    fused = {**layout, "activation": activation} if activation else layout
    if accumulate == "sum":
        summed = Op(f"{op.name}/sum", "Sum", tuple(parts), op.outputs, {**fused, "partial_sum": 1})
        ops.append(summed)
    else:
        total = parts[0]
        for number, part in enumerate(parts[1:], start=1):
            last = number == len(parts) - 1
            into = op.outputs[0] if last else edit.add_tensor(f"{result.name}/sum{number}", result.shape, result)
            ops.append(Op(f"{op.name}/add{number}", "Add", (total, part), (into,), dict(fused if last else layout)))
            total = into
    edit.replace(site, [])
    edit.replace(reader, [replace(made, after=op.after) if number == 0 else made for number, made in enumerate(ops)])
    return edit.finish()


def _accumulated(edit: Edit, site: int, reader: int) -> Graph:
    """Σ conv_i(x_i) where each convolution but the first adds to the sum of those before it, its fourth input; the last
    one activates."""
    graph = edit.graph
    concat, op = graph.ops[site], graph.ops[reader]
    result = graph.tensors[op.outputs[0]]
    plain = {key: value for key, value in op.attrs.items() if not key.startswith("activation")}
    ops: list[Op] = []
    total, start, last = ABSENT, 0, len(concat.inputs) - 1
    for number, tensor in enumerate(concat.inputs):
        stop = start + graph.tensors[tensor].shape[1]
        weights = _part_constant(edit, op.inputs[1], 1, start, stop, f"/part{number}")
        into = op.outputs[0] if number == last else edit.add_tensor(f"{result.name}/sum{number}", result.shape, result)
        inputs = (tensor, weights, *op.inputs[2:3]) if number == 0 else (tensor, weights, ABSENT, total)
        attrs = op.attrs if number == last else plain
        ops.append(Op(f"{op.name}/partial{number}", "Conv" if number == 0 else _FUSED, inputs, (into,), dict(attrs)))
        total, start = into, stop
    edit.replace(site, [])
    edit.replace(reader, [replace(ops[0], after=op.after), *ops[1:]])
    return edit.finish()
