"""Several convolutions on one input become one, which makes the same results with one kernel instead of many.

Source: "IOS: Inter-Operator Scheduler for CNN Acceleration", section 3 ("operator merge"), algorithm 1 lines 29-32.
Names: "can be merged" is `mergeable`, the merged operator that of `merge_convs`, the split operator is ONNX's Split.
Complexity: linear in the graph; weights are put together when they are read.
Deviations: the paper does not say where a smaller kernel lies inside the larger one. Its code centres it, which is
right only for odd kernels with "same" padding. Let p_i be the pad before kernel i along an axis, and e_i the extent of
the dilated kernel. The merged pad before is P = max p_i. Kernel i lies at offset P - p_i of the merged kernel, whose
    extent is the largest P - p_i + e_i; so each tap reads the same input as before. The merged pad behind follows from
    the number of results. Kernels may be even, pads may differ by axis and side, and dilations may differ: the merged
    dilation is the greatest common divisor of all distances between taps. For finite inputs the results are equal up to
    the sequence of additions; an infinite input times an added zero gives NaN.
    Equal activations behind the convolutions are merged too. A concatenation that reads the results in their merged
    sequence reads the merged result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from downset.errors import UsageError
from downset.graph.core import ABSENT, Graph, Op
from downset.graph.edit import Edit
from downset.graph.kinds import kind_of
from downset.rewrites.merge.outputs import CHANNELS, arranged, deliver, ordered_by_hand
from downset.rewrites.merge.window import GEOMETRY, common_window, joined_conv, windows

__all__ = ["merge_convs", "mergeable", "merged_macs", "not_plain", "other_attrs", "unlike"]

_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


def mergeable(graph: Graph, ops: Sequence[int]) -> str | None:
    """Why `merge_convs` refuses these operators, or None where it takes them.

    It takes at least two different convolutions (group 1, channels first, floats, weights with known values) of one
    input, with equal strides, output sizes and fused activations (or none).
    """
    if len(ops) < 2 or len(set(ops)) != len(ops):
        return f"a merge takes at least two different operators, not {list(ops)}"
    for index in ops:
        reason = not_plain(graph, index)
        if reason is None and int(graph.ops[index].attrs.get("group", 1)) != 1:
            reason = f"has {graph.ops[index].attrs['group']} groups"
        if reason:
            return f"operator {graph.ops[index].name!r} {reason}"
    if len({graph.ops[index].inputs[0] for index in ops}) > 1:
        return f"{_named(graph, ops)} read different inputs"
    return unlike(graph, ops)


def merged_macs(graph: Graph, ops: Sequence[int]) -> tuple[int, int]:
    """MACs of these mergeable convolutions, and of the merged one, which also multiplies by the zeros in its kernel."""
    inside = graph.tensors[graph.ops[ops[0]].inputs[0]].shape[CHANNELS]
    size = {index: math.prod(graph.tensors[graph.ops[index].outputs[0]].shape) * inside for index in ops}
    before = sum(size[index] * math.prod(window.taps for window in windows(graph, index)) for index in ops)
    joined = common_window([windows(graph, index) for index in ops])
    return before, sum(size.values()) * math.prod(window.taps for window in joined)


def merge_convs(graph: Graph, ops: Sequence[int]) -> Graph:
    """The same network with these convolutions merged into one, whose output channels are theirs one after another.

    Equal activations behind them are merged too. The results are outputs of a Split along the channels, which an
    executor can run as views. A Concat that reads all results in sequence reads the merged result instead, and is
    removed if it reads nothing else; the sequence of the channels is chosen for this. Raises UsageError with the reason
    of `mergeable`.
    """
    reason = mergeable(graph, ops)
    if reason:
        raise UsageError(f"{graph.name}: cannot merge: {reason}")
    ops = arranged(graph, ops)
    edit = Edit(graph)

    def merged(output: int) -> list[Op]:
        return [joined_conv(edit, graph, ops, graph.ops[ops[0]].inputs[0], output)]

    for index in ops:
        edit.replace(index, [])
    edit.replace(min(ops), deliver(edit, graph, ops, merged))
    return edit.finish()


def not_plain(graph: Graph, index: int) -> str | None:
    """Why this operator is not a convolution that can be merged with others, or None."""
    op = graph.ops[index]
    if kind_of(op.kind).category != "convolution":
        return f"is a {op.kind}, not a convolution"
    if op.attrs.get("layout") == "NHWC":
        return "is channels-last"
    if ordered_by_hand(graph, index):
        return "is ordered by side effects"
    if len(op.inputs) > 3 and op.inputs[3] != ABSENT:
        return "adds a second input"
    used = [op.inputs[0], op.inputs[1], *(tensor for tensor in op.inputs[2:3] if tensor != ABSENT), *op.outputs]
    if any(graph.tensors[tensor].dtype not in _FLOATS or graph.tensors[tensor].quantization for tensor in used):
        return "does not compute on floats"
    if len({graph.tensors[tensor].dtype for tensor in used}) > 1:
        return "mixes element types"
    if any(tensor not in graph.constants for tensor in used[1:-1]):
        return "has weights whose values are not known"
    source, result, weights = (graph.tensors[tensor].shape for tensor in (used[0], used[-1], used[1]))
    if not len(source) == len(result) == len(weights) >= 3:
        return f"has an input of shape {list(source)}, weights {list(weights)} and a result {list(result)}"
    along = windows(graph, index)
    if min(min(window.before, window.after) for window in along) < 0:
        return "has negative pads"
    for window in along:
        reach = window.size + window.before + window.after - window.extent
        if window.result < 1 or reach < 0 or reach // window.stride + 1 != window.result:
            return f"states the result {list(result)}, which is not what its pads and strides give"
    return None


def unlike(graph: Graph, ops: Sequence[int]) -> str | None:
    """Why these convolutions, for each of which `not_plain` is None, differ too much to be merged, or None. Compared
    are kinds, strides, output sizes, element types and fused activations."""
    first = graph.ops[ops[0]]
    for index in ops[1:]:
        op = graph.ops[index]
        pair = f"{first.name!r} and {op.name!r}"
        one, other = windows(graph, ops[0]), windows(graph, index)
        if [window.stride for window in one] != [window.stride for window in other]:
            return f"{pair} have different strides"
        if [window.result for window in one] != [window.result for window in other]:
            return f"{pair} have outputs of different height or width"
        if first.kind != op.kind or other_attrs(first) != other_attrs(op):
            return f"{pair} have different activations or other attributes"
        if graph.tensors[first.outputs[0]].dtype != graph.tensors[op.outputs[0]].dtype:
            return f"{pair} compute on different element types"
    return None


def _named(graph: Graph, ops: Sequence[int]) -> str:
    return ", ".join(repr(graph.ops[index].name) for index in ops)


def other_attrs(op: Op) -> tuple[tuple[str, str], ...]:
    """The attributes of a convolution other than its window, such as a fused activation, sorted."""
    kept = {key: value for key, value in op.attrs.items() if key not in GEOMETRY and value not in (None, "", [], ())}
    return tuple(sorted((key, repr(list(value) if isinstance(value, tuple) else value)) for key, value in kept.items()))
