"""Other orders whose peak stays within a budget: the caller chooses the one whose tensors can be placed best."""

from __future__ import annotations

from random import Random

from downset.budget import Clock
from downset.lattice import successor_lists
from downset.memory.liveness import OrderProblem
from downset.orders.search_space import SearchSpace

__all__ = ["TRIES", "alternatives"]

TRIES = 400
"""The default limit of moves tried, for each order that is asked for."""


def alternatives(
    problem: OrderProblem,
    start: tuple[int, ...],
    budget_bytes: int,
    *,
    clock: Clock,
    count: int = 64,
) -> list[tuple[int, ...]]:
    """Up to `count` different orders of peak <= `budget_bytes`, found by random moves from `start`.

    A move puts one operator in another place between its last predecessor and its first successor; it is kept if the
    peak stays within the budget. Every fourth kept move adds its order to the result. The list is empty where the peak
    of `start` exceeds the budget. The clock counts moves tried; without a limit of them 400 · `count` are tried. The
    result depends on the seed of the budget alone unless the time ends it; with fewer moves it is a prefix of the same
    list.
    """
    space = SearchSpace(problem)
    random = Random(clock.budget.seed)
    after = successor_lists(problem.predecessors)
    if space.peak(start) > budget_bytes or len(start) < 2:
        return []
    order = list(start)
    orders: dict[tuple[int, ...], None] = {}
    accepted, most = 0, clock.left_states() if clock.budget.states is not None else TRIES * count
    for _ in range(most):
        if len(orders) >= count or clock.over():
            break
        clock.count(1)
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
