"""Leaves the optimiser's update out of the graph by which recomputation is planned.

Kernels of the update write in place and take no memory of their own. All that they change is how long gradients live:
each until the update that reads it, or all of them until the last where the update needs their norm. So one operator
without bytes stands for each set of gradients that an update reads, and the graph is a fraction of its size.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from downset.integrations.training_graph import TrainingGraph

__all__ = ["without_update"]


def without_update(graph: TrainingGraph, update: Collection[int]) -> tuple[TrainingGraph, tuple[int, ...]]:
    """(the graph without these operators, the old number of each of its operators).

    `update`: operators that no other operator reads. An operator of the update stands for each set of results that
    parts of it read, right behind them. The graph stays as it is if the update has operators outside of kernels, such
    as products of matrices, which take memory. O(operators * gradients that one update reads).
    """
    if any(graph.nbytes[v] and not graph.loops[v] for v in update):
        return graph, tuple(range(len(graph.reads)))
    roots: dict[int, frozenset[int]] = {}
    last: set[int] = set(update)
    for v in sorted(update):
        read = graph.reads[v]
        roots[v] = frozenset(of for of in read if of not in update).union(*(roots[of] for of in read if of in update))
        last -= {*read}
    sinks: dict[frozenset[int], int] = {}
    waits: dict[int, set[int]] = {}
    for v in sorted(last):
        if roots[v]:
            sink = sinks.setdefault(roots[v], v)
            waits.setdefault(sink, set()).update(_waits_of(graph, update, v))
    reads_of = {sink: read for read, sink in sinks.items()}
    kept = [v for v in range(len(graph.reads)) if v not in update or v in reads_of]
    kept.sort(key=lambda v: (max(*reads_of[v], *waits[v], 0), 1, v) if v in reads_of else (v, 0, v))
    number = {v: position for position, v in enumerate(kept)}

    def numbered(operators: Collection[int]) -> tuple[int, ...]:
        return tuple(sorted(number[v] for v in operators))

    return replace(
        graph,
        reads=tuple(numbered(reads_of.get(v, graph.reads[v])) for v in kept),
        waits=tuple(numbered(waits.get(v, graph.waits[v])) for v in kept),
        nbytes=tuple(0 if v in reads_of else graph.nbytes[v] for v in kept),
        loops=tuple(0 if v in reads_of else graph.loops[v] for v in kept),
        costs=tuple(0.0 if v in reads_of else graph.costs[v] for v in kept),
        may=tuple(graph.may[v] and v not in reads_of for v in kept),
        kept=frozenset(number[v] for v in graph.kept if v in number and v not in reads_of),
        late=frozenset(number[v] for v in graph.late if v in number),
        workspaces=tuple(0 if v in reads_of else graph.workspaces[v] for v in kept) if graph.workspaces else (),
        expressions=tuple(None if v in reads_of else graph.expressions[v] for v in kept) if graph.expressions else (),
    ), tuple(kept)


def _waits_of(graph: TrainingGraph, update: Collection[int], last: int) -> set[int]:
    """The operators outside of the update that run before any of its operators on which `last` depends."""
    waits: set[int] = set()
    ahead, seen = [last], {last}
    while ahead:
        v = ahead.pop()
        waits.update(of for of in graph.waits[v] if of not in update)
        further = {of for of in graph.reads[v] if of in update} - seen
        seen |= further
        ahead += further
    return waits
