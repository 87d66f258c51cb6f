"""The scratch that a kernel asks for when an operator computes some rows, as the written file states that operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.graph.halos import channels_last, spatial_axis, window
from downset.graph.kinds import kind_of
from downset.graph.row_form import RowForm
from downset.memory.kernel_needs import operator_scratch
from downset.memory.models import MemoryModel

__all__ = ["OnRows", "strip_scratch"]


class OnRows(NamedTuple):
    """An operator on rows. `rows`: those of its results. `above`, `below`: pads of its window. `padded`: whether it
    reads a copy with all pads, by a Pad before it. `read`: rows of each input of its row form."""

    operator: int
    rows: int
    above: int
    below: int
    padded: bool
    read: tuple[int, ...]

    @classmethod
    def of(cls, call: Sequence[int]) -> OnRows:
        """The call that these integers of the native module state."""
        operator, rows, above, below, padded, *read = call
        return cls(operator, rows, above, below, bool(padded), tuple(read))


def strip_scratch(graph: Graph, form: RowForm, model: MemoryModel, call: OnRows) -> int:
    """Aligned bytes of scratch under a memory model. O(1)."""
    op, row_op = graph.ops[call.operator], form.ops[call.operator]
    rows = {} if row_op.whole else dict.fromkeys((t for t in op.outputs if t != ABSENT), call.rows)
    rows |= dict(zip((item.tensor for item in row_op.inputs), call.read, strict=True))
    tensors = {t: _with_rows(graph, form, t, rows) for t in (*op.inputs, *op.outputs) if t != ABSENT}
    attrs = dict(op.attrs)
    moves = not row_op.whole and [item.tensor for item in row_op.inputs[:1]] == [*op.inputs[:1]]
    if moves and kind_of(op.kind).rows == "window":
        spatial = len(graph.tensors[op.inputs[0]].shape) - 2
        frames = [window(graph, op, axis) for axis in range(spatial)]
        pads = [*(frame.pad_begin for frame in frames), *(frame.pad_end for frame in frames)]
        pads[form.axis], pads[form.axis + spatial] = call.above, call.below
        if call.padded:
            tensors[op.inputs[0]] = _padded(graph, tensors[op.inputs[0]], pads)
            pads = [0] * len(pads)
        attrs["pads"] = pads
    number = {tensor: position for position, tensor in enumerate(tensors)} | {ABSENT: ABSENT}
    inputs, outputs = (tuple(number[t] for t in listed) for listed in (op.inputs, op.outputs))
    alone = Op(op.name, op.kind, inputs, outputs, attrs)
    return operator_scratch(Graph(graph.name, tuple(tensors.values()), (alone,), (), ()), alone, model.scratch)


def _with_rows(graph: Graph, form: RowForm, tensor: int, rows: dict[int, int]) -> Tensor:
    meta, dimension = graph.tensors[tensor], spatial_axis(graph, tensor, form.axis)
    if tensor not in rows or dimension is None:
        return meta
    return replace(meta, shape=(*meta.shape[:dimension], rows[tensor], *meta.shape[dimension + 1 :]))


def _padded(graph: Graph, meta: Tensor, pads: Sequence[int]) -> Tensor:
    shape, spatial, first = list(meta.shape), len(pads) // 2, 1 if channels_last(graph) else 2
    for axis in range(spatial):
        shape[first + axis] += pads[axis] + pads[axis + spatial]
    return replace(meta, shape=tuple(shape))
