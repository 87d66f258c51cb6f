"""Plan a verified order of a graph or of a bare `OrderProblem`. A method is a name from ORDERS, or a callable."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Unpack

from downset.graph.core import Graph
from downset.memory.liveness import OrderProblem, order_problem, peak_bytes
from downset.memory.models import MemoryModel, MemoryName, memory_model
from downset.methods import EngineName, Method, check_engine, check_time_limit, check_work_limit, choose
from downset.orders.check import verify_steps
from downset.orders.planners import CONTRACT, ORDERS, OrderOptions
from downset.orders.problem import check_problem
from downset.plans import Evidence, Found, Order

__all__ = ["judge_order", "plan_order"]


Planner = Callable[..., Found]


def plan_order(
    problem: Graph | OrderProblem,
    *,
    method: str | Method | Planner = "optimal",
    memory: MemoryName | MemoryModel = "live",
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
    engine: EngineName = "native",
    **options: Unpack[OrderOptions],
) -> Order:
    """An order of all operators with a low peak under the memory model.

    Method "optimal" gives a proven least peak if its search ends within `time_limit_s` and `work_limit` (states
    expanded); else the best order found, and a lower bound. Where only the work is limited (`time_limit_s=math.inf`)
    the same limit gives the same plan on every machine, and a larger limit never gives a worse plan. `options` are
    those of the method. Raises UsageError for an unknown method, option or choice, and for a bare problem that breaks a
    law of `orders.problem.check_problem`; UnsupportedError where the native engine is not built; LimitReached where the
    graph is too large, or where method "exhaustive" reaches a limit.
    """
    check_engine(engine)
    check_time_limit(time_limit_s)
    check_work_limit(work_limit)
    planner = choose(method, ORDERS, CONTRACT, options)
    model = memory_model(memory)
    if isinstance(problem, Graph):
        problem = order_problem(problem, model)
    else:
        check_problem(problem)
    begin = time.perf_counter()
    result: Found = planner(problem, time_limit_s=time_limit_s, work_limit=work_limit, engine=engine)
    seconds = time.perf_counter() - begin
    verify_steps(problem.predecessors, result.solution)
    value = peak_bytes(problem, result.solution)
    bound = min(value, max(result.bound, problem.floor_bytes))
    proven = result.proven or bound == value
    stopped_by = "" if proven else result.stopped_by
    evidence = Evidence(planner.name, value, bound, proven, result.states, seconds, stopped_by)
    return Order(result.solution, model.name, evidence)


def judge_order(
    problem: Graph | OrderProblem, steps: Sequence[int], *, memory: MemoryName | MemoryModel, like: Evidence
) -> Order:
    """An Order of steps found elsewhere, with the bound that another search (`like`) has proven. Raises InvalidPlan
    where the steps do not run every operator once and after its predecessors."""
    model = memory_model(memory)
    if isinstance(problem, Graph):
        problem = order_problem(problem, model)
    verify_steps(problem.predecessors, steps)
    value = peak_bytes(problem, steps)
    bound = min(value, int(like.bound))
    evidence = Evidence(
        like.method, value, bound, bound == value, like.states, like.seconds, "" if bound == value else like.stopped_by
    )
    return Order(tuple(steps), model.name, evidence)
