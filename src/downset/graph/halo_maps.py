"""Which rows (or columns) resizes, pads and slices read: kinds that state their geometry in constants.

`dimension` is the dimension of the tensors that is their rows or columns. The result None means that the operator reads
all of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from downset.errors import UnsupportedError
from downset.graph.core import ABSENT, Graph, Op
from downset.graph.kinds import kind_of
from downset.graph.row_form import SAME, AxisMap

__all__ = ["counts_from_end", "pad_map", "pad_sides", "position_map", "resize_map", "slice_map", "taken_position"]


def resize_map(graph: Graph, op: Op, position: int, dimension: int, rows: int, output_rows: int) -> AxisMap | None:
    """The map of a resize by an integer factor; None for every other resize."""
    last = op.attrs.get("layout") == "NHWC"
    # Upsample, and Resize before opset 11, which meant the same: neither states how it maps coordinates.
    old = op.kind == "Upsample" or (len(op.inputs) == 2 and not last)
    factor = output_rows // rows
    scale = _stated_scale(graph, op, 1 if old else 2, dimension, float(factor))
    transform = op.attrs.get("coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
    if position != 0 or factor * rows != output_rows or scale != factor or transform == "tf_crop_and_resize":
        return None
    if op.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    if factor == 1:
        return SAME
    mode = op.attrs.get("mode", "nearest")
    half = transform in ("half_pixel", "pytorch_half_pixel")
    if (not half and transform != "asymmetric") or mode not in ("nearest", "linear", "bilinear"):
        return None
    if mode == "nearest":
        rounding = op.attrs.get("nearest_mode", "round_prefer_floor")
        if half or old or last or rounding == "floor":
            # Half-pixel centres fall inside the row that they copy, unless all are rounded up or all down.
            spread = factor if half and rounding in ("floor", "ceil") else 0
            return AxisMap(1, factor, -spread, spread)
        return AxisMap(1, factor, 0, factor - 1)
    return AxisMap(2, 2 * factor, 1 - factor, 1 + factor) if half else AxisMap(1, factor, 0, factor)


def _stated_scale(graph: Graph, op: Op, place: int, dimension: int, otherwise: float) -> float | None:
    """The factor that a resize states for a dimension, `otherwise` where it states none, None where the factor is
    computed at run time."""
    scales = op.attrs.get("scales", [])
    if op.attrs.get("layout") != "NHWC" and len(op.inputs) > place and op.inputs[place] != ABSENT:
        scales = graph.constant(op.inputs[place])
    if scales is None:
        return None
    if not np.size(scales):
        return otherwise
    rank = len(graph.tensors[op.inputs[0]].shape)
    axes = [int(axis) % rank for axis in op.attrs.get("axes") or range(rank)]
    if np.shape(scales) != (len(axes),):
        raise _odd(graph, op, "scales")
    return float(scales[axes.index(dimension)]) if dimension in axes else 1.0


def pad_map(graph: Graph, op: Op, position: int, dimension: int) -> AxisMap | None:
    if position != 0:
        return None
    if op.attrs.get("mode", "constant") not in ("constant", "edge"):
        return None
    begin = pad_sides(graph, op)[dimension][0]
    return AxisMap(1, 1, -begin, -begin)


def pad_sides(graph: Graph, op: Op) -> list[tuple[int, int]]:
    """(begin, end) of a Pad by dimension. Raises UnsupportedError where they are not constant, or too many or few."""
    rank = len(graph.tensors[op.inputs[0]].shape)
    pads: Any = op.attrs.get("pads") or [0] * (2 * rank)
    if len(op.inputs) > 1 and op.inputs[1] != ABSENT:
        value = graph.constant(op.inputs[1])
        if value is None:
            raise UnsupportedError(f"{graph.name}: the pads of operator {op.name!r} are not constant")
        if value.shape == (rank, 2):  # TFLite: [begin, end] for each dimension
            return [(int(begin), int(end)) for begin, end in value.tolist()]
        pads = value.reshape(-1).tolist()
    sides = [(0, 0)] * rank
    axes: Sequence[int] = range(rank)
    if len(op.inputs) > 3 and op.inputs[3] != ABSENT:
        named = graph.constant(op.inputs[3])
        axes = [] if named is None else [int(axis) % rank for axis in named.reshape(-1).tolist()]
    if len(pads) != 2 * len(axes):
        raise _odd(graph, op, "pads")
    for place, axis in enumerate(axes):
        sides[axis] = (int(pads[place]), int(pads[place + len(pads) // 2]))
    return sides


def _tflite_slice(graph: Graph, op: Op, dimension: int) -> AxisMap | None:
    """The map of TFLite's SLICE and STRIDED_SLICE along a dimension of the input."""
    begin = graph.constant(op.inputs[1])
    steps = graph.constant(op.inputs[3]) if len(op.inputs) > 3 else None
    if begin is None or (steps is None and len(op.inputs) > 3):
        return None
    first, rows = int(begin.reshape(-1)[dimension]), graph.tensors[op.inputs[0]].shape[dimension]
    step = 1 if steps is None else int(steps.reshape(-1)[dimension])
    if step < 1:
        return None
    if op.attrs.get("beginMask", 0) >> dimension & 1:
        first = 0
    offset = min(max(first + rows if first < 0 else first, 0), rows)
    return AxisMap(step, 1, offset, offset)


def slice_map(graph: Graph, op: Op, position: int, dimension: int) -> AxisMap | None:
    if position != 0:
        return None
    if op.kind.startswith("tflite::"):
        return _tflite_slice(graph, op, dimension)
    begins = _begins(graph, op)
    if begins is None:
        return None
    start, step = begins.get(dimension, (0, 1))
    if step < 1:
        return None
    rows = graph.tensors[op.inputs[0]].shape[dimension]
    offset = min(max(start + rows if start < 0 else start, 0), rows)
    return AxisMap(step, 1, offset, offset)


def _begins(graph: Graph, op: Op) -> dict[int, tuple[int, int]] | None:
    """By dimension that a slice of ONNX's form cuts: (its start, its step). None where these are not constant."""
    rank = len(graph.tensors[op.inputs[0]].shape)
    if len(op.inputs) > 1:
        values = [None if tensor == ABSENT else graph.constant(tensor) for tensor in op.inputs[1:]]
        if any(value is None for value in values):
            return None
        lists = [value.reshape(-1).tolist() for value in values if value is not None]
        starts = lists[0]
        axes = lists[2] if len(lists) > 2 else list(range(len(starts)))
        steps = lists[3] if len(lists) > 3 else [1] * len(starts)
    elif "starts" not in op.attrs:
        return None
    else:
        starts = op.attrs["starts"]
        axes, steps = op.attrs.get("axes", list(range(len(starts)))), [1] * len(starts)
    if not len(starts) == len(axes) == len(steps):
        raise _odd(graph, op, "starts")
    return {axis % rank: (int(start), int(step)) for axis, start, step in zip(axes, starts, steps, strict=True)}


def counts_from_end(graph: Graph, op: Op, dimension: int) -> bool:
    """Whether an operator of an ONNX file takes positions of its first input that are counted from the last one."""
    if kind_of(op.kind).rows == "slice":
        begins = _begins(graph, op)
        return begins is not None and begins.get(dimension, (0, 1))[0] < 0
    index = _stated_index(graph, op, dimension)
    return index is not None and index < 0


def position_map(graph: Graph, op: Op, position: int, dimension: int) -> AxisMap | None:
    """The map of an operator that takes one position of `dimension`, so that its results lack it; None for every
    other."""
    if kind_of(op.kind).rows == "slice" and op.attrs.get("shrinkAxisMask", 0) >> dimension & 1:
        return slice_map(graph, op, position, dimension)
    index = taken_position(graph, op, dimension) if position == 0 else None
    return None if index is None else AxisMap(1, 1, index, index)


def taken_position(graph: Graph, op: Op, dimension: int) -> int | None:
    """The one position that a Gather takes of a dimension of its data; None for every other operator."""
    index, size = _stated_index(graph, op, dimension), graph.tensors[op.inputs[0]].shape[dimension]
    if index is None or not -size <= index < size:
        return None
    return index + size if index < 0 else index


def _stated_index(graph: Graph, op: Op, dimension: int) -> int | None:
    """The one index of a Gather along a dimension of its data, as it is stated."""
    if kind_of(op.kind).rows != "gather" or op.attrs.get("batch_dims"):
        return None
    if int(op.attrs.get("axis", 0)) % len(graph.tensors[op.inputs[0]].shape) != dimension:
        return None
    indices = graph.constant(op.inputs[1])
    return int(indices.reshape(-1)[0]) if indices is not None and indices.size == 1 else None


def _odd(graph: Graph, op: Op, what: str) -> UnsupportedError:
    return UnsupportedError(f"{graph.name}: the {what} of operator {op.name!r} do not fit its dimensions")
