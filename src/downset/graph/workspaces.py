"""Adds what kernels hold while they run to a graph, as results that nobody reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from downset.graph.core import Graph, Tensor

__all__ = ["WORKSPACE", "with_workspaces"]

WORKSPACE = " workspace"
"""The end of the name of such a tensor, after the name of its operator."""


def with_workspaces(graph: Graph, workspaces: Mapping[int, int]) -> Graph:
    """The graph in which each of these operators also makes a tensor of so many bytes, which is live while it runs.
    Every memory model then counts them; indices and the file's order stay."""
    tensors, ops = list(graph.tensors), list(graph.ops)
    for operator, nbytes in sorted(workspaces.items()):
        op = ops[operator]
        ops[operator] = replace(op, outputs=(*op.outputs, len(tensors)))
        tensors.append(Tensor(f"{op.name}{WORKSPACE}", (nbytes,), "uint8", nbytes))
    places = graph.source.tensor_index
    source = replace(graph.source, tensor_index=(*places, *[-1] * len(workspaces)) if places else ())
    return replace(graph, tensors=tuple(tensors), ops=tuple(ops), source=source).check()
