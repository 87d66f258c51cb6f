"""Finds for each operator of a rewritten graph the operator of the original that it replaces. Rewrites change indices,
but keep names.

While several rewrites follow each other, each operator's name begins with its original index. A merged operator is
named after the first of its parts.
"""

from __future__ import annotations

from dataclasses import replace

from downset.graph.core import Graph

__all__ = ["numbered", "origins", "without_numbers"]

_END = "\N{SYMBOL FOR UNIT SEPARATOR}"
"""The character behind the number; no name in a file begins with digits and this."""


def numbered(graph: Graph) -> Graph:
    """The graph with each operator's index in front of its name."""
    return replace(graph, ops=tuple(replace(op, name=f"{index}{_END}{op.name}") for index, op in enumerate(graph.ops)))


def origins(graph: Graph) -> tuple[int, ...]:
    """By operator of a rewritten numbered graph: the index of the operator that it replaces, or -1 for a new one."""
    origins_of = []
    for op in graph.ops:
        number, end, _ = op.name.partition(_END)
        origins_of.append(int(number) if end and number.isdigit() else -1)
    return tuple(origins_of)


def without_numbers(graph: Graph) -> Graph:
    """The graph without the numbers that `numbered` put into names."""
    ops = (replace(op, name=op.name.partition(_END)[2]) if _END in op.name else op for op in graph.ops)
    return replace(graph, ops=tuple(ops))
