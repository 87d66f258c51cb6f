"""A lower bound on the peak of every order, from each operator alone.

Source: docs/tour: live bytes are submodular over downsets, so the least of them is a minimum closure, one maximum flow.
Names: the bound of v is the least transient of v over the downsets that contain its ancestors and neither v nor a
    descendant of it.
Complexity: one maximum flow an operator, over the operators unordered with it (native); the twin here enumerates.
Deviations: where v may run in place its largest candidate is taken off, which keeps the bound valid without a flow for
    each candidate.
"""

from __future__ import annotations

from downset import native
from downset.lattice import ancestors, downsets, masks
from downset.memory.liveness import OrderProblem, live_bytes
from downset.methods import EngineName, check_engine
from downset.orders.engines import MANY
from downset.orders.native_form import native_problem

__all__ = ["closure_bound"]


def closure_bound(problem: OrderProblem, *, time_limit_s: float = 10.0, engine: EngineName = "native") -> int:
    """Bytes that every order needs at its peak. The Python engine looks at every downset: small graphs only.

    Raises LimitReached there past a million downsets.
    """
    check_engine(engine)
    if engine == "native":
        known = range(len(problem.predecessors))
        return native.compiled.closure_bound(native_problem(problem), known, time_limit_s, MANY)
    predecessors = masks(problem.predecessors)
    above = ancestors(predecessors)
    kept = sum(storage.nbytes for storage in problem.storages if storage.kept)
    bound = max(problem.floor_bytes, live_bytes(problem, 0), kept)
    every = list(downsets(predecessors, limit=1_000_000))
    least = [sum(storage.nbytes for storage in problem.storages)] * len(above)
    for operator, before in enumerate(above):
        bit = 1 << operator
        reused = max((nbytes for _, nbytes in problem.candidates(operator)), default=0)
        for downset in every:
            if not before & ~downset and not downset & bit:
                own = sum(
                    storage.nbytes
                    for storage in problem.storages
                    if operator in storage.producers and not any(downset >> v & 1 for v in storage.producers)
                )
                least[operator] = min(least[operator], live_bytes(problem, downset) + own - reused)
    return max([bound, *least])
