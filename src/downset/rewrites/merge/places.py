"""Which operator of the original each one of a rewritten graph stands for: rewrites change indices, names stay.

Operators are numbered in their names while rewrites follow each other; what is merged is named after its first part.
"""

from __future__ import annotations

from dataclasses import replace

from downset.graph.core import Graph

__all__ = ["numbered", "origins", "without_numbers"]

_END = "\N{SYMBOL FOR UNIT SEPARATOR}"
"""Ends the number; no name that a file gives begins with digits and this."""


def numbered(graph: Graph) -> Graph:
    """The graph with each operator's index in front of its name."""
    return replace(graph, ops=tuple(replace(op, name=f"{index}{_END}{op.name}") for index, op in enumerate(graph.ops)))


def origins(graph: Graph) -> tuple[int, ...]:
    """By operator of a rewritten numbered graph: the index of the one it stands for, or -1 for one that is new."""
    origins_of = []
    for op in graph.ops:
        number, end, _ = op.name.partition(_END)
        origins_of.append(int(number) if end and number.isdigit() else -1)
    return tuple(origins_of)


def without_numbers(graph: Graph) -> Graph:
    """The graph with the operators' own names again."""
    ops = (replace(op, name=op.name.partition(_END)[2]) if _END in op.name else op for op in graph.ops)
    return replace(graph, ops=tuple(ops))
