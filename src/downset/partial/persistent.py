"""Estimates of the bytes that TFLite Micro keeps for each operator in the arena's tail: its node, data and tensors.

Measured on x86-64 (the difference between files of two networks in strips, exact to 7 bytes): a convolution takes 196
bytes and 8 for each output channel, whose multiplier and shift it keeps for float weights too; the operators that
strips add take 64 to 153 bytes and 24 for each of their tensors. Where pointers have four bytes, as on a Cortex-M, a
node takes 32 bytes less and a tensor 12: an operator has one tensor of its own at least.
"""

from __future__ import annotations

from downset.graph.core import Graph, Op
from downset.graph.kinds import kind_of
from downset.partial.memory_form import Persistent

__all__ = ["tflm_persistent"]

_NODE, _CHANNEL, _MOVING, _NARROWER = 196, 8, 144, 44


def tflm_persistent(graph: Graph) -> Persistent:
    """Bytes in the arena's tail, by operator."""
    return Persistent(tuple(_operator_bytes(graph, op) for op in graph.ops), _MOVING, _NARROWER)


def _operator_bytes(graph: Graph, op: Op) -> int:
    if kind_of(op.kind).category not in ("convolution", "transposed convolution") or len(op.inputs) < 2:
        return _NODE
    return _NODE + _CHANNEL * graph.tensors[op.outputs[0]].shape[-1]
