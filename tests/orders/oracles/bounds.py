"""The bounds of single operators and of pairs, by every downset."""

from __future__ import annotations

from itertools import combinations

from downset.lattice import ancestors, downsets, masks
from downset.memory.liveness import OrderProblem, live_bytes

__all__ = ["closure_bound", "pair_bound"]


def closure_bound(problem: OrderProblem) -> int:
    kept = sum(storage.nbytes for storage in problem.storages if storage.kept)
    bound = max(problem.floor_bytes, live_bytes(problem, 0), kept)
    return max([bound, *(min(needs.values()) for needs in _transients(problem))])


def pair_bound(problem: OrderProblem) -> int:
    bound = closure_bound(problem)
    transients = _transients(problem)
    above = ancestors(masks(problem.predecessors))
    for one, other in combinations(range(len(above)), 2):
        if not above[other] >> one & 1:
            seconds = [
                min(nbytes for downset, nbytes in transients[second].items() if downset >> first & 1)
                for first, second in ((one, other), (other, one))
            ]
            bound = max(bound, min(seconds))
    return bound


def _transients(problem: OrderProblem) -> list[dict[int, int]]:
    """By operator and downset after which it can run: a lower bound of its transient."""
    predecessors = masks(problem.predecessors)
    every = list(downsets(predecessors, limit=1_000_000))
    transients: list[dict[int, int]] = []
    for operator, before in enumerate(ancestors(predecessors)):
        reused = max((nbytes for _, nbytes in problem.candidates(operator)), default=0)
        transients.append({})
        for downset in every:
            if not before & ~downset and not downset >> operator & 1:
                own = sum(
                    storage.nbytes
                    for storage in problem.storages
                    if operator in storage.producers and not any(downset >> v & 1 for v in storage.producers)
                )
                transients[-1][downset] = live_bytes(problem, downset) + own - reused
    return transients
