"""Liu's optimal order of a tree: chains of hill-valley segments, merged where branches meet.

Source: J. W. H. Liu, "An application of generalized tree pebbling to sparse matrix factorization" (1987), section 4.
Names: a hill is the most that a segment holds, a valley what it leaves; both count from the start of the branch.
Complexity: O(V · segments of a branch) in theory, nearly linear on random trees.
Deviations: a graph is read as a forest: an operator belongs to the branch of the operator that reads its result last in
    the file's order. Where operators have several readers, branches are merged in this forest all the same, and the
    operators then run by their place in the merged order, as soon as their predecessors have run: a proposal without a
    guarantee. On in-trees whose operators work in no place of another, the order is optimal; `optimal` proves it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import chain

from downset.lattice import successor_lists
from downset.memory.liveness import OrderProblem
from downset.results.plans import Found

__all__ = ["liu"]

_Segment = tuple[int, int, list[int]]
"""(hill, valley, operators); both in bytes above what is live before the branch."""


def liu(problem: OrderProblem) -> Found:
    """The order of Liu's algorithm: of least peak where the graph is an in-tree and every storage has one producer and
    one reader."""
    allocated, freed = [0] * len(problem.predecessors), [0] * len(problem.predecessors)
    for storage in problem.storages:
        if storage.producers:
            allocated[storage.producers[0]] += storage.nbytes
        if not storage.kept:
            freed[storage.consumers[-1]] += storage.nbytes
    after = successor_lists(problem.predecessors)
    branches: list[list[list[_Segment]]] = [[] for _ in problem.predecessors]  # by operator: those that it ends
    roots: list[list[_Segment]] = []
    for operator, own in enumerate(branches):
        merged = _merged(own)
        live = merged[-1][1] if merged else 0
        _append(merged, (live + allocated[operator], live + allocated[operator] - freed[operator], [operator]))
        own.clear()
        (branches[after[operator][-1]] if after[operator] else roots).append(merged)
    rank = {operator: place for place, operator in enumerate(chain.from_iterable(s[2] for s in _merged(roots)))}
    return Found(_lawful(problem, after, rank), problem.floor_bytes)


def _merged(branches: list[list[_Segment]]) -> list[_Segment]:
    """One chain of the segments of all branches, by falling hill above the valley."""
    if len(branches) < 2:
        return branches[0] if branches else []
    steps = []
    for branch in branches:
        start = 0
        for hill, valley, operators in branch:
            steps.append((valley - hill, hill - start, valley - start, operators))
            start = valley
    merged: list[_Segment] = []
    live = 0
    for _, up, left, operators in sorted(steps, key=lambda step: step[0]):
        _append(merged, (live + up, live + left, operators))
        live += left
    return merged


def _append(segments: list[_Segment], segment: _Segment) -> None:
    """Add a segment at the end of a chain. One that climbs as high as those before it, or ends as low, takes these
    in."""
    hill, valley, operators = segment
    while segments and (segments[-1][0] <= hill or segments[-1][1] >= valley):
        earlier = segments.pop()
        earlier[2].extend(operators)
        hill, operators = max(hill, earlier[0]), earlier[2]
    segments.append((hill, valley, operators))


def _lawful(problem: OrderProblem, after: Sequence[Sequence[int]], rank: dict[int, int]) -> tuple[int, ...]:
    missing = [len(before) for before in problem.predecessors]
    ready = [(rank[operator], operator) for operator, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    steps = []
    while ready:
        operator = heapq.heappop(ready)[1]
        steps.append(operator)
        for later in after[operator]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ready, (rank[later], later))
    return tuple(steps)
