"""A short name for a network's structure, so that a plan can say which one it was made for."""

from __future__ import annotations

import hashlib

from downset.graph.core import ABSENT, Graph

__all__ = ["fingerprint"]


def fingerprint(graph: Graph) -> str:
    """32 hexadecimal digits: a hash of operators' names, kinds, attributes, tensor indices and shapes. Weights are left
    out, so that a plan also holds after further training."""
    digest = hashlib.sha256()
    for op in graph.ops:
        shapes = [graph.tensors[tensor].shape for tensor in (*op.inputs, *op.outputs) if tensor != ABSENT]
        attributes = sorted((key, repr(value)) for key, value in op.attrs.items())
        digest.update(repr((op.name, op.kind, attributes, shapes, op.inputs, op.outputs)).encode())
    return digest.hexdigest()[:32]
