"""Nodes of `.onnx` files that hold graphs: their bodies, and what these read from outside. All tensors of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["captures", "is_fixed", "overridable", "subgraphs", "tensors_of"]


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


def tensors_of(model: Any) -> Iterator[Any]:
    """Every tensor that is stored in a model: in its graph, its functions, and the graphs and functions inside, as an
    initializer or an attribute."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_attributes(function.attribute_proto)
        yield from _of_nodes(function.node)
    for training in model.training_info:
        yield from _of_graph(training.initialization)
        yield from _of_graph(training.algorithm)


def _of_graph(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield from _of_attributes(node.attribute)


def _of_attributes(attributes: Any) -> Iterator[Any]:
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for sparse in [attribute.sparse_tensor, *attribute.sparse_tensors]:
            yield from (sparse.values, sparse.indices)
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            yield from _of_graph(graph)
