"""Nodes of `.onnx` files that hold graphs: their bodies, and what these read from outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["captures", "is_fixed", "overridable", "subgraphs"]


def is_fixed(dim: Any) -> bool:
    return bool(dim.HasField("dim_value")) and dim.dim_value >= 0


def overridable(model: Any) -> frozenset[str]:
    """The inputs with a default value: initializers that are inputs, too. A caller may give other values, so that none
    is a constant. Before version 4 of the format every initializer had to be an input, and ONNX Runtime takes no other
    values for them."""
    if model.ir_version < 4:
        return frozenset()
    graph = model.graph
    weights = {weight.name for weight in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))}
    return frozenset(weights & {value.name for value in graph.input})


def subgraphs(node: Any) -> Iterator[Any]:
    """The bodies of a control-flow node."""
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.type == 5 else attribute.graphs if attribute.type == 10 else ()


def captures(node: Any) -> Iterator[str]:
    """Names that a node's subgraphs use from outside, in order of first use."""
    for graph in subgraphs(node):
        own = {value.name for value in graph.input} | {value.name for value in graph.initializer}
        for inner in graph.node:
            for name in (*inner.input, *captures(inner)):
                if name and name not in own:
                    yield name
            own.update(inner.output)
        for value in graph.output:  # an output of a body may be a value from outside
            if value.name and value.name not in own:
                yield value.name
