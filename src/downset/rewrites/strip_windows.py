"""Attributes of windows that make some rows: the pads of a strip, and whether a size is rounded up.

Rows lie along one spatial axis, `axis`; on the other axes a window stays as it is. Pads are written out, without
`auto_pad`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from downset.graph.core import Graph, Op
from downset.graph.halos import Window, channels_last, window
from downset.graph.row_form import Interval

__all__ = ["rounded_attrs", "strip_pads", "transposed_attrs", "window_attrs"]

_Attrs = Mapping[str, Any]


def strip_pads(frame: Window, rows: int, output_rows: Interval, read: Interval) -> tuple[int, int]:
    """(begin, end) padding of a window that makes `output_rows` from the rows `read` of an input of `rows` rows."""
    first = output_rows[0] * frame.stride - frame.pad_begin
    last = (output_rows[1] - 1) * frame.stride - frame.pad_begin + frame.reach
    # A pool with ceil_mode may reach beyond its padding. Pads do not cover that part, as ceil_mode counts it
    # differently. One row more than the last window needs may be read (`writable_rows`); it needs no padding.
    return read[0] - first, max(min(last, rows + frame.pad_end) - read[1], 0)


def window_attrs(
    graph: Graph, op: Op, attrs: _Attrs, axis: int, read: Interval, result_rows: Interval
) -> dict[str, Any]:
    """The attributes of a window that reads the rows `read` of its input. `result_rows` reaches to the nearest window
    that reads a row, if wanted rows are made from padding alone."""
    pads = strip_pads(window(graph, op, axis), _sizes(graph, op, axis)[0], result_rows, read)
    return _rounded(graph, op, _with_pads(graph, op, attrs, {axis: pads}), {axis: (_count(read), _count(result_rows))})


def rounded_attrs(graph: Graph, op: Op, attrs: _Attrs) -> dict[str, Any]:
    """The attributes of a window on all rows, without `ceil_mode` where it adds no window."""
    return _rounded(graph, op, _with_pads(graph, op, attrs, {}), {})


def transposed_attrs(
    graph: Graph, op: Op, attrs: _Attrs, axis: int, read: Interval, result_rows: Interval
) -> dict[str, Any]:
    """The attributes of a transposed convolution in a strip. Its pads cut off rows that the windows make outside the
    strip. `output_padding` adds rows behind the last window, which a stride larger than the window or the operator's
    `output_padding` asks for."""
    frame = window(graph, op, axis)
    first = read[0] * frame.stride - frame.pad_begin
    behind = (read[1] - 1) * frame.stride - frame.pad_begin + frame.reach
    padding = list(attrs.get("output_padding") or [0] * (len(graph.tensors[op.inputs[0]].shape) - 2))
    padding[axis] = max(result_rows[1] - behind, 0)
    pads = result_rows[0] - first, max(behind - result_rows[1], 0)
    return _with_pads(graph, op, {**attrs, "output_padding": padding}, {axis: pads})


def _rounded(graph: Graph, op: Op, attrs: dict[str, Any], along: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    """The attributes without `ceil_mode` where it adds no window, so that ONNX infers the sizes that ONNX Runtime
    makes. `along`: by axis, numbers of rows that the strip reads and makes; those of the network on the others."""
    pads = attrs["pads"]
    spatial = len(pads) // 2
    for axis in range(spatial if attrs.get("ceil_mode", 0) else 0):
        frame = window(graph, op, axis)
        size, count = along.get(axis) or _sizes(graph, op, axis)
        if (size + pads[axis] + pads[axis + spatial] - frame.reach) // frame.stride + 1 != count:
            return attrs
    return {**attrs, "ceil_mode": 0} if "ceil_mode" in attrs else attrs


def _with_pads(graph: Graph, op: Op, attrs: _Attrs, along: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    """The attributes with the pads `along`, by axis, and the operator's pads on the other axes."""
    spatial = len(graph.tensors[op.inputs[0]].shape) - 2
    frames = [window(graph, op, axis) for axis in range(spatial)]
    sides = [along.get(axis, (frame.pad_begin, frame.pad_end)) for axis, frame in enumerate(frames)]
    pads = [pair[end] for end in (0, 1) for pair in sides]
    return {**{key: value for key, value in attrs.items() if key != "auto_pad"}, "pads": pads}


def _sizes(graph: Graph, op: Op, axis: int) -> tuple[int, int]:
    """The sizes of the input and the output along a spatial axis."""
    place = axis + (1 if channels_last(graph) else 2)
    return graph.tensors[op.inputs[0]].shape[place], graph.tensors[op.outputs[0]].shape[place]


def _count(rows: Interval) -> int:
    return rows[1] - rows[0]
