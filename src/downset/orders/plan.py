"""Plan a verified order of a graph or of a bare `OrderProblem`. A method is a name from ORDERS, or a callable."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Unpack

from downset.budget import Budget
from downset.errors import UsageError
from downset.graph.core import Graph
from downset.memory.liveness import OrderProblem, order_problem, peak_bytes
from downset.memory.models import MemoryModel, MemoryName, memory_model
from downset.methods import Method, choose
from downset.orders.check import verify_steps
from downset.orders.planners import CONTRACT, ORDERS, OrderOptions
from downset.orders.problem import check_problem
from downset.results.plans import Evidence, Found, Order

__all__ = ["judge_order", "plan_order"]


Planner = Callable[..., Found]


def plan_order(
    problem: Graph | OrderProblem,
    *,
    method: str | Method | Planner = "optimal",
    memory: MemoryName | MemoryModel | None = None,
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
    **options: Unpack[OrderOptions],
) -> Order:
    """An order of all operators with a low peak under the memory model: for a graph "live" unless given. A bare problem
    has its storages, whatever model made them; it takes no `memory`, and its order states none.

    Method "optimal" gives a proven least peak if its search ends within `time_limit_s` and `work_limit` (states
    expanded); else the best order found, and a lower bound. Where only the work is limited (`time_limit_s=math.inf`)
    the same limit gives the same plan on every machine, and a larger limit never gives a worse plan. `options` are
    those of the method. Raises UsageError for an unknown method, option or choice, and for a bare problem that breaks a
    law of `orders.problem.check_problem`; InvalidPlan for a callable whose steps or bound are wrong; UnsupportedError
    where the native module is not built; LimitReached where the graph is too large, or where method "exhaustive"
    reaches a limit.
    """
    budget = Budget(time_limit_s, work_limit)
    planner = choose(method, ORDERS, CONTRACT, options)
    if not isinstance(problem, Graph):
        check_problem(problem)
    problem, model = _modelled(problem, memory)
    begin = time.perf_counter()
    result: Found = planner(problem, clock=budget.start())
    seconds = time.perf_counter() - begin
    verify_steps(problem.predecessors, result.solution)
    value = peak_bytes(problem, result.solution)
    proven = result.proven or max(result.bound, problem.floor_bytes) >= value
    bound = value if proven else max(result.bound, problem.floor_bytes)
    stopped_by = "" if proven else result.stopped_by
    evidence = Evidence(planner.name, value, bound, proven, result.states, seconds, stopped_by)
    return Order(tuple(map(int, result.solution)), model, evidence)


def judge_order(
    problem: Graph | OrderProblem,
    steps: Sequence[int],
    *,
    memory: MemoryName | MemoryModel | None = None,
    like: Evidence,
) -> Order:
    """An Order of steps found elsewhere, with the bound that another search (`like`) has proven. Raises InvalidPlan
    where the steps do not run every operator once and after its predecessors."""
    problem, model = _modelled(problem, memory)
    verify_steps(problem.predecessors, steps)
    value = peak_bytes(problem, steps)
    bound = min(value, int(like.bound))
    evidence = Evidence(
        like.method, value, bound, bound == value, like.states, like.seconds, "" if bound == value else like.stopped_by
    )
    return Order(tuple(map(int, steps)), model, evidence)


def _modelled(problem: Graph | OrderProblem, memory: MemoryName | MemoryModel | None) -> tuple[OrderProblem, str]:
    """The problem of a graph and the name of its memory model; a bare problem and no name."""
    if isinstance(problem, Graph):
        model = memory_model("live" if memory is None else memory)
        return order_problem(problem, model), model.name
    if memory is not None:
        raise UsageError("a bare problem has its storages already: leave memory= out, or give the graph")
    return problem, ""
