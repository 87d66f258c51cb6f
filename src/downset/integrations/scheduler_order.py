"""The order of Inductor's scheduler nodes of least peak memory, decided alike in every process.

A search that ends by the clock may end elsewhere on another machine, and ranks of one job must agree. So effort is
counted in states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from downset.memory.liveness import OrderProblem, Storage, profile
from downset.orders.plan import plan_order
from downset.plans import Order

__all__ = ["least_peak_order", "live_at"]


def least_peak_order(problem: OrderProblem, *, work_limit: int) -> Order:
    """The best order that so many states find, with its bound: the same one in every process. Never above the given
    order."""
    return plan_order(problem, method="optimal", work_limit=work_limit, time_limit_s=math.inf)


def live_at(problem: OrderProblem, steps: Sequence[int]) -> tuple[int, list[int]]:
    """The operator at which an order first peaks, and the storages live then, the largest first."""
    transients = profile(problem, steps)
    step = transients.index(max(transients))
    at = {operator: when for when, operator in enumerate(steps)}

    def live(storage: Storage) -> bool:
        begun = not storage.producers or min(at[v] for v in storage.producers) <= step
        return begun and (storage.kept or max(at[v] for v in storage.consumers) >= step)

    held = [index for index, storage in enumerate(problem.storages) if live(storage)]
    return steps[step], sorted(held, key=lambda index: (-problem.storages[index].nbytes, index))
