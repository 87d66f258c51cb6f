"""Plans order and placement together: the arenas of orders of equal peak differ by up to a quarter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from downset.arenas.plan import plan_arena
from downset.graph.core import Graph
from downset.joint.within_work import WithinWork
from downset.memory.liveness import check_graph, order_problem
from downset.memory.models import MemoryModel, MemoryName, memory_model
from downset.methods import check_time_limit, check_whole, check_work_limit
from downset.orders.alternatives import alternatives
from downset.orders.plan import judge_order, plan_order
from downset.results.plans import Arena, Evidence, StoppedBy, Together

__all__ = ["plan_together"]


def plan_together(
    graph: Graph,
    *,
    memory: MemoryName | MemoryModel,
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
    count: int = 64,
    seed: int = 0,
) -> Together:
    """The order and placement with the least arena, among the file's order, the optimal order and at most `count`
    orders whose peak is below the best arena so far. The arena is never larger than that of the file's order with
    method `best`.

    Stops as soon as the arena equals the bound on the peak of every order: then order and arena are proven optimal.
    Otherwise the exact placement search takes the remaining time for the few best orders. `work_limit`: the sum of
    the states that the searches for orders, alternatives and placements visit. If the time is unlimited
    (`time_limit_s=math.inf`), the same limit gives the same plan under any load, and a larger limit never gives a worse
    plan.
    """
    check_time_limit(time_limit_s)
    check_work_limit(work_limit)
    check_whole("count", count)
    check_whole("seed", seed)
    check_graph(graph)
    model = memory_model(memory)
    deadline = time.perf_counter() + time_limit_s

    def left() -> float:
        return max(deadline - time.perf_counter(), 0.01)

    if work_limit is not None:
        return _within_work(graph, model, work_limit, lambda: deadline - time.perf_counter(), count=count, seed=seed)
    optimal = plan_order(graph, method="optimal", memory=model, time_limit_s=0.7 * time_limit_s)
    bound = int(optimal.evidence.bound)
    file_order = plan_order(graph, method="file", memory=model)
    tried: dict[tuple[int, ...], Arena] = {}

    def attempt(candidates: Iterable[tuple[int, ...]], method: str) -> bool:
        """Place each order until an arena meets the bound; whether one does."""
        for steps in candidates:
            arena = plan_arena(graph, steps, method=method, memory=model, time_limit_s=0.25 * left())
            if steps not in tried or arena.arena_bytes < tried[steps].arena_bytes:
                tried[steps] = arena
            if arena.arena_bytes <= bound:
                return True
            if time.perf_counter() > deadline:
                return False
        return False

    def ranked() -> list[tuple[int, ...]]:
        # Of equal arenas the one tried first wins: the file's order stays unless another gains.
        return sorted(tried, key=lambda steps: tried[steps].arena_bytes)

    done = attempt((file_order.steps, optimal.steps), "best")
    if not done and time.perf_counter() < deadline:
        best = tried[ranked()[0]].arena_bytes
        # Only an order whose peak is below the best arena so far can have a smaller arena.
        problem = order_problem(graph, model)
        orders = alternatives(problem, optimal.steps, best - 1, count=count, seed=seed, time_limit_s=0.25 * left())
        if not attempt((steps for steps in orders if steps not in tried), "best"):
            attempt(ranked()[:4] + [steps for steps in (optimal.steps,) if steps not in ranked()[:4]], "exact")
    steps = ranked()[0]
    order = optimal if steps == optimal.steps else judge_order(graph, steps, memory=model, like=optimal.evidence)
    return Together(order, _judged(tried[steps], bound))


def _within_work(
    graph: Graph, model: MemoryModel, work_limit: int, left_s: Callable[[], float], *, count: int, seed: int
) -> Together:
    begin = time.perf_counter()
    search = WithinWork(graph, model, work_limit=work_limit, left_s=left_s, count=count, seed=seed)
    search.run()
    steps, orders = search.ranked()[0], search.found
    evidence = Evidence(
        "optimal", 0, orders.bound, orders.proven, orders.states, time.perf_counter() - begin, orders.stopped_by
    )
    order = judge_order(graph, steps, memory=model, like=evidence)
    return Together(order, _judged(search.tried[steps], orders.bound, search.stopped_by))


def _judged(arena: Arena, bound: int, stopped_by: StoppedBy | None = None) -> Arena:
    """The arena with a bound that holds for every order, in place of the bound for its order."""
    value = arena.arena_bytes
    own = arena.evidence
    stopped_by = own.stopped_by if stopped_by is None else stopped_by
    evidence = replace(
        own, bound=min(bound, value), proven=bound >= value, stopped_by="" if bound >= value else stopped_by
    )
    return replace(arena, evidence=evidence)
