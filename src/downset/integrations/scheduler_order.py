"""Finds the order of least peak memory of Inductor's scheduler nodes, the same in every process.

A search that ends by the clock may give another order on another machine, but the ranks of one job must agree. So the
search is limited by a number of states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from downset.integrations.joined_calls import gathered, largest_calls
from downset.memory.liveness import OrderProblem, Storage, peak_bytes, profile
from downset.orders.plan import judge_order, plan_order
from downset.results.plans import Order

__all__ = ["least_called_order", "least_peak_order", "live_at", "parts_first", "rise_by_device"]


def least_peak_order(problem: OrderProblem, *, work_limit: int, planned: Sequence[int] = ()) -> Order:
    """The best order that `work_limit` states find, with its bound: the same in every process. Its peak is never above
    that of the given order, nor above that of the order `planned`, from which a second search begins."""
    order = plan_order(problem, method="optimal", work_limit=work_limit, time_limit_s=math.inf)
    if not planned or order.evidence.proven or peak_bytes(problem, planned) >= order.peak_bytes:
        return order
    other = plan_order(_renumbered(problem, planned), method="optimal", work_limit=work_limit, time_limit_s=math.inf)
    return judge_order(problem, tuple(planned[step] for step in other.steps), like=other.evidence)


def _renumbered(problem: OrderProblem, steps: Sequence[int]) -> OrderProblem:
    """The problem with its operators in another order. A search begins with the order of its operators."""
    number = {operator: step for step, operator in enumerate(steps)}

    def listed(operators: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(number[operator] for operator in operators))

    return replace(
        problem,
        predecessors=tuple(listed(problem.predecessors[operator]) for operator in steps),
        storages=tuple(
            replace(storage, producers=listed(storage.producers), consumers=listed(storage.consumers))
            for storage in problem.storages
        ),
        in_place=tuple(problem.in_place[operator] for operator in steps) if problem.in_place else (),
    )


def least_called_order(
    problem: OrderProblem,
    overwriting: OrderProblem,
    joined: Sequence[bool],
    *,
    work_limit: int,
    planned: Sequence[int] = (),
) -> Order:
    """The order of `least_peak_order`, or another with no higher peak in which less is held. It counts that kernels
    write over what they read last, as in the problem `overwriting`, and that `joined` kernels share a call with their
    neighbours."""
    order = least_peak_order(problem, work_limit=work_limit, planned=planned)
    if not any(joined):
        return order
    starts = [order.steps, least_peak_order(overwriting, work_limit=work_limit).steps]
    orders = [
        gathered(overwriting, steps, joined, every_call=True, plain=problem)[0]
        for steps in starts
        if peak_bytes(problem, steps) <= order.peak_bytes
    ]
    best = min(orders, key=lambda steps: largest_calls(overwriting, steps, joined))
    return judge_order(problem, best, like=order.evidence)


def parts_first(problem: OrderProblem, steps: Sequence[int], parts: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """The order in which operators that take results out of a call follow right behind it, as soon as nothing else that
    they wait for is missing. They allocate nothing, and the call's tuple holds all results until then. `parts`: those
    operators by call."""
    done: set[int] = set()
    order: list[int] = []
    for first in steps:
        ahead = [first]
        while ahead:
            operator = ahead.pop()
            if operator not in done and (operator == first or done.issuperset(problem.predecessors[operator])):
                done.add(operator)
                order.append(operator)
                ahead += reversed(parts.get(operator, ()))
    return tuple(order)


def live_at(problem: OrderProblem, steps: Sequence[int], transients: Sequence[int] = ()) -> tuple[int, list[int]]:
    """The operator at which an order first reaches its peak, and the storages live then, the largest first.
    What the operator writes over is not among them. `transients`: the order's profile, if known."""
    transients = transients or profile(problem, steps)
    step = transients.index(max(transients))
    step_of = {operator: when for when, operator in enumerate(steps)}

    def live(storage: Storage) -> bool:
        begun = not storage.producers or min(step_of[v] for v in storage.producers) <= step
        return begun and (storage.kept or max(step_of[v] for v in storage.consumers) >= step)

    def ends(storage: Storage) -> bool:
        return max(step_of[v] for v in storage.consumers) == step

    over = [index for index, _ in problem.candidates(steps[step]) if ends(problem.storages[index])]
    left_out = max(over, key=lambda index: problem.storages[index].nbytes, default=-1)
    live_storages = [index for index, one in enumerate(problem.storages) if index != left_out and live(one)]
    return steps[step], sorted(live_storages, key=lambda index: (-problem.storages[index].nbytes, index))


def rise_by_device(
    problem: OrderProblem, devices: Sequence[str], before: Sequence[int], after: Sequence[int]
) -> dict[str, int]:
    """The devices on which `after` peaks above `before`, and by how many bytes. `devices[i]` holds storage i.

    The peak summed over devices may fall while that of one device rises. O(devices * problem)."""
    risen = {}
    for device in dict.fromkeys(devices):
        here = [index for index, place in enumerate(devices) if place == device]
        number = {index: place for place, index in enumerate(here)}
        in_place = tuple(tuple(number[of] for of in over if of in number) for over in problem.in_place)
        own = OrderProblem(problem.predecessors, tuple(problem.storages[index] for index in here), in_place)
        if (more := peak_bytes(own, after) - peak_bytes(own, before)) > 0:
            risen[device] = more
    return risen
