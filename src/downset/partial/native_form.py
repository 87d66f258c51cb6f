"""A network as the native pricing takes it: integers only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from downset import native
from downset.graph.core import Graph
from downset.graph.halo_maps import pad_sides
from downset.graph.halos import same_pads, spatial_axis, window
from downset.graph.kinds import kind_of
from downset.graph.row_form import RowForm
from downset.memory.models import MemoryModel
from downset.memory.overlaps import element_bytes, geometry, walk_of
from downset.memory.storages import is_view_kind
from downset.partial.memory_form import Persistent, padded_row_bits, row_bits, takes_over

if TYPE_CHECKING:
    from downset import _native

__all__ = ["native_network"]

_WALKS = ("pixel", "channel", "four pixels", "written first")
_EXACT, _WINDOW, _TRANSPOSED, _FACTOR, _PAD = range(5)


def native_network(graph: Graph, form: RowForm, model: MemoryModel, persistent: Persistent) -> _native.StripNetwork:
    """The native module's form of a network, for prices under this memory model. O(edges)."""
    inputs = [
        [number for item in op.inputs for number in (item.tensor, *(item.map or (0, 0, 0, 0)))] for op in form.ops
    ]
    rows = native.compiled.RowForm(
        inputs,
        [op.outputs for op in form.ops],
        [[op.rows, op.macs_per_row, int(op.whole)] for op in form.ops],
        form.rows,
        form.outputs,
    )
    outputs = frozenset(graph.outputs)
    return native.compiled.StripNetwork(
        rows,
        [
            [
                *_numbers(graph, form, index),
                any(tensor in outputs for tensor in op.outputs[:1]),
                persistent.operator_bytes[index],
                op.kind == "AveragePool",
                _may_be_view(graph, form, index, model),
            ]
            for index, op in enumerate(graph.ops)
        ],
        [_overwritten(graph, form, index, model) for index in range(len(graph.ops))],
        [_walk(graph, form, index, model) for index in range(len(graph.ops))],
        [row_bits(graph, tensor, rows) for tensor, rows in enumerate(form.rows)],
        alignment=model.alignment,
        moving_persistent_bytes=persistent.moving_bytes,
        only_reader=model.in_place_only_reader,
        outputs_apart=model.outputs_apart,
        inputs_apart=model.inputs_apart,
        counts_scratch=bool(model.scratch),
    )


def _numbers(graph: Graph, form: RowForm, index: int) -> list[int]:
    op, row_op = graph.ops[index], form.ops[index]
    how, stride, reach, begin, end, factor = _given_rows_form(graph, form, index)
    adds = how == _WINDOW and any(tensor >= 0 for tensor in op.inputs[3:])
    read = [item.tensor for item in row_op.inputs]
    first = read.index(op.inputs[0]) if op.inputs and op.inputs[0] in read else -1
    padded, left, right, same = 0, 0, 0, False
    if how == _WINDOW and graph.source.format == "tflite" and first == 0:
        columns = window(graph, op, 1)
        left, right = columns.pad_begin, columns.pad_end
        wide = graph.tensors[op.inputs[0]].shape[2]
        same = (left, right) == same_pads(wide, columns)
        padded = padded_row_bits(graph, op.inputs[0], form.rows[op.inputs[0]], left + right)
    return [how, stride, reach, begin, end, factor, adds, first, padded, left, right, same]


def _may_be_view(graph: Graph, form: RowForm, index: int, model: MemoryModel) -> bool:
    """Whether the operator is of a kind whose result is the bytes of its first input (`memory.storages`)."""
    op = graph.ops[index]
    if not is_view_kind(op, model) or [*form.ops[index].outputs] != [*op.outputs]:
        return False
    return op.inputs[0] in [item.tensor for item in form.ops[index].inputs]


def _given_rows_form(graph: Graph, form: RowForm, index: int) -> tuple[int, int, int, int, int, int]:
    """(how, stride, reach, begin, end, factor): the numbers from which `rewrites.strips.given_rows` follows."""
    op, row_op = graph.ops[index], form.ops[index]
    if row_op.whole or not op.inputs or not op.outputs or spatial_axis(graph, op.outputs[0], form.axis) is None:
        return _EXACT, 1, 1, 0, 0, 1
    match kind_of(op.kind).rows:
        case "window" | "transposed window" as kind:
            frame = window(graph, op, form.axis)
            how = _WINDOW if kind == "window" else _TRANSPOSED
            return how, frame.stride, frame.reach, frame.pad_begin, frame.pad_end, 1
        case "resize" | "depth to space":
            return _FACTOR, 1, 1, 0, 0, row_op.rows // form.rows[op.inputs[0]]
        case "reshape":
            factor = row_op.rows // form.rows[op.inputs[0]]
            return (_FACTOR, 1, 1, 0, 0, factor) if factor > 1 else (_EXACT, 1, 1, 0, 0, 1)
        case "pad":
            dimension = spatial_axis(graph, op.inputs[0], form.axis)
            assert dimension is not None
            return _PAD, 1, 1, pad_sides(graph, op)[dimension][0], 0, 1
        case _:
            return _EXACT, 1, 1, 0, 0, 1


def _overwritten(graph: Graph, form: RowForm, index: int, model: MemoryModel) -> list[int]:
    over = takes_over(graph.ops[index], model)
    return [position for position, item in enumerate(form.ops[index].inputs) if item.tensor in over]


def _walk(graph: Graph, form: RowForm, index: int, model: MemoryModel) -> list[int]:
    """The walk of the kernel and the geometry of its window where the result may overlap the input; else nothing."""
    op = graph.ops[index]
    if model.kernels is None or op.kind in model.in_place or _given_rows_form(graph, form, index)[0] != _WINDOW:
        return []
    layout, order = geometry(graph, op), walk_of(graph, op, model.kernels)
    reads = [item.tensor for item in form.ops[index].inputs]
    if layout is None or order is None or reads[:1] != [*op.inputs[:1]]:
        return []
    batches, _, read_columns, depth = layout.read
    one_row = replace(layout, read=(batches, 1, read_columns, depth), written=(batches, 1, *layout.written[2:]))
    least_rows = 1 if walk_of(graph, op, model.kernels, one_row) == order else 2
    (kernel_rows, kernel_columns), (row_dilation, column_dilation) = layout.kernel, layout.dilations
    return [
        1 + _WALKS.index(order),
        element_bytes(graph, op),
        batches,
        kernel_rows,
        row_dilation,
        read_columns,
        layout.written[2],
        kernel_columns,
        layout.strides[1],
        column_dilation,
        layout.pads[1],
        depth,
        layout.written[3],
        least_rows,
    ]
