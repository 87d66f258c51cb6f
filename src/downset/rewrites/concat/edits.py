"""The edits that split one reader of a concatenation over its parts; `rules` decides where each may be applied.

Edits of kind "kernel-wise" compute every element as before and leave a concatenation behind the reader. Edits of kind
"channel-wise" add up partial results, which are equal up to the rounding of the sums.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from downset.graph.core import ABSENT, Op
from downset.graph.edit import Edit
from downset.graph.kinds import FUSED_CONV, kind_of
from downset.graph.parts import along, summed
from downset.rewrites.concat.operands import (
    concat_axis,
    maker,
    operand_cut,
    output_axis,
    part_constant,
    summed_axis,
)

__all__ = ["Accumulate", "flatten", "flatten_images", "move_behind", "split_convolution", "split_product", "split_sum"]

Accumulate = Literal["sum", "chain", "fused"]


def flatten(edit: Edit, site: int, reader: int, accumulate: Accumulate) -> None:
    """concat(…, concat(x_1 … x_n), …) -> concat(…, x_1 … x_n, …)."""
    del accumulate
    graph = edit.graph
    concat, op = graph.ops[site], graph.ops[reader]
    inputs: list[int] = []
    for tensor in op.inputs:
        inputs += concat.inputs if tensor == concat.outputs[0] else (tensor,)
    edit.replace(reader, [replace(op, inputs=tuple(inputs))])
    edit.stays(op.outputs[0])


def flatten_images(edit: Edit, site: int, reader: int, accumulate: Accumulate) -> None:
    """flatten(concat(x_1 … x_n)) -> concat(flatten(x_1) … flatten(x_n)). Channels come first, so the part of each x_i
    is contiguous in a flattened row."""
    del accumulate
    graph = edit.graph
    concat, op = graph.ops[site], graph.ops[reader]
    result = graph.tensors[op.outputs[0]]
    whole = graph.tensors[concat.outputs[0]].shape[1]
    ops, parts, start = [], [], 0
    for number, tensor in enumerate(concat.inputs):
        width = result.shape[1] * graph.tensors[tensor].shape[1] // whole
        part = along(result.name, 1, start, start + width)
        flattened = edit.add_tensor(f"{result.name}/part{number}", (result.shape[0], width), result, part=part)
        start += width
        ops.append(Op(f"{op.name}/part{number}", op.kind, (tensor,), (flattened,), dict(op.attrs)))
        parts.append(flattened)
    ops.append(Op(f"{concat.name}/after/{op.name}", "Concat", tuple(parts), op.outputs, {"axis": 1}))
    edit.replace(reader, ops)


def move_behind(edit: Edit, site: int, reader: int, accumulate: Accumulate) -> None:
    """reader(concat(x_1 … x_n)) -> concat(reader_1(x_1) … reader_n(x_n)). Each channel is computed as before."""
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
        first = start * made_channels // whole
        cut = along(result.name, axis, first, first + shape[axis])
        moved = edit.add_tensor(f"{result.name}/part{number}", shape, result, part=cut)
        attrs = dict(op.attrs)
        if kind_of(op.kind).category == "convolution":
            attrs["group"] = int(op.attrs.get("group", 1)) * (stop - start) // whole
        inputs = _inputs_of_part(edit, concat, op, axis, _ConcatPart(number, start, stop))
        ops.append(Op(f"{op.name}/part{number}", op.kind, inputs, (moved,), attrs))
        parts.append(moved)
        start = stop
    joined = Op(f"{concat.name}/after/{op.name}", "Concat", tuple(parts), op.outputs, dict(concat.attrs))
    edit.replace(reader, [*ops, joined], settings_of=[*[reader] * len(ops), site])


class _ConcatPart(NamedTuple):
    """An input of a concatenation: its number, and where it begins and stops along the axis of the result."""

    number: int
    start: int
    stop: int


def _inputs_of_part(edit: Edit, concat: Op, op: Op, axis: int, part: _ConcatPart) -> tuple[int, ...]:
    """The inputs of the copy of `op` that computes one part of its result."""
    graph, joined = edit.graph, concat.outputs[0]
    number, start, stop = part
    if kind_of(op.kind).broadcasts:
        tensors = []
        for tensor in op.inputs:
            how = operand_cut(graph, tensor, joined, axis)
            if how == "parts":
                producer = maker(graph, tensor)
                assert producer is not None  # a concatenation
                tensor = producer.inputs[number]
            elif how == "cut":
                place = axis - len(graph.tensors[joined].shape) + len(graph.tensors[tensor].shape)
                tensor = part_constant(edit, tensor, place, start, stop, f"/part{number}")
            tensors.append(tensor)
        return tuple(tensors)
    inputs = [concat.inputs[number], *op.inputs[1:]]
    if kind_of(op.kind).category == "convolution" or op.kind == "BatchNormalization":
        whole = graph.tensors[joined].shape[axis]
        made_channels = graph.tensors[op.outputs[0]].shape[axis]
        for position, constant in enumerate(op.inputs[1:], start=1):
            if constant != ABSENT:
                place = output_axis(op) if position == 1 else 0
                cut = (start * made_channels // whole, stop * made_channels // whole)
                inputs[position] = part_constant(edit, constant, place, *cut, f"/part{number}")
    return tuple(inputs)


def split_convolution(edit: Edit, site: int, reader: int, accumulate: Accumulate) -> None:
    """conv(concat(x_1 … x_n)) -> Σ conv_i(x_i), equation 6 of "Ordering Chaos"."""
    op = edit.graph.ops[reader]
    dtype = edit.graph.tensors[op.outputs[0]].dtype
    if op.kind == FUSED_CONV or (accumulate == "fused" and dtype == "float32" and "layout" not in op.attrs):
        _accumulated(edit, site, reader)
    else:
        split_sum(edit, site, reader, accumulate)


def split_sum(edit: Edit, site: int, reader: int, accumulate: Accumulate) -> None:
    """Partial convolutions or products and their sum. The first adds the bias; a fused activation follows the sum."""
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
    cuts = _cut_weights(edit, concat, op)
    for number, (tensor, weights, (start, stop)) in enumerate(cuts):
        cut = summed(result.name, start, stop)
        partial = edit.add_tensor(f"{result.name}/partial{number}", result.shape, result, part=cut)
        bias = op.inputs[2:3] if number == 0 else no_bias
        ops.append(Op(f"{op.name}/partial{number}", op.kind, (tensor, weights, *bias), (partial,), dict(attrs)))
        parts.append(partial)
    layout = {"layout": op.attrs["layout"]} if "layout" in op.attrs else {}
    fused = {**layout, "activation": activation} if activation else layout
    if accumulate == "sum":
        ops.append(Op(f"{op.name}/sum", "Sum", tuple(parts), op.outputs, {**fused, "partial_sum": 1}))
    else:
        total = parts[0]
        for number, part in enumerate(parts[1:], start=1):
            last = number == len(parts) - 1
            into = op.outputs[0] if last else _sum_so_far(edit, op, number, cuts[number][2][1])
            ops.append(Op(f"{op.name}/add{number}", "Add", (total, part), (into,), dict(fused if last else layout)))
            total = into
    edit.replace(reader, ops)


def _sum_so_far(edit: Edit, op: Op, number: int, stop: int) -> int:
    """A tensor for the sum of the products with all channels before `stop`."""
    result = edit.graph.tensors[op.outputs[0]]
    return edit.add_tensor(f"{result.name}/sum{number}", result.shape, result, part=summed(result.name, 0, stop))


def _cut_weights(edit: Edit, concat: Op, op: Op) -> list[tuple[int, int, tuple[int, int]]]:
    """By part: its tensor, its slice of the weights, and its channels [start, stop)."""
    axis, start, pieces = concat_axis(edit.graph, concat), 0, []
    for number, tensor in enumerate(concat.inputs):
        stop = start + edit.graph.tensors[tensor].shape[axis]
        weights = part_constant(edit, op.inputs[1], summed_axis(op), start, stop, f"/part{number}")
        pieces.append((tensor, weights, (start, stop)))
        start = stop
    return pieces


def _accumulated(edit: Edit, site: int, reader: int) -> None:
    """Σ conv_i(x_i), in which each convolution but the first adds its result to the sum so far, its fourth input. The
    last one applies the activation."""
    graph = edit.graph
    concat, op = graph.ops[site], graph.ops[reader]
    plain = {key: value for key, value in op.attrs.items() if not key.startswith("activation")}
    ops: list[Op] = []
    total, last = ABSENT, len(concat.inputs) - 1
    for number, (tensor, weights, (_, stop)) in enumerate(_cut_weights(edit, concat, op)):
        into = op.outputs[0] if number == last else _sum_so_far(edit, op, number, stop)
        inputs = (tensor, weights, *op.inputs[2:3]) if number == 0 else (tensor, weights, ABSENT, total)
        attrs = op.attrs if number == last else plain
        ops.append(
            Op(f"{op.name}/partial{number}", "Conv" if number == 0 else FUSED_CONV, inputs, (into,), dict(attrs))
        )
        total = into
    edit.replace(reader, ops)


def split_product(edit: Edit, site: int, reader: int, accumulate: Accumulate) -> None:
    """A·B + C with A = concat(x_1 … x_n). ONNX's Gemm adds its third input, so each Gemm adds to the sum so far."""
    graph = edit.graph
    concat, op = graph.ops[site], graph.ops[reader]
    if "layout" in op.attrs:  # TFLite's fully connected layer has no such input
        split_sum(edit, site, reader, accumulate)
        return
    ops: list[Op] = []
    total, last = ABSENT, len(concat.inputs) - 1
    for number, (tensor, weights, (_, stop)) in enumerate(_cut_weights(edit, concat, op)):
        into = op.outputs[0] if number == last else _sum_so_far(edit, op, number, stop)
        inputs = (tensor, weights, *op.inputs[2:3]) if number == 0 else (tensor, weights, total)
        attrs = dict(op.attrs) if number == 0 else {**op.attrs, "beta": 1.0}
        ops.append(Op(f"{op.name}/partial{number}", "Gemm", inputs, (into,), attrs))
        total = into
    edit.replace(reader, ops)


def _zeros_like(edit: Edit, tensor: int) -> int:
    like = edit.tensors[tensor]
    read = edit.constants[tensor]
    return edit.add_tensor(f"{like.name}/zero", like.shape, like, role="constant", value=lambda: np.zeros_like(read()))
