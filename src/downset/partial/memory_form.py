"""Bytes of some rows of a tensor, and what operators may make in place: what prices are counted with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from downset.graph.core import ABSENT, Graph, Op, dtype_bits
from downset.graph.halos import Window
from downset.memory.models import MemoryModel

__all__ = ["Persistent", "padded_row_bits", "row_bits", "same_pads", "takes_over"]


@dataclass(frozen=True, slots=True)
class Persistent:
    """Bytes that a runtime keeps for each operator of a network beside its arena, by operator; `moving_bytes`: for one
    that cuts out, joins or pads rows; `narrower_bytes`: how many fewer each takes where pointers have four bytes."""

    operator_bytes: tuple[int, ...]
    moving_bytes: int
    narrower_bytes: int = 0


def row_bits(graph: Graph, tensor: int, rows: int) -> int:
    """Bits of one row."""
    meta = graph.tensors[tensor]
    return math.prod(meta.shape) * dtype_bits(meta.dtype) // max(rows, 1)


def padded_row_bits(graph: Graph, tensor: int, rows: int, columns: int) -> int:
    """Bits of one row of a channels-last tensor with so many columns more."""
    wide = graph.tensors[tensor].shape[2]
    return row_bits(graph, tensor, rows) // wide * (wide + columns)


def same_pads(along: Window, size: int) -> tuple[int, int]:
    """TFLite's SAME pads, (begin, end), of a window along so many positions."""
    total = max((-(-size // along.stride) - 1) * along.stride + along.reach - size, 0)
    return total // 2, total - total // 2


def takes_over(op: Op, model: MemoryModel) -> frozenset[int]:
    """The inputs in whose bytes the model lets an operator make its result, where sizes are equal and nobody reads them
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
