"""Operators that compute some rows of a segment: the network's operators, with rows and pads made explicit.

The rows that a strip reads are cut out with Slice. A window at an inner edge has no padding there. Resizes are computed
on whole source rows and cropped. Nothing else changes, so a strip holds the values that the network has in those rows.
In an .onnx file whose rows are open, the last strip has all that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Protocol, assert_never

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.graph.core import ABSENT, Graph, Op, Role, Tensor
from downset.graph.halo_maps import pad_sides, taken_position
from downset.graph.halos import begins_inside, broadcast_axis, spatial_axis, window
from downset.graph.kinds import kind_of
from downset.graph.parts import Part, along
from downset.graph.row_form import Interval, RowForm, needed
from downset.rewrites.strip_windows import rounded_attrs, transposed_attrs, window_attrs

__all__ = ["Held", "OpenRows", "StripOps", "given_rows"]

Held = tuple[int, Interval]
"""A tensor that holds some rows of another: its index, and the rows."""


class AddTensor(Protocol):
    """The type of `graph.edit.Edit.add_tensor`, which makes a tensor and returns its index."""

    def __call__(
        self,
        name: str,
        shape: Sequence[int],
        like: Tensor,
        *,
        role: Role = "activation",
        value: Any = None,
        part: Part | None = None,
    ) -> int: ...


_END = (1 << 63) - 1
"""The end of a Slice that reaches to the last row, whatever its number is."""


def _rows_of(graph: Graph, tensor: int, dimension: int, rows: Interval) -> npt.NDArray[Any]:
    value = graph.constant(tensor)
    assert value is not None
    return value[(slice(None),) * dimension + (slice(*rows),)]


def given_rows(
    graph: Graph, form: RowForm, index: int, output_rows: Interval, read: Mapping[int, Interval]
) -> Interval:
    """The rows that operator `index` makes when `output_rows` are wanted from the rows `read` (by tensor). Its geometry
    may force more rows than these; the others are then cropped.

    Raises UnsupportedError where some wanted rows are made from padding alone and the operator adds a further input to
    its result: that input would need more rows.
    """
    op, row_op = graph.ops[index], form.ops[index]
    if _as_it_is(form, index, output_rows, read) or not op.inputs:
        return output_rows
    first = read.get(op.inputs[0], (0, 0))
    match kind_of(op.kind).rows:
        case "window":
            frame = window(graph, op, form.axis)
            result_rows = (
                min(output_rows[0], (first[0] + frame.pad_begin) // frame.stride),
                max(
                    output_rows[1], min(-((frame.reach - frame.pad_begin - first[1]) // frame.stride) + 1, row_op.rows)
                ),
            )
            if result_rows != output_rows and any(tensor != ABSENT for tensor in op.inputs[3:]):
                raise UnsupportedError(
                    f"{graph.name}: operator {op.name!r} makes rows {output_rows[0]} to {output_rows[1]} from padding "
                    "alone, and adds rows to them: give that strip more rows"
                )
            return result_rows
        case "transposed window":
            frame = window(graph, op, form.axis)
            return min(output_rows[0], (first[1] - 1) * frame.stride - frame.pad_begin + frame.reach - 1), output_rows[
                1
            ]
        case "resize" | "depth to space":
            factor = row_op.rows // form.rows[op.inputs[0]]
            return first[0] * factor, first[1] * factor
        case "reshape":
            factor = max(row_op.rows // form.rows[op.inputs[0]], 1)
            return (first[0] * factor, first[1] * factor) if factor > 1 else output_rows
        case "pad":
            dimension = spatial_axis(graph, op.inputs[0], form.axis)
            assert dimension is not None
            begin = pad_sides(graph, op)[dimension][0]
            return min(output_rows[0], first[0] + begin), max(output_rows[1], first[1] + begin)
        case _:
            return output_rows


def _as_it_is(form: RowForm, index: int, output_rows: Interval, read: Mapping[int, Interval]) -> bool:
    """Whether the operator reads all rows and makes all rows, as in the network."""
    row_op = form.ops[index]
    if row_op.whole:
        return True
    return output_rows == (0, row_op.rows) and all(rows == (0, form.rows[t]) for t, rows in read.items())


OpenRows = Literal["", "rest", "last"]
"""The rows that slices take where there are more or fewer: the same; those, and up to the last row all that are left;
or rows as far from the last one as now."""


class StripOps:
    """Adds the operators of one strip. `form` is `cost.row_form(graph)` along the axis that is cut. `slices`: tensors
    that hold some rows of tensors of the graph. New names are the old ones with `suffix`. `ops`: the operators so
    far. `origins`: for each, the operator of the graph whose rows it computes, or -1 for one that only cuts rows out.
    """

    def __init__(
        self,
        graph: Graph,
        form: RowForm,
        add_tensor: AddTensor,
        *,
        suffix: str,
        slices: Mapping[int, Held] = MappingProxyType({}),
        open_rows: OpenRows = "",
    ) -> None:
        self._graph, self._form, self._axis, self._open_rows = graph, form, form.axis, open_rows
        self._add_tensor, self._suffix = add_tensor, suffix
        self._held = dict(slices)
        self._cut: dict[tuple[int, Interval], int] = {}
        self._met: dict[tuple[int, Interval, int], int] = {}
        self._int64 = Tensor("", (), "int64", 0)
        self.ops: list[Op] = []
        self.origins: list[int] = []

    def segment(self, ops: Iterable[int], wanted: Mapping[int, Interval]) -> dict[int, int]:
        """Add operators that compute the rows `wanted` (by tensor) of the segment `ops`. Returns for each wanted tensor
        the tensor that holds exactly its wanted rows.

        A tensor from outside the segment is read from `slices` if it is there, otherwise whole from the graph. Raises
        UnsupportedError as `given_rows` does.
        """
        chosen = sorted(ops)
        computed = needed(self._form, chosen, wanted)
        for index in chosen:
            output = next((computed[tensor] for tensor in self._form.ops[index].outputs if tensor in computed), None)
            if output is not None:
                self.compute(index, output)
        return {tensor: self.rows(tensor, rows) for tensor, rows in wanted.items() if rows[0] < rows[1]}

    def rows(self, tensor: int, wanted: Interval) -> int:
        """The tensor that holds exactly the wanted rows. They are cut out of the held tensor if that has more."""
        whole = (0, self._form.rows[tensor])
        source, has = self._held.get(tensor, (tensor, whole))
        if has == wanted:
            return source
        if (tensor, wanted) not in self._cut:
            name = f"{self._graph.tensors[tensor].name}{self._suffix}/rows{wanted[0]}to{wanted[1]}"
            self._cut[tensor, wanted] = self.crop(source, tensor, has[0], wanted, name)
        return self._cut[tensor, wanted]

    def compute(self, index: int, output_rows: Interval) -> None:
        """Add the operator so that exactly these rows of its results are held."""
        op, row_op = self._graph.ops[index], self._form.ops[index]
        read = {item.tensor: self._read(item.tensor, item.map, output_rows) for item in row_op.inputs}
        inputs = tuple(self.rows(tensor, read[tensor]) if tensor in read else tensor for tensor in op.inputs)
        outputs, result_rows = self.apply(index, output_rows, inputs, read)
        for tensor, result in zip(op.outputs, outputs, strict=True):
            if tensor != ABSENT:
                whole = (0, self._form.rows[tensor])  # outputs of unequal height make all their rows
                self._held[tensor] = (result, whole if row_op.whole else result_rows)
                if not row_op.whole and result_rows != output_rows:
                    self._held[tensor] = (self.rows(tensor, output_rows), output_rows)

    def apply(
        self, index: int, output_rows: Interval, inputs: tuple[int, ...], read: Mapping[int, Interval]
    ) -> tuple[list[int], Interval]:
        """Add the operator with the tensors `inputs`, which hold exactly the rows `read` of its inputs. Returns its
        results and the rows that they hold (see `given_rows`)."""
        op = self._graph.ops[index]
        attrs, result_rows = dict(op.attrs), output_rows
        if not _as_it_is(self._form, index, output_rows, read):
            inputs = tuple(self._broadcast(op, position, tensor, output_rows) for position, tensor in enumerate(inputs))
            result_rows = given_rows(self._graph, self._form, index, output_rows, read)
            inputs, attrs = self._changed(op, inputs, attrs, read.get(op.inputs[0], (0, 0)), result_rows)
        elif attrs.get("ceil_mode", 0) and len(self._graph.tensors[op.inputs[0]].shape) in (3, 4):
            attrs = attrs if begins_inside(self._graph, op) else rounded_attrs(self._graph, op, attrs)
        outputs = [ABSENT if tensor == ABSENT else self._tensor(tensor, result_rows) for tensor in op.outputs]
        self.ops.append(Op(f"{op.name}{self._suffix}", op.kind, inputs, tuple(outputs), attrs))
        self.origins.append(index)
        return outputs, result_rows

    def _broadcast(self, op: Op, position: int, operand: int, output_rows: Interval) -> int:
        """The input cut to the rows that are made, if it is a constant with rows or a tensor of lower rank (see
        `broadcast_axis`); else the tensor `operand`."""
        tensor = op.inputs[position]
        dimension = broadcast_axis(self._graph, op, position, self._axis)
        if dimension is None or output_rows == (0, self._graph.tensors[tensor].shape[dimension]):
            return operand
        if (tensor, output_rows, dimension) not in self._met:
            meta = self._graph.tensors[tensor]
            name = f"{meta.name}{self._suffix}/rows{output_rows[0]}to{output_rows[1]}"
            if tensor in self._graph.constants:
                shape = (*meta.shape[:dimension], output_rows[1] - output_rows[0], *meta.shape[dimension + 1 :])
                value = partial(_rows_of, self._graph, tensor, dimension, output_rows)
                # A .pt2 file has the weight alone, of which it takes these rows (`formats.torch.strip_form`).
                part = along(meta.name, dimension, *output_rows) if self._graph.source.format == "torch" else None
                self._met[tensor, output_rows, dimension] = self._add_tensor(
                    name, shape, meta, role="constant", value=value, part=part
                )
            else:
                self._met[tensor, output_rows, dimension] = self.crop(operand, tensor, 0, output_rows, name, dimension)
        return self._met[tensor, output_rows, dimension]

    def _read(self, tensor: int, row_map: Any, output_rows: Interval) -> Interval:
        rows = self._form.rows[tensor]
        needed: Interval = (0, rows) if row_map is None else row_map(output_rows, rows)
        return needed

    def _changed(
        self, op: Op, inputs: tuple[int, ...], attrs: dict[str, Any], read: Interval, result_rows: Interval
    ) -> tuple[tuple[int, ...], dict[str, Any]]:
        """(inputs, attributes) for these rows, of an operator that states rows in attributes or constants."""
        match kind_of(op.kind).rows:
            case "window":
                return inputs, window_attrs(self._graph, op, attrs, self._axis, read, result_rows)
            case "transposed window":
                return inputs, transposed_attrs(self._graph, op, attrs, self._axis, read, result_rows)
            case "resize":
                return self._resized(op, inputs, result_rows), attrs
            case "pad":
                return self._padded(op, inputs, attrs, read, result_rows)
            case "slice":
                return self._sliced(op, inputs, attrs, read)
            case "reshape":
                return self._reshaped(op, inputs, result_rows), attrs
            case "gather":
                return self._gathered(op, inputs, read), attrs
            case "unknown" | "whole" | "same" | "along axis" | "from axis" | "reduction" | "product":
                return inputs, attrs
            case "attention" | "space to depth" | "depth to space" | "transpose":
                return inputs, attrs
            case other:
                assert_never(other)

    def _resized(self, op: Op, inputs: tuple[int, ...], result_rows: Interval) -> tuple[int, ...]:
        """The inputs with the strip's sizes, if the operator states sizes; stated scales do not change."""
        if op.kind == "Upsample" or op.attrs.get("layout") == "NHWC" or len(inputs) < 4 or inputs[3] == ABSENT:
            return inputs
        full = self._shape(op.outputs[0], result_rows)
        shape = [full[axis] for axis in op.attrs.get("axes") or range(len(full))]
        return (*inputs[:3], self._constant(f"{op.name}{self._suffix}/sizes", np.array(shape, np.int64)))

    def _reshaped(self, op: Op, inputs: tuple[int, ...], result_rows: Interval) -> tuple[int, ...]:
        """The inputs with the strip's sizes, if the operator states sizes. Sizes that follow from others stay so,
        except that of the rows and a copy of the input's rows."""
        dimension, read = (spatial_axis(self._graph, tensor, self._axis) for tensor in (op.outputs[0], op.inputs[0]))
        if op.kind == "Reshape" and len(inputs) < 2 and self._graph.source.format == "tflite":
            shape = np.array(self._shape(op.outputs[0], result_rows), np.int32)
            return (inputs[0], self._constant(f"{op.name}{self._suffix}/shape", shape))
        if op.kind != "Reshape" or len(inputs) < 2 or inputs[1] == ABSENT:
            return inputs
        old = self._graph.constant(op.inputs[1])
        assert old is not None and dimension is not None
        shape = old.copy()
        if read is not None and read < len(shape) and shape[read] == 0 and not op.attrs.get("allowzero"):
            shape[read] = self._graph.tensors[op.outputs[0]].shape[read]
        if not (self._open_rows and shape[dimension] == -1):
            shape[dimension] = result_rows[1] - result_rows[0]
        return (inputs[0], self._constant(f"{op.name}{self._suffix}/shape", shape), *inputs[2:])

    def _padded(
        self, op: Op, inputs: tuple[int, ...], attrs: dict[str, Any], read: Interval, result_rows: Interval
    ) -> tuple[tuple[int, ...], dict[str, Any]]:
        """(inputs, attributes) of a Pad with the strip's pads. `result_rows` includes the nearest row of the input, if
        wanted rows are padding alone."""
        sides = pad_sides(self._graph, op)
        dimension = spatial_axis(self._graph, op.inputs[0], self._axis)
        assert dimension is not None
        begin = sides[dimension][0]
        sides[dimension] = (read[0] + begin - result_rows[0], result_rows[1] - begin - read[1])
        if len(op.inputs) < 2:
            return inputs, {**attrs, "pads": [pair[end] for end in (0, 1) for pair in sides]}
        old = self._graph.constant(op.inputs[1])
        assert old is not None
        pairs = np.array(sides, old.dtype)
        value = self._constant(f"{op.name}{self._suffix}/pads", pairs if old.ndim == 2 else pairs.T.reshape(-1))
        return (inputs[0], value, *inputs[2:3]), attrs

    def _sliced(
        self, op: Op, inputs: tuple[int, ...], attrs: dict[str, Any], read: Interval
    ) -> tuple[tuple[int, ...], dict[str, Any]]:
        """(inputs, attributes) of a Slice that takes all rows read along the strip's axis, with the same step; the
        other axes do not change."""
        dimension = spatial_axis(self._graph, op.inputs[0], self._axis)
        if op.kind.startswith("tflite::"):
            return self._tflite_sliced(op, inputs, read), attrs
        if len(op.inputs) > 1:
            lists = [None if tensor == ABSENT else self._graph.constant(tensor) for tensor in op.inputs[1:]]
            starts, ends, axes, steps = (
                None if value is None else value.reshape(-1).tolist() for value in (lists + [None] * 4)[:4]
            )
        else:
            starts, ends, axes, steps = attrs["starts"], attrs["ends"], attrs.get("axes"), None
        assert starts is not None and ends is not None
        starts, ends = list(starts), list(ends)
        axes = list(range(len(starts))) if axes is None else axes
        for place, cut in enumerate(axes):
            if cut % len(self._graph.tensors[op.inputs[0]].shape) == dimension:
                starts[place], ends[place] = 0, _END if self._open_rows else read[1] - read[0]
        if len(op.inputs) == 1:
            return inputs, {**attrs, "starts": starts, "ends": ends}
        parts = {"starts": starts, "ends": ends, "axes": axes, "steps": steps or [1] * len(starts)}
        parameters = [
            self._constant(f"{op.name}{self._suffix}/{key}", np.array(value, np.int64)) for key, value in parts.items()
        ]
        return (inputs[0], *parameters), attrs

    def _gathered(self, op: Op, inputs: tuple[int, ...], read: Interval) -> tuple[int, ...]:
        """The inputs of a Gather, of which the index counts from the first row that is read where it takes one row."""
        dimension = spatial_axis(self._graph, op.inputs[0], self._axis)
        index = None if dimension is None else taken_position(self._graph, op, dimension)
        old = self._graph.constant(op.inputs[1])
        if index is None or old is None:
            return inputs
        return (inputs[0], self._constant(f"{op.name}{self._suffix}/index", np.full_like(old, index - read[0])))

    def _tflite_sliced(self, op: Op, inputs: tuple[int, ...], read: Interval) -> tuple[int, ...]:
        """The inputs of TFLite's SLICE, with a begin and a size by dimension, or STRIDED_SLICE, with a begin, an end
        and a step. A mask that leaves out a begin or an end means the same."""
        dimension = spatial_axis(self._graph, op.inputs[0], self._axis)
        bounds = []
        for name, tensor, value in (("begin", op.inputs[1], 0), ("end", op.inputs[2], read[1] - read[0])):
            old = self._graph.constant(tensor)
            assert old is not None and dimension is not None
            new = old.copy()
            new[dimension] = value
            bounds.append(self._constant(f"{op.name}{self._suffix}/{name}", new))
        return (inputs[0], *bounds, *inputs[3:])

    def crop(self, source: int, like: int, first: int, rows: Interval, name: str, dimension: int | None = None) -> int:
        """Add a Slice that cuts these rows of the tensor `like` out of `source`, which holds its rows from `first` on;
        return its result."""
        if dimension is None:
            dimension = spatial_axis(self._graph, like, self._axis)
        assert dimension is not None
        meta = self._graph.tensors[like]
        shape = (*meta.shape[:dimension], rows[1] - rows[0], *meta.shape[dimension + 1 :])
        to_end = self._open_rows != "" and rows[1] == meta.shape[dimension]
        origin = meta.shape[dimension] if self._open_rows == "last" and not first else first
        parts = {"starts": rows[0] - origin, "ends": _END if to_end else rows[1] - origin, "axes": dimension}
        bounds = [self._constant(f"{name}/{key}", np.array([value], np.int64)) for key, value in parts.items()]
        result = self._add_tensor(name, shape, meta, part=along(meta.name, dimension, *rows))
        self.ops.append(Op(name, "Slice", (source, *bounds), (result,)))
        self.origins.append(-1)
        return result

    def _constant(self, name: str, value: npt.NDArray[Any]) -> int:
        like = replace(self._int64, dtype=str(value.dtype))
        return self._add_tensor(name, value.shape, like, role="constant", value=lambda: value)

    def _tensor(self, tensor: int, rows: Interval) -> int:
        meta = self._graph.tensors[tensor]
        dimension = spatial_axis(self._graph, tensor, self._axis)
        part = Part(meta.name) if dimension is None else along(meta.name, dimension, *rows)
        return self._add_tensor(f"{meta.name}{self._suffix}", self._shape(tensor, rows), meta, part=part)

    def _shape(self, tensor: int, rows: Interval) -> tuple[int, ...]:
        shape = list(self._graph.tensors[tensor].shape)
        dimension = spatial_axis(self._graph, tensor, self._axis)
        if dimension is not None:
            shape[dimension] = rows[1] - rows[0]
        return tuple(shape)
