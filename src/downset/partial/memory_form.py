"""The figures from which prices are computed: bytes of rows of tensors, inputs that operators may overwrite, and bytes
that TFLite Micro keeps for each operator in the arena's tail (its node, parameters, data and tensors).

The bytes in the tail were measured on x86-64, as the difference between networks with and without strips. They give the
tail of such a file up to an alignment, 16 bytes. A convolution keeps a multiplier and a shift for each output channel,
for float weights too. Where pointers have four bytes, as on a Cortex-M, a node takes 32 bytes less and a tensor 12
less; an operator makes at least one tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from downset.graph.core import ABSENT, Graph, Op, dtype_bits
from downset.graph.kinds import kind_of
from downset.memory.models import MemoryModel

__all__ = ["Persistent", "padded_row_bits", "row_bits", "takes_over", "tflm_kept", "tflm_persistent"]


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


def takes_over(op: Op, model: MemoryModel) -> frozenset[int]:
    """The inputs that an operator's result may overwrite under the model, if sizes are equal and no operator reads them
    later (`memory.storages.takeover`)."""
    if sum(tensor != ABSENT for tensor in op.outputs) != 1:
        return frozenset()
    position = model.in_place_input.get(op.kind)
    if position is None:
        if op.kind not in model.in_place:
            return frozenset()
        # What an operator reads twice has more readers than one.
        most = 1 if model.in_place_only_reader else len(op.inputs)
        return frozenset(tensor for tensor in op.inputs if tensor != ABSENT and op.inputs.count(tensor) <= most)
    return (
        frozenset(op.inputs[position : position + 1]) - {ABSENT}
        if op.inputs[position : position + 1] and op.inputs.count(op.inputs[position]) == 1
        else frozenset()
    )


_NODE, _TENSOR, _MOVING, _NARROWER = 64, 24, 144, 44
_CONVOLUTION, _CHANNELS = 28 + 80, (4, 32)
"""Bytes of parameters and data of a convolution; then (channels, bytes for these channels)."""
_KEPT = {
    "Add": 72,
    "Sub": 72,
    "Mul": 72,
    "AveragePool": 72,
    "MaxPool": 72,
    "Concat": 88,
    "Pad": 64,
    "Relu": 32,
    "Clip": 32,
    "tflite::SLICE": 0,
}
"""Bytes of parameters and data of other kinds."""
_OTHERS = 72
"""The same for kinds that are not listed."""


def tflm_persistent(graph: Graph) -> Persistent:
    """Bytes in the arena's tail for each operator and one tensor that it makes."""
    return Persistent(tuple(_operator_bytes(graph, op) + _TENSOR for op in graph.ops), _MOVING, _NARROWER)


def tflm_kept(graph: Graph) -> int:
    """Bytes in the arena's tail for all operators of a network and the tensors that they read or make."""
    tensors = {tensor for op in graph.ops for tensor in (*op.inputs, *op.outputs) if tensor != ABSENT}
    return _TENSOR * len(tensors) + sum(_operator_bytes(graph, op) for op in graph.ops)


def _operator_bytes(graph: Graph, op: Op) -> int:
    if kind_of(op.kind).category not in ("convolution", "transposed convolution") or len(op.inputs) < 2:
        return _NODE + _KEPT.get(op.kind, _OTHERS)
    channels, nbytes = _CHANNELS
    return _NODE + _CONVOLUTION + nbytes * -(-graph.tensors[op.outputs[0]].shape[-1] // channels)
