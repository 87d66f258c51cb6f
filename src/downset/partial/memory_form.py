"""Bytes of rows of tensors, and inputs that operators may overwrite: the figures from which prices are computed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from downset.graph.core import ABSENT, Graph, Op, dtype_bits
from downset.graph.halos import Window
from downset.memory.models import MemoryModel

__all__ = ["Persistent", "padded_row_bits", "row_bits", "same_pads", "takes_over"]


@dataclass(frozen=True, slots=True)
class Persistent:
    """Bytes that a runtime keeps for each operator until the end. `operator_bytes`: by operator of the network.
    `moving_bytes`: for an operator that cuts out, joins or pads rows. `narrower_bytes`: how many fewer bytes an
    operator takes where pointers have four bytes."""

    operator_bytes: tuple[int, ...]
    moving_bytes: int
    narrower_bytes: int = 0


def row_bits(graph: Graph, tensor: int, rows: int) -> int:
    """Bits of one row of a tensor that has `rows` rows."""
    meta = graph.tensors[tensor]
    return math.prod(meta.shape) * dtype_bits(meta.dtype) // max(rows, 1)


def padded_row_bits(graph: Graph, tensor: int, rows: int, columns: int) -> int:
    """Bits of one row of a channels-last tensor with `columns` more columns."""
    wide = graph.tensors[tensor].shape[2]
    return row_bits(graph, tensor, rows) // wide * (wide + columns)


def same_pads(along: Window, size: int) -> tuple[int, int]:
    """TFLite's SAME pads, (begin, end), of a window along an axis of `size` positions."""
    total = max((-(-size // along.stride) - 1) * along.stride + along.reach - size, 0)
    return total // 2, total - total // 2


def takes_over(op: Op, model: MemoryModel) -> frozenset[int]:
    """The inputs that an operator's result may overwrite under the model, if sizes are equal and no operator reads them
    later (`memory.storages.takeover`)."""
    if sum(tensor != ABSENT for tensor in op.outputs) != 1:
        return frozenset()
    position = model.in_place_input.get(op.kind)
    if position is None:
        return frozenset(op.inputs) - {ABSENT} if op.kind in model.in_place else frozenset()
    return (
        frozenset(op.inputs[position : position + 1]) - {ABSENT}
        if op.inputs[position : position + 1] and op.inputs.count(op.inputs[position]) == 1
        else frozenset()
    )
