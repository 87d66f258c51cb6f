"""The sequence in which the subgraphs of two `.tflite` files are compared. It follows from what they call, so that
files that number the same subgraphs differently correspond. No proof relies on it: numbers of subgraphs are translated
by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from downset.equivalence.tflite_file import StoredFile, listed, subgraphs_of

__all__ = ["subgraph_order"]


def subgraph_order(stored: StoredFile) -> tuple[int, ...]:
    """The main subgraph, those that it calls and so on, those of signatures, and the others."""
    order: dict[int, None] = {}
    roots = [0, *(stored.subgraph_at(one.subgraphIndex) for one in listed(stored.model.signatureDefs))]
    for root in (*roots, *range(len(stored.model.subgraphs))):
        waiting = [root]
        while waiting:
            number = waiting.pop()
            if number not in order:
                order[number] = None
                waiting += reversed(list(_called(stored, stored.model.subgraphs[number])))
    return tuple(order)


def _called(stored: StoredFile, subgraph: Any) -> Iterator[int]:
    for operator in _operators(subgraph):
        for options in (operator.builtinOptions, operator.builtinOptions2):
            for value in subgraphs_of(options).values():
                yield from (stored.subgraph_at(index) for index in (np.ravel(value) if value is not None else ()))


def _operators(subgraph: Any) -> Iterator[Any]:
    """First the operators that the outputs need, from there backwards; then the others, as they stand in the file."""
    operators = listed(subgraph.operators)
    made_by = {int(tensor): place for place, one in enumerate(operators) for tensor in listed(one.outputs)}
    left = dict(enumerate(operators))
    waiting = [int(tensor) for tensor in listed(subgraph.outputs)][::-1]
    while waiting:
        operator = left.pop(made_by.get(waiting.pop(), -1), None)
        if operator is not None:
            yield operator
            waiting += [int(tensor) for tensor in listed(operator.inputs)][::-1]
    yield from left.values()
