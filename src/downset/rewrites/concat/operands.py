"""How an operand is cut along the axis of a concatenation: the axis, the weights, and the part of a constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.graph.edit import Edit
from downset.graph.kinds import kind_of

__all__ = [
    "concat_axis",
    "maker",
    "operand_cut",
    "output_axis",
    "part_constant",
    "summed_axis",
]


def concat_axis(graph: Graph, op: Op) -> int:
    """The axis of a concatenation, counted from the front."""
    axis = int(op.attrs.get("axis", 0))
    return axis + len(graph.tensors[op.outputs[0]].shape) if axis < 0 else axis


def operand_cut(graph: Graph, tensor: int, joined: int, axis: int) -> str | None:
    """How an operand is cut along the axis. "parts": it is a concatenation of parts of the same shapes. "whole": all
    parts use the same values. "cut": it is a constant. None: it cannot be cut."""
    if tensor == joined:
        return "parts"
    if tensor == ABSENT:
        return None
    shape, whole = graph.tensors[tensor].shape, graph.tensors[joined].shape
    place = axis - (len(whole) - len(shape))
    if place < 0 or shape[place] == 1:
        return "whole"
    if tensor in graph.constants:
        return "cut"
    producer = maker(graph, tensor)
    if (
        producer is None
        or producer.kind != "Concat"
        or concat_axis(graph, producer) != axis
        or producer.attrs.get("activation")
    ):
        return None
    ours = maker(graph, joined)
    extents = [[graph.tensors[part].shape for part in op.inputs] for op in (producer, ours) if op is not None]
    same = extents[0] == extents[1]
    scales = {repr(graph.tensors[part].quantization) for part in (*producer.inputs, tensor)}
    return "parts" if same and len(scales) == 1 else None


def maker(graph: Graph, tensor: int) -> Op | None:
    return next((op for op in graph.ops if tensor in op.outputs), None)


def summed_axis(op: Op) -> int:
    """The axis of the weights along which products are summed."""
    if kind_of(op.kind).category == "convolution":
        return 3 if op.attrs.get("layout") == "NHWC" else 1
    return 1 if op.attrs.get("transB") else 0


def output_axis(op: Op) -> int:
    """The axis of a Conv's weights that is its output channels. Depthwise weights of channels-last files have the shape
    (1, height, width, channels)."""
    return 3 if op.attrs.get("layout") == "NHWC" and op.attrs.get("depthwise") else 0


def _slice(
    whole: Tensor, read: Callable[[], npt.NDArray[Any]], axis: int, start: int, stop: int
) -> Callable[[], npt.NDArray[Any]]:
    """A part of a constant, cut when it is read. Reading raises UnsupportedError for packed and sparse constants."""

    def cut() -> npt.NDArray[Any]:
        value = np.asarray(read())
        if value.shape != whole.shape:
            raise UnsupportedError(f"{whole.name!r} is packed or sparse ({whole.dtype}) and cannot be cut")
        index = [slice(None)] * value.ndim
        index[axis] = slice(start, stop)
        return np.ascontiguousarray(value[tuple(index)])

    return cut


def part_constant(edit: Edit, tensor: int, axis: int, start: int, stop: int, suffix: str) -> int:
    """Add a constant with the part [start, stop) of another along an axis, with its scales; return it."""
    whole = edit.tensors[tensor]
    shape = list(whole.shape)
    shape[axis] = stop - start
    value = _slice(whole, edit.constants[tensor], axis, start, stop)
    scales = whole.quantization
    if scales is not None and len(scales["scale"]) > 1 and scales["axis"] == axis:  # a scale for each channel
        cut = {key: scales[key][start:stop] for key in ("scale", "zero_point")}
        whole = replace(whole, quantization={**scales, **cut})
    return edit.add_tensor(f"{whole.name}{suffix}", shape, whole, role="constant", value=value)
