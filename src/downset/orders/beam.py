"""Beam search: keeps the best few downsets of every size. It proves no bound.

Source: folklore; the widths that helped are recorded in experiments/speed/order.py.
Names: a *front* holds the states kept of one size, ranked by (peak, live bytes).
Complexity: O(V · width · ready) steps.
Deviations: where a ready operator fits under a state's peak and does not raise live bytes, no other operator is tried.
    Orders are built both from their starts and from their ends (search_space.py); which is better depends on the graph.
"""

from __future__ import annotations

from downset.budget import Clock
from downset.memory.liveness import OrderProblem
from downset.methods import check_whole
from downset.orders.searches import OrderSearches
from downset.results.plans import Found

__all__ = ["WIDTHS", "beam"]

WIDTHS = (4, 32, 300)


def beam(problem: OrderProblem, *, clock: Clock, width: int = WIDTHS[-1]) -> Found:
    """The best order that fronts of up to `width` states find. Narrow fronts come first, so that a short limit also
    gives an answer; the file's order is the first. The clock counts states expanded."""
    check_whole("width", width, least=1)
    parts = OrderSearches(problem)
    best = tuple(range(len(problem.predecessors)))
    value = parts.peak(best)
    for tried in sorted({min(narrow, width) for narrow in WIDTHS[:-1]} | {width}):
        for backward in (False, True):
            if clock.over():
                break
            steps = parts.beam(tried, 0, value, backward=backward, clock=clock)
            if steps is not None:
                best, value = steps, parts.peak(steps)
    return Found(best, problem.floor_bytes, False, clock.states, clock.stopped_by())
