"""Bytes that TFLite Micro keeps for each operator in the arena's tail: its node, parameters, data and tensors.

The figures were measured on x86-64, as the difference between networks with and without strips. They give the tail of
such a file up to an alignment, 16 bytes. A convolution keeps a multiplier and a shift for each output channel, for
float weights too. Where pointers have four bytes, as on a Cortex-M, a node takes 32 bytes less and a tensor 12 less; an
operator makes at least one tensor.
"""

from __future__ import annotations

from downset.graph.core import ABSENT, Graph, Op
from downset.graph.kinds import kind_of
from downset.partial.memory_form import Persistent

__all__ = ["tflm_kept", "tflm_persistent"]

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
