"""Plan fast memory with slow memory behind it: an order, residences, moves and offsets, checked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypedDict, Unpack

from downset.budget import Budget, Clock
from downset.errors import InfeasibleError
from downset.graph.core import Graph
from downset.memories.bound import order_free_bound
from downset.memories.check import check_memories
from downset.memories.file_order import of_order
from downset.memories.found import MemoriesFound
from downset.memories.moves import implied
from downset.memories.of_graph import (
    DirectName,
    MemoriesForm,
    MemoriesRequest,
    PlaceName,
    Prices,
    WeightsName,
    memories_form,
)
from downset.memories.placing import PlacedResidency, place, slow_offsets
from downset.memories.planners import CONTRACT, MEMORIES
from downset.memories.problem import MemoriesProblem
from downset.memory.liveness import check_graph
from downset.memory.models import MemoryModel, MemoryName, memory_model
from downset.methods import Method, check_whole, choose
from downset.results.memories import MemoriesPlan
from downset.results.plans import Evidence

__all__ = ["MemoriesOptions", "plan_memories", "plan_memories_problem"]

_BOUND_NODES = 1_500
_SEARCH_SHARE = 0.8
"""The share of the time for the planner; the rest is for offsets."""


class MemoriesOptions(TypedDict, total=False):
    """The further options of a plan."""

    memory: MemoryName | MemoryModel
    direct: DirectName
    inputs: PlaceName
    outputs: PlaceName
    weights: WeightsName
    reserve: int
    prices: Prices
    time_limit_s: float
    work_limit: int | None
    seed: int


def plan_memories(
    graph: Graph,
    *,
    fast: int,
    slow: int,
    method: str | Method | Callable[..., MemoriesFound] = "joint",
    incumbent: MemoriesPlan | None = None,
    **options: Unpack[MemoriesOptions],
) -> MemoriesPlan:
    """A plan for `fast` bytes of fast memory with `slow` bytes behind it that moves and accesses few bytes of slow
    memory.

    `memory` is the memory model ("live" unless given), whose alignment and scratch count. `direct` says what an access
    of an operator in slow memory costs: "kernel" what the kernel reads and writes there, "once" the same where each
    byte is read once and no access elsewhere, "size" each operand once, "never" that there is none. `inputs` and
    `outputs`: where the network's inputs begin and its outputs end, "either" where the plan says. `weights`: in a third
    memory, at no cost ("flash"), or in slow memory. `reserve`: bytes of fast memory that are taken. `prices`: what a
    byte costs by a copy or an access; one each unless given. `incumbent`: a plan, such as one for less fast memory,
    that the result never costs more than. Raises InfeasibleError where an operator's operands or the slow copies do not
    fit, UsageError for what cannot be used as given."""
    check_graph(graph)
    check_whole("fast", fast, least=1)
    check_whole("slow", slow)
    limits = Budget(options.get("time_limit_s", 10.0), options.get("work_limit"), options.get("seed", 0))
    model = memory_model(options.get("memory", "live"))
    request = MemoriesRequest(
        fast,
        model,
        direct=options.get("direct", "kernel"),
        inputs=options.get("inputs", "either"),
        outputs=options.get("outputs", "either"),
        weights=options.get("weights", "flash"),
        reserve_bytes=options.get("reserve", 0),
        prices=options.get("prices", Prices()),
    )
    form = memories_form(graph, request)
    plan = plan_memories_problem(form, method=method, incumbent=incumbent, budget=limits, alignment=model.alignment)
    if plan.slow_bytes > slow:
        raise InfeasibleError(
            f"{graph.name}: the copies in slow memory take {plan.slow_bytes:,} bytes, and it has {slow:,}",
            figures={"limit_bytes": slow, "least_bytes": plan.slow_bytes},
        )
    return replace(plan, storage_of=form.storage_of)


def plan_memories_problem(
    form: MemoriesForm,
    *,
    method: str | Method | Callable[..., MemoriesFound] = "joint",
    incumbent: MemoriesPlan | None = None,
    budget: Budget | None = None,
    alignment: int = 1,
) -> MemoriesPlan:
    """The same of a problem; `form.scale` divides its costs."""
    problem, limits = form.problem, budget or Budget()
    planner = choose(method, MEMORIES, CONTRACT)
    begin, clock = time.perf_counter(), limits.start()
    part = clock.part(seconds=_SEARCH_SHARE * clock.left_s())
    order = None if incumbent is None else incumbent.order
    searches = planner.method.takes("incumbent")
    """Whether it searches orders: then its bound holds for every order, and no incumbent costs less."""
    result: MemoriesFound = planner(problem, clock=part, incumbent=order)
    bound = result.bound
    if bound < result.cost and not searches:
        share = clock.part(seconds=0.5 * clock.left_s(), states=_BOUND_NODES)
        bound = max(bound, order_free_bound(problem, result.cost, clock=share))
    placed = _best_placed(problem, result, alignment, clock, incumbent)
    without_offsets, order_bound = min(result.cost, placed.cost), result.order_bound
    if placed.order != result.order:
        without_offsets, order_bound = placed.cost, min(bound, placed.cost)
    places, slow_bytes = slow_offsets(problem, placed.order, placed.implied, alignment=alignment, clock=clock)
    if incumbent is not None and placed.residences == incumbent.residences and incumbent.slow_bytes < slow_bytes:
        places, slow_bytes = incumbent.slow_offsets, incumbent.slow_bytes
    value, least = placed.cost / form.scale, min(bound, placed.cost) / form.scale
    evidence = Evidence(
        planner.name,
        value,
        least,
        bound >= placed.cost,
        clock.states,
        time.perf_counter() - begin,
        "" if bound >= placed.cost else result.stopped_by,
    )
    plan = MemoriesPlan(
        placed.order,
        placed.residences,
        placed.implied.moves,
        places,
        _top(problem, placed),
        slow_bytes,
        placed.implied.moved_bytes,
        placed.implied.direct_bytes,
        evidence,
        without_offsets / form.scale,
        order_bound / form.scale,
    )
    check_memories(problem, plan, scale=form.scale)
    return plan


def _top(problem: MemoriesProblem, placed: PlacedResidency) -> int:
    ends = ((one.offset or 0) + problem.storages[one.storage].room_bytes for one in placed.residences)
    return max(ends, default=0)


def _best_placed(
    problem: MemoriesProblem, result: MemoriesFound, alignment: int, clock: Clock, incumbent: MemoriesPlan | None
) -> PlacedResidency:
    """The cheapest of the found order, of its alternatives and of the file's order, with offsets; and an incumbent that
    is cheaper than all."""
    best = place(problem, result.order, result.residences, alignment=alignment, clock=clock)
    further = (*result.others, tuple(range(len(problem.predecessors)))) if result.others else ()
    for order in dict.fromkeys(further):
        if best.cost <= result.cost:
            break
        other = of_order(problem, order, clock.timed())
        if other.cost < best.cost:
            placed = place(problem, order, other.residences, alignment=alignment, clock=clock)
            best = min(best, placed, key=lambda one: one.cost)
    if incumbent is None:
        return best
    motion = implied(problem, incumbent.order, incumbent.residences)
    again = PlacedResidency(incumbent.order, incumbent.residences, motion)
    if _top(problem, again) > problem.fast_bytes or any(one.offset is None for one in incumbent.residences):
        again = place(problem, incumbent.order, incumbent.residences, alignment=alignment, clock=clock)
    return min(best, again, key=lambda one: one.cost)
