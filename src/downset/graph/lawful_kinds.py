"""Operators that break the definition of their kind: too few inputs, weights of another rank, windows of other
dimensions.

Code behind the readers relies on ONNX's definition of each kind. An operator that breaks it gets the kind
`malformed::KIND`, which is not in the table and so is opaque: its tensors are planned, and it is not executed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from downset.graph.core import ABSENT, Graph, Op
from downset.graph.kinds import KINDS, Kind

__all__ = ["with_lawful_kinds"]


def with_lawful_kinds(graph: Graph) -> Graph:
    """The graph, with kind `malformed::KIND` for every operator that breaks the definition of its kind. O(inputs and
    outputs of operators)."""
    ops = tuple(
        op if op.kind not in KINDS or _fits(graph, op, KINDS[op.kind]) else replace(op, kind=f"malformed::{op.kind}")
        for op in graph.ops
    )
    return graph if ops == graph.ops else replace(graph, ops=ops)


def _fits(graph: Graph, op: Op, kind: Kind) -> bool:
    if kind.rows == "unknown":
        return True
    if len(op.inputs) < kind.needs or ABSENT in op.inputs[: kind.needs]:
        return False
    if kind.category == "constant" or not op.outputs or op.outputs[0] == ABSENT:
        return True
    shapes = [graph.tensors[tensor].shape for tensor in (*op.inputs[:2], op.outputs[0]) if tensor != ABSENT]
    match kind.rows:
        case "window" | "transposed window":
            return _fits_window(op, kind, shapes[0], shapes[1], shapes[-1])
        case "along axis" | "from axis":
            return _is_axis(op.attrs.get("axis", kind.axis), len(shapes[-1]), end=kind.rows == "from axis")
        case "space to depth" | "depth to space":
            return len(shapes[0]) == len(shapes[-1]) == 4 and _are_counts([op.attrs.get("blocksize")])
        case "slice":
            return len(op.inputs) > 1 or isinstance(op.attrs.get("starts"), (list, tuple))
    if kind.macs == "gemm":
        return len(shapes[1]) == 2
    if kind.macs == "matmul":
        return bool(shapes[0] and shapes[1])
    if kind.category == "quantiser":
        axis = op.attrs.get("axis", 1)
        return isinstance(axis, int) and (not op.attrs.get("block_size") or _is_axis(axis, len(shapes[-1])))
    return True


def _fits_window(op: Op, kind: Kind, image: tuple[int, ...], weights: tuple[int, ...], output: tuple[int, ...]) -> bool:
    slides = len(image) - 2
    if slides < 1 or len(output) != len(image):
        return False
    kernel: Any = op.attrs.get("kernel_shape")
    if not kind.pools:
        if len(weights) != len(image):
            return False
        kernel = kernel or [1] * slides
        if not _are_counts([op.attrs.get("group", 1)]):
            return False
        if op.attrs.get("layout") != "NHWC" and kind.category == "convolution":
            group = int(op.attrs.get("group", 1))
            if weights[1] * group != image[1] or weights[0] != output[1]:
                return False
    windows = [kernel, *(op.attrs.get(name) or [1] * slides for name in ("strides", "dilations"))]
    if any(not isinstance(one, (list, tuple)) or len(one) != slides or not _are_counts(one) for one in windows):
        return False
    pads: Any = op.attrs.get("pads") or [0] * (2 * slides)
    return isinstance(pads, (list, tuple)) and len(pads) == 2 * slides and all(isinstance(pad, int) for pad in pads)


def _are_counts(numbers: Any) -> bool:
    return all(isinstance(number, int) and number >= 1 for number in numbers)


def _is_axis(axis: Any, rank: int, *, end: bool = False) -> bool:
    """Whether `axis` names a dimension, or with `end` the place behind the last dimension."""
    return isinstance(axis, int) and -max(rank, 1) <= axis < max(rank, 1) + end
