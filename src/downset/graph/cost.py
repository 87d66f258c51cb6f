"""Multiply-accumulates (MACs) of operators and segments, and the graph as rows: the only definition of both.

A MAC is one multiplication with its addition in a convolution or matrix product. Other operators, biases and fused
activations count none, as in PICO, equation 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from downset.errors import UnsupportedError
from downset.graph.core import ABSENT, Graph, Op
from downset.graph.halos import activation_maps, extent, is_whole
from downset.graph.kinds import kind_of
from downset.graph.row_axes import spatial_axis
from downset.graph.row_form import AxisMap, Interval, RowForm, RowInput, RowOp, needed

__all__ = ["longest_axis", "macs", "op_macs", "row_form", "segment_macs", "whole_macs"]


def op_macs(graph: Graph, op: Op) -> int:
    """Multiply-accumulates of one operator: output elements times the products that are summed for each."""
    if not op.outputs or op.outputs[0] == ABSENT:
        return 0
    elements = math.prod(graph.tensors[op.outputs[0]].shape)
    match kind_of(op.kind).macs:
        case "none":
            return 0
        case "convolution":
            weights = graph.tensors[op.inputs[1]].shape
            if op.attrs.get("layout") == "NHWC":
                # TFLite's depthwise weights are (1, height, width, channels): one input channel for each output channel
                return elements * (math.prod(weights[1:3]) if op.attrs.get("depthwise") else math.prod(weights[1:]))
            return elements * math.prod(weights[1:])
        case "transposed convolution":
            weights = graph.tensors[op.inputs[1]].shape
            read = math.prod(graph.tensors[op.inputs[0]].shape)
            return read * (math.prod(weights) // weights[3 if op.attrs.get("layout") == "NHWC" else 0])
        case "recurrent":  # each step of each sequence multiplies by all weights of the row and of the state
            steps = math.prod(graph.tensors[op.inputs[0]].shape[:2])
            return steps * sum(math.prod(graph.tensors[tensor].shape) for tensor in op.inputs[1:3])
        case "matrices":  # each step of each sequence multiplies by all constant matrices
            metas = [graph.tensors[tensor] for tensor in op.inputs[1:] if tensor != ABSENT]
            steps = math.prod(graph.tensors[op.inputs[0]].shape[:-1])
            return steps * sum(math.prod(one.shape) for one in metas if one.role == "constant" and len(one.shape) == 2)
        case "gemm":
            rows, columns = graph.tensors[op.inputs[1]].shape
            return elements * (columns if op.attrs.get("transB") else rows)
        case "matmul":
            shape = graph.tensors[op.inputs[0]].shape
            return elements * (shape[-2] if op.attrs.get("transA") and len(shape) > 1 else shape[-1])


def macs(graph: Graph) -> int:
    """Multiply-accumulates of one run of the network."""
    return sum(op_macs(graph, op) for op in graph.ops)


def row_form(graph: Graph, *, axis: int = 0, halos_required: bool = True) -> RowForm:
    """The graph as integers along rows (axis 0) or columns (axis 1): what planners of strips read.

    An operator whose halo is not known is computed whole; with `halos_required` it raises UnsupportedError instead.
    """
    key = ("row form", axis)
    if key not in graph.facts:
        graph.facts[key] = _row_form(graph, axis)
    form: RowForm
    refused: str | None
    form, refused = graph.facts[key]
    if halos_required and refused is not None:
        raise UnsupportedError(refused)
    return form


def _row_form(graph: Graph, axis: int) -> tuple[RowForm, str | None]:
    """The form, and a message about the first operator whose halo is not known (None: every halo is known)."""
    rows = tuple(extent(graph, tensor, axis) for tensor in range(len(graph.tensors)))
    nbytes = tuple(
        tensor.nbytes // max(rows[index], 1) if tensor.role == "activation" else 0
        for index, tensor in enumerate(graph.tensors)
    )
    refused: list[str] = []
    cached: dict[object, _Reading] = {}
    ops = tuple(_row_op(graph, op, rows, axis, refused, cached) for op in graph.ops)
    return RowForm(ops, rows, nbytes, graph.inputs, graph.outputs, axis), refused[0] if refused else None


_Reading = tuple[dict[int, AxisMap | None], bool, int]
"""The maps by input position of an activation, whether the operator is computed whole, and its MACs at run time."""


def _row_op(
    graph: Graph, op: Op, rows: tuple[int, ...], axis: int, refused: list[str], cached: dict[object, _Reading]
) -> RowOp:
    """`cached`: the readings found so far, by `_likeness`. An unknown halo adds a message to `refused`."""
    outputs = tuple(tensor for tensor in op.outputs if tensor != ABSENT)
    first: dict[int, int] = {}  # position at which the operator reads a tensor first
    for position, tensor in enumerate(op.inputs):
        first.setdefault(tensor, position)
    read = [
        position
        for tensor, position in first.items()
        if tensor != ABSENT and graph.tensors[tensor].role == "activation"
    ]
    output_rows = rows[outputs[0]] if outputs else 1
    try:
        maps, whole, count = _reading(graph, op, axis, cached)
    except UnsupportedError as error:
        refused.append(error.message)
        maps, whole, count = dict.fromkeys(read), True, _macs_at_run_time(graph, op)
    inputs = tuple(RowInput(op.inputs[position], maps[position]) for position in read)
    if any(rows[tensor] != output_rows for tensor in outputs):
        whole = True  # outputs of unequal height have no common rows
    # The MACs of a transposed convolution are counted from its input and may not be a multiple of its output rows:
    # rounding up adds less than one MAC a row.
    return RowOp(inputs, outputs, output_rows, -(-count // max(output_rows, 1)), whole)


def _macs_at_run_time(graph: Graph, op: Op) -> int:
    outputs = [graph.tensors[tensor] for tensor in op.outputs if tensor != ABSENT]
    fixed = bool(outputs) and all(tensor.role == "constant" for tensor in outputs)
    return 0 if fixed else op_macs(graph, op)  # constants are computed before the run


def _reading(graph: Graph, op: Op, axis: int, cached: dict[object, _Reading]) -> _Reading:
    key = _likeness(graph, op, axis)
    if key is None or key not in cached:
        maps = activation_maps(graph, op, axis)
        whole = is_whole(graph, op, axis, maps)
        reading = {position: _near(op, one) for position, one in maps.items()}, whole, _macs_at_run_time(graph, op)
        if key is None:
            return reading
        cached[key] = reading
    return cached[key]


def _likeness(graph: Graph, op: Op, axis: int) -> object | None:
    """A key; operators with equal keys read rows alike. None where this also depends on values of constants or on
    further outputs. Tensors of one shape may have rows along different dimensions, or none (`rows_spread_from`)."""
    kind, tensors = kind_of(op.kind), (*op.inputs, *op.outputs)
    if kind.rows not in ("same", "window") or kind.draws != "never" or len(op.outputs) != 1 or len(tensors) > 5:
        return None
    attributes = [
        (name, tuple(value) if isinstance(value, list) and len(value) <= _FEW else value)
        for name, value in op.attrs.items()
    ]
    shapes = [
        ABSENT
        if tensor == ABSENT
        else (graph.tensors[tensor].shape, graph.tensors[tensor].role, spatial_axis(graph, tensor, axis))
        for tensor in tensors
    ]
    key = op.kind, *attributes, *shapes, len({*op.inputs})
    try:
        hash(key)
    except TypeError:
        return None
    return key


_FEW = 16
"""The most numbers in an attribute that is part of a key."""


def _near(op: Op, mapped: AxisMap | None) -> AxisMap | None:
    """The map itself. Raises UnsupportedError where its numbers are so large that sums might not fit into 64 bits."""
    if mapped is not None and any(abs(number) > _FURTHEST for number in mapped):
        raise UnsupportedError(
            f"operator {op.name!r} ({op.kind}): its attributes name rows more than {_FURTHEST:,} away"
        )
    return mapped


_FURTHEST = 1 << 31


def longest_axis(graph: Graph) -> int:
    """The axis to cut along: 0 (rows) or 1 (columns). Operators whose halo is not known are computed whole.

    The finest strip is one row of every operator that can be cut, and all of every other operator. The result is the
    axis whose finest strip has the fewest MACs; of two with equal MACs, the one with the fewest bytes; of two equal in
    both, the rows. Where every operator can be cut along both axes this is the longer axis.
    """
    return min((0, 1), key=lambda axis: _finest_strip(row_form(graph, axis=axis, halos_required=False)))


def _finest_strip(form: RowForm) -> tuple[int, int]:
    """(MACs, bytes of results) of one row of every operator that can be cut, and of all of every other operator."""
    least = sum(op.macs if op.whole else op.macs_per_row for op in form.ops)
    output_rows = ((tensor, form.rows[tensor] if op.whole else 1) for op in form.ops for tensor in op.outputs)
    return least, sum(form.bytes_per_row[tensor] * rows for tensor, rows in output_rows)


def segment_macs(form: RowForm, ops: Iterable[int], wanted: Mapping[int, Interval]) -> int:
    """Multiply-accumulates that the operators `ops` spend to make the rows `wanted` (PICO, equations 2 to 6)."""
    chosen = tuple(ops)
    rows = needed(form, chosen, wanted)
    total = 0
    for index in chosen:
        op = form.ops[index]
        start, stop = next((rows[tensor] for tensor in op.outputs if tensor in rows), (0, 0))
        total += op.macs_per_row * (stop - start)
    return total


def whole_macs(form: RowForm, ops: Iterable[int]) -> int:
    """Multiply-accumulates of the operators, each computed once."""
    return sum(form.ops[index].macs for index in ops)
