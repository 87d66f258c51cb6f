"""Beam search: keeps the best few downsets of every size. It proves no bound.

Source: folklore; the widths that helped are recorded in experiments/speed/order.py.
Names: a *front* holds the states kept of one size, ranked by (peak, live bytes).
Complexity: O(V · width · ready) steps.
Deviations: where a ready operator fits under a state's peak and does not raise live bytes, no other operator is tried.
    Orders are built both from their starts and from their ends (search_space.py); which is better depends on the graph.
"""

from __future__ import annotations

import time

from downset.memory.liveness import OrderProblem
from downset.methods import check_whole
from downset.orders.searches import MANY, OrderSearches
from downset.results.plans import Found, StoppedBy

__all__ = ["WIDTHS", "beam"]

WIDTHS = (4, 32, 300)


def beam(
    problem: OrderProblem,
    *,
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
    width: int = WIDTHS[-1],
) -> Found:
    """The best order that fronts of up to `width` states find. Narrow fronts come first, so that a short limit also
    gives an answer; the file's order is the first. `work_limit`: states expanded."""
    check_whole("width", width, least=1)
    deadline = time.perf_counter() + time_limit_s
    parts = OrderSearches(problem)
    best = tuple(range(len(problem.predecessors)))
    value, states = parts.peak(best), 0
    most = MANY if work_limit is None else min(work_limit, MANY)
    for tried in sorted({min(narrow, width) for narrow in WIDTHS[:-1]} | {width}):
        for backward in (False, True):
            left_s = deadline - time.perf_counter()
            if left_s <= 0 or states >= most:
                break
            steps, expanded = parts.beam(tried, 0, value, backward=backward, seconds=left_s, states=most - states)
            states += expanded
            if steps is not None:
                best, value = steps, parts.peak(steps)
    stopped_by: StoppedBy = "work" if states >= most else "time" if time.perf_counter() > deadline else ""
    return Found(best, problem.floor_bytes, False, states, stopped_by)
