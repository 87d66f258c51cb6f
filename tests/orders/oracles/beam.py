"""The native beam search in Python."""

from __future__ import annotations

import time

from downset.lattice import bits
from downset.orders.search_space import SearchSpace

__all__ = ["beam"]


def beam(
    space: SearchSpace, width: int, bound: int, incumbent: int, deadline: float, state_limit: int
) -> tuple[tuple[int, ...] | None, int]:
    """(an order whose peak is below `incumbent`, states expanded). The order is None where the beam finds none, or
    where a limit ends it first."""
    start = max(space.start_bytes, space.problem.floor_bytes, bound)
    front: list[tuple[int, int, int, int, tuple[int, ...]]] = [(start, space.start_bytes, 0, space.start_ready, ())]
    states = 0
    for _ in range(space.count):
        if time.perf_counter() > deadline:
            return None, states
        moves = []
        for peak, live, downset, ready, steps in front:
            if states >= state_limit:
                return None, states
            states += 1
            tried = []
            for operator in bits(ready):
                transient, left = space.step(downset, live, operator)
                if transient >= incumbent:
                    continue
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
        if not front:
            return None, states
    return space.given_order(front[0][4]), states
