"""Beam search: the best few downsets of every size. No bound, but far better first answers than greedy.

Source: folklore; the widths that helped are recorded in experiments/speed/order.py.
Names: a *front* is the states kept of one size, ranked by (peak, live bytes).
Complexity: O(V · width · ready) steps.
Deviations: an operator that fits under a state's peak and does not raise live bytes is the only one tried there.
"""

from __future__ import annotations

import time

from downset.lattice import bits
from downset.liveness import OrderProblem
from downset.native import native_module
from downset.orders.native_form import flat
from downset.orders.search_space import SearchSpace
from downset.plans import Found

__all__ = ["beam"]


def beam(problem: OrderProblem, *, time_limit_s: float = 10.0, engine: str = "native", width: int = 300) -> Found:
    """The best order that fronts of `width` states find; narrower ones first, so that there is always an answer."""
    deadline = time.perf_counter() + time_limit_s
    space = SearchSpace(problem)
    best = tuple(range(len(problem.predecessors)))
    states = 0
    for tried in sorted({min(4, width), min(32, width), width}):
        left_s = deadline - time.perf_counter()
        if left_s <= 0:
            break
        if engine == "python":
            steps, expanded = _beam(space, tried, deadline)
        else:
            found, _, expanded = native_module().beam(*flat(problem), tried, left_s)
            steps = tuple(found) if len(found) == len(best) else None
        states += expanded
        if steps is not None:
            best = min(best, steps, key=space.peak)
    return Found(best, problem.floor_bytes, False, states)


def _beam(space: SearchSpace, width: int, deadline: float) -> tuple[tuple[int, ...] | None, int]:
    """The specification of the native search of the same name."""
    start = max(space.start_bytes, space.problem.floor_bytes)
    front: list[tuple[int, int, int, int, tuple[int, ...]]] = [(start, space.start_bytes, 0, space.start_ready, ())]
    states = 0
    for _ in range(space.count):
        if time.perf_counter() > deadline:
            return None, states
        moves = []
        for peak, live, downset, ready, steps in front:
            states += 1
            tried = []
            for operator in bits(ready):
                transient, left = space.step(downset, live, operator)
                tried.append((max(peak, transient), left, downset, ready, steps, operator))
                if transient <= peak and left <= live:
                    tried = tried[-1:]
                    break
            moves += tried
        moves.sort(key=lambda move: move[:2])
        following: dict[int, tuple[int, int, int, int, tuple[int, ...]]] = {}
        for peak, left, downset, ready, steps, operator in moves:
            larger = downset | 1 << operator
            if larger not in following and len(following) < width:
                opened = space.open(larger, ready, operator)
                following[larger] = (peak, left, larger, opened, (*steps, operator))
        front = list(following.values())
    return front[0][4], states
