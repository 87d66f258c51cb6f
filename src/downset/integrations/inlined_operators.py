"""Finds the operators that PyTorch's compiler computes inside their readers instead of storing their results.

Such an element-wise operator takes no memory for its result. The tensors that it reads stay until the last of its
readers ran, which may be more bytes than its result: a peak without this rule can be too low.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

__all__ = ["Expression", "Inlining", "inlined"]


@dataclass(frozen=True, slots=True)
class Expression:
    """An operator that works element by element."""

    inputs: frozenset[str] = frozenset()
    """The graph's inputs that it reads."""
    operations: int = 1
    dear: bool = False
    """Whether it is always stored if several operators read it, as exponentials are on a processor."""


@dataclass(frozen=True, slots=True)
class Inlining:
    """The limits up to which the compiler computes an expression again for each of its readers; Inductor's own."""

    reads: int = 4
    """The most tensors that it may read if several operators read the result."""
    reads_at_all: int = 12
    operations: int = 50


def inlined(
    reads: Sequence[Collection[int]],
    expressions: Sequence[Expression | None],
    stored: Collection[int],
    inlining: Inlining,
) -> dict[int, frozenset[int]]:
    """The stored results that each operator reads which is computed inside its readers. Operators of `stored`
    are never among them."""
    readers = [0] * len(reads)
    for sources in reads:
        for source in sources:
            readers[source] += 1
    gone: dict[int, frozenset[int]] = {}
    whole: dict[int, Expression] = {}
    for v, sources in enumerate(reads):
        expression = expressions[v]
        if expression is None or v in stored or not readers[v]:
            continue
        parts = [whole[source] for source in sources if source in gone]
        read = frozenset(sources)
        if parts:
            read = frozenset().union(*(gone.get(source, (source,)) for source in sources))
        inputs = expression.inputs.union(*(part.inputs for part in parts))
        operations = expression.operations + sum(part.operations for part in parts)
        dear = expression.dear or any(part.dear for part in parts)
        count = len(read) + len(inputs)
        large = operations + count > inlining.operations
        if count > inlining.reads_at_all or large:
            continue
        if readers[v] > 1 and (dear or count > inlining.reads):
            continue
        gone[v], whole[v] = read, Expression(inputs, operations, dear)
    return gone
