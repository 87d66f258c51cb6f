"""Lower bounds on the peak of every order, from single operators and from pairs.

Source: docs/tour: live bytes are submodular over downsets, so their minimum is a minimum closure: one maximum flow.
Names: the bound of v is the least transient of v over the downsets that contain its ancestors and neither v nor a
    descendant of it. Of two unordered operators one runs second. Its bound is taken over the downsets that contain the
    first as well; the bound of the pair is the smaller of the two bounds so found.
Complexity: one maximum flow for each operator, over the operators unordered with it, and two for each pair.
Deviations: where v may run in place, the bytes of its largest candidate are subtracted; the bound stays valid without a
    flow for each candidate. Pairs help with many similar operators, such as the gradients of many tables: any one of
    them could run first, but not all of them.
"""

from __future__ import annotations

from downset import native
from downset.budget import MANY
from downset.memory.liveness import OrderProblem
from downset.orders.native_form import native_problem

__all__ = ["closure_bound", "pair_bound"]


def closure_bound(problem: OrderProblem, *, seconds: float = 10.0) -> int:
    """Bytes that every order needs at its peak, by single operators."""
    order = range(len(problem.predecessors))
    return native.compiled.closure_bound(native_problem(problem), order, seconds, MANY)


def pair_bound(problem: OrderProblem, *, seconds: float = 10.0) -> int:
    """Bytes that every order needs at its peak, by single operators and by pairs: never below `closure_bound`."""
    bound = closure_bound(problem, seconds=seconds)
    order = range(len(problem.predecessors))
    return native.compiled.pair_bound(native_problem(problem), order, bound, seconds, MANY)
