"""Carries the order by which a step was planned to the scheduler, as one that its search may begin with.

Recomputation and chunks are chosen by the peak of an order of operators. The scheduler has other nodes: kernels that
are fused, updates, constants. A kernel takes the place of its last operator; an update follows the gradients that it
reads at once; everything else runs just before its first reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["PLANNED", "planned_order"]

PLANNED = "downset_planned"
"""The key of an fx node's meta that holds its place in the planned order."""


def planned_order(
    nodes: Sequence[Any], predecessors: Sequence[Sequence[int]], origins: Callable[[Any], Iterable[Any]]
) -> list[int]:
    """The positions of the scheduler's nodes in the planned order; empty if none was planned. O(nodes + reads)."""
    places = [max((of.meta[PLANNED] for of in origins(node) if PLANNED in of.meta), default=-1) for node in nodes]
    if max(places, default=-1) < 0:
        return []
    readers: list[list[int]] = [[] for _ in nodes]
    for reader, before in enumerate(predecessors):
        for source in before:
            readers[source].append(reader)
    ends = [place < 0 for place in places]  # nodes that only such nodes read, as those of an update are
    for v in reversed(range(len(nodes))):
        ends[v] = ends[v] and all(ends[reader] for reader in readers[v])
    waiting = [len(before) for before in predecessors]
    done = [False] * len(nodes)
    order: list[int] = []

    def run(operator: int) -> None:
        ahead = [operator]
        while ahead:
            v = ahead[-1]
            missing = [] if done[v] else [source for source in predecessors[v] if not done[source]]
            if missing:
                ahead += reversed(missing)
                continue
            ahead.pop()
            if done[v]:
                continue
            done[v] = True
            order.append(v)
            for reader in readers[v]:
                waiting[reader] -= 1
                if ends[reader] and not waiting[reader]:
                    ahead.append(reader)

    for v in sorted(range(len(nodes)), key=lambda v: (places[v] < 0, places[v], v)):
        run(v)
    return order
