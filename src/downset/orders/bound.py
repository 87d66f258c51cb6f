"""Lower bounds on the peak of every order, from single operators and from pairs.

Source: docs/tour: live bytes are submodular over downsets, so the least of them is a minimum closure, one maximum flow.
Names: the bound of v is the least transient of v over the downsets that contain its ancestors and neither v nor a
    descendant of it. Of two operators that may run either way round one runs second: the bound of a pair is the lesser
    of the two bounds of the second, over the downsets that contain the first too.
Complexity: one maximum flow an operator, over the operators unordered with it, or two a pair (native); the twins here
    enumerate.
Deviations: where v may run in place its largest candidate is taken off, which keeps the bound valid without a flow for
    each candidate. Alike operators, such as the gradients of many tables, need pairs: each alone could run first.
"""

from __future__ import annotations

from itertools import combinations

from downset import native
from downset.lattice import ancestors, downsets, masks
from downset.memory.liveness import OrderProblem, live_bytes
from downset.methods import EngineName, check_engine
from downset.orders.engines import MANY
from downset.orders.native_form import native_problem

__all__ = ["closure_bound", "pair_bound"]


def closure_bound(problem: OrderProblem, *, time_limit_s: float = 10.0, engine: EngineName = "native") -> int:
    """Bytes that every order needs at its peak. The Python engine looks at every downset: small graphs only.

    Raises LimitReached there past a million downsets.
    """
    check_engine(engine)
    if engine == "native":
        order = range(len(problem.predecessors))
        return native.compiled.closure_bound(native_problem(problem), order, time_limit_s, MANY)
    kept = sum(storage.nbytes for storage in problem.storages if storage.kept)
    bound = max(problem.floor_bytes, live_bytes(problem, 0), kept)
    return max([bound, *(min(needs.values()) for needs in _transients(problem))])


def pair_bound(problem: OrderProblem, *, time_limit_s: float = 10.0, engine: EngineName = "native") -> int:
    """Bytes that every order needs at its peak: never below `closure_bound`, and engines and errors as there."""
    bound = closure_bound(problem, time_limit_s=time_limit_s, engine=engine)
    if engine == "native":
        order = range(len(problem.predecessors))
        return native.compiled.pair_bound(native_problem(problem), order, bound, time_limit_s, MANY)
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
    """By operator: what is live at least while it runs, by each downset at which it can."""
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
