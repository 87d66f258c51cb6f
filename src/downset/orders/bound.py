"""Lower bounds on the peak of every order, from single operators and from pairs.

Source: docs/tour: live bytes are submodular over downsets, so their minimum is a minimum closure: one maximum flow.
Names: the bound of v is the least transient of v over the downsets that contain its ancestors and neither v nor a
    descendant of it. Of two unordered operators one runs second. Its bound is taken over the downsets that contain the
    first as well; the bound of the pair is the smaller of the two bounds so found.
Complexity: native: one maximum flow for each operator, over the operators unordered with it, and two for each pair. The
    Python twins enumerate all downsets.
Deviations: where v may run in place, the bytes of its largest candidate are subtracted; the bound stays valid without a
    flow for each candidate. Pairs help with many similar operators, such as the gradients of many tables: any one of
    them could run first, but not all of them.
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
    """Bytes that every order needs at its peak, by single operators. The Python engine enumerates the downsets, and
    raises LimitReached where there are more than a million.
    """
    check_engine(engine)
    if engine == "native":
        order = range(len(problem.predecessors))
        return native.compiled.closure_bound(native_problem(problem), order, time_limit_s, MANY)
    kept = sum(storage.nbytes for storage in problem.storages if storage.kept)
    bound = max(problem.floor_bytes, live_bytes(problem, 0), kept)
    return max([bound, *(min(needs.values()) for needs in _transients(problem))])


def pair_bound(problem: OrderProblem, *, time_limit_s: float = 10.0, engine: EngineName = "native") -> int:
    """Bytes that every order needs at its peak, by single operators and by pairs: never below `closure_bound`. Engines
    and errors as there."""
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
