"""Other orders within a budget: raw material for choosing, among orders of low peak, the one that places best."""

from __future__ import annotations

import time
from random import Random

from downset.lattice import successor_lists
from downset.memory.liveness import OrderProblem
from downset.orders.search_space import SearchSpace

__all__ = ["TRIES", "alternatives"]

TRIES = 400
"""Moves tried for each order that is asked for, at most."""


def alternatives(
    problem: OrderProblem,
    start: tuple[int, ...],
    budget_bytes: int,
    *,
    count: int = 64,
    seed: int = 0,
    time_limit_s: float = 1.0,
    tries: int | None = None,
) -> list[tuple[int, ...]]:
    """Up to `count` different orders of peak <= budget_bytes, found by walking from `start`.

    A move takes one operator to another place between its last predecessor and its first successor; it is kept if the
    peak stays within the budget. An order is collected after every few moves. Deterministic for a seed while the time
    lasts; fewer `tries` (400 for each order if not given) give the first of the same orders. `start` itself must be
    within the budget, else the list is empty.
    """
    deadline = time.perf_counter() + time_limit_s
    space = SearchSpace(problem)
    random = Random(seed)
    after = successor_lists(problem.predecessors)
    if space.peak(start) > budget_bytes or len(start) < 2:
        return []
    order = list(start)
    orders: dict[tuple[int, ...], None] = {}
    accepted, most = 0, TRIES * count if tries is None else tries
    for _ in range(most):
        if len(orders) >= count or time.perf_counter() >= deadline:
            break
        position = random.randrange(len(order))
        operator = order[position]
        place = {other: position for position, other in enumerate(order)}
        low = max((place[other] + 1 for other in problem.predecessors[operator]), default=0)
        high = min((place[other] - 1 for other in after[operator]), default=len(order) - 1)
        if low >= high:
            continue
        to = random.randint(low, high)
        if to == position:
            continue
        moved = [*order[:position], *order[position + 1 :]]
        moved.insert(to, operator)
        if space.peak(moved) <= budget_bytes:
            order = moved
            accepted += 1
            if accepted % 4 == 0 and tuple(order) != start:
                orders[tuple(order)] = None
    return list(orders)
