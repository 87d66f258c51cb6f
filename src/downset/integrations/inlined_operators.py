"""Which operators PyTorch's compiler computes inside their readers in place of storing what they make.

An operator element by element has no memory of its own then. What it reads stays until the last of its readers ran,
which may be more bytes than its own result: so a peak without this rule can be too low.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

__all__ = ["Expression", "Inlining", "inlined"]


@dataclass(frozen=True, slots=True)
class Expression:
    """An operator element by element."""

    inputs: frozenset[str] = frozenset()
    """Inputs of the graph that it reads."""
    operations: int = 1
    dear: bool = False
    """Whether it is always stored where several operators read it: exponentials, on a processor."""


@dataclass(frozen=True, slots=True)
class Inlining:
    """Up to where the compiler computes an expression again for each of its readers: Inductor's own limits."""

    reads: int = 4
    """Tensors that it reads, where several operators read the result."""
    reads_at_all: int = 12
    operations: int = 50


def inlined(
    reads: Sequence[Collection[int]],
    expressions: Sequence[Expression | None],
    stored: Collection[int],
    inlining: Inlining,
) -> dict[int, frozenset[int]]:
    """By operator that is computed inside its readers: the stored results that it reads. Never one of `stored`."""
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
