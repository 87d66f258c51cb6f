"""From a graph (or a bare problem) and a method to a verified plan. A method is a name from a dict, or a callable."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, overload

from downset.arenas import ARENAS, SHARED
from downset.arenas.capacity import within, within_objects
from downset.errors import UsageError
from downset.graph import Graph
from downset.liveness import Lifetimes, OrderProblem, check_problem, lifetimes, order_problem, peak_bytes
from downset.memory_models import MemoryModel, memory_model
from downset.orders import ORDERS
from downset.plans import Arena, Evidence, Found, Order, SharedObjects
from downset.records import Record, check_records
from downset.stages import STAGERS
from downset.stages.problem import FoundStages, Price, StageProblem
from downset.stages.unit_graph import group_units
from downset.verify import verify_arena, verify_steps
from downset.verify_records import check_objects, check_placement

__all__ = ["judge_order", "plan_arena", "plan_order", "plan_shared", "plan_stages"]

Planner = Callable[..., Found]


def _planner(
    method: str | Planner, known: dict[str, Planner], what: str, *, other: Mapping[str, Planner] = MappingProxyType({})
) -> tuple[str, Planner]:
    """`other`: the methods of the sister problem, whose names people try here."""
    if callable(method):
        return getattr(method, "__name__", "callable"), method
    if method not in known:
        problem = f"there is no {method!r} for" if method in other else f"unknown method {method!r} for"
        raise UsageError(f"{problem} {what}; choose one of {', '.join(known)}")
    return method, known[method]


def plan_order(
    problem: Graph | OrderProblem,
    *,
    method: str | Planner = "optimal",
    memory: str | MemoryModel = "live",
    time_limit_s: float = 10.0,
    engine: str = "native",
) -> Order:
    """An order of all operators of low peak memory.

    With method "optimal" the least peak of all orders under the memory model, proven, if the search ends within
    `time_limit_s`; else the best order found with a bound below it. Raises UsageError for an unknown method or model
    and for a bare problem that breaks a law of `liveness.check_problem`.
    """
    model = memory_model(memory)
    if isinstance(problem, Graph):
        problem = order_problem(problem, model)
    else:
        check_problem(problem)
    name, planner = _planner(method, ORDERS, "orders")
    begin = time.perf_counter()
    found = planner(problem, time_limit_s=time_limit_s, engine=engine)
    seconds = time.perf_counter() - begin
    verify_steps(problem.predecessors, found.solution)
    value = peak_bytes(problem, found.solution)
    bound = min(value, max(found.bound, problem.floor_bytes))
    proven = found.proven or bound == value
    return Order(found.solution, model.name, Evidence(name, value, bound, proven, found.states, seconds))


def judge_order(
    problem: Graph | OrderProblem, steps: Sequence[int], *, memory: str | MemoryModel, like: Evidence
) -> Order:
    """Steps found elsewhere as an Order, judged by the bound that another search (`like`) has proven."""
    model = memory_model(memory)
    if isinstance(problem, Graph):
        problem = order_problem(problem, model)
    verify_steps(problem.predecessors, steps)
    value = peak_bytes(problem, steps)
    bound = min(value, int(like.bound))
    evidence = Evidence(like.method, value, bound, bound == value, like.states, like.seconds)
    return Order(tuple(steps), model.name, evidence)


@overload
def plan_arena(
    graph: Graph,
    order: Order | Sequence[int],
    *,
    method: str | Planner = ...,
    memory: str | MemoryModel | None = ...,
    ties: str = ...,
    time_limit_s: float = ...,
    capacity_bytes: int | None = ...,
) -> Arena: ...
@overload
def plan_arena(
    graph: Sequence[Record],
    order: None = ...,
    *,
    method: str | Planner = ...,
    memory: str | MemoryModel | None = ...,
    ties: str = ...,
    time_limit_s: float = ...,
    capacity_bytes: int | None = ...,
) -> Arena: ...
def plan_arena(
    graph: Graph | Sequence[Record],
    order: Order | Sequence[int] | None = None,
    *,
    method: str | Planner = "best",
    memory: str | MemoryModel | None = None,
    ties: str = "tflite",
    time_limit_s: float = 10.0,
    capacity_bytes: int | None = None,
) -> Arena:
    """An offset in one arena for every record: of bare records, or of a graph that runs in an order.

    The memory model is the order's unless given. The bound is the largest breadth of the records (no placement of this
    order needs less); proven when the arena meets it, or when an exact search ended. Held to `capacity_bytes`, raises
    InfeasibleError if nothing fits and LimitReached if that was not known in time.
    """
    name, planner = _planner(method, ARENAS, "offsets", other=SHARED)
    if capacity_bytes is not None:
        planner = within(planner, capacity_bytes)
    living: Lifetimes | None = None
    model: MemoryModel | None = None
    steps: Sequence[int] = ()
    if isinstance(graph, Graph):
        if order is None:
            raise UsageError("plan_arena of a graph needs the order its operators run in")
        model = memory_model(memory or (order.memory if isinstance(order, Order) else "live"))
        steps = order.steps if isinstance(order, Order) else tuple(order)
        verify_steps(graph.predecessors(), steps)
        living = lifetimes(graph, steps, model)
        records = living.records
    else:
        records = tuple(graph)
        check_records(records)
    begin = time.perf_counter()
    found = planner(records, ties=ties, time_limit_s=time_limit_s)
    seconds = time.perf_counter() - begin
    check_placement(records, found.solution)
    value = max((at + record.nbytes for at, record in zip(found.solution, records, strict=True)), default=0)
    bound = min(value, found.bound)
    evidence = Evidence(name, value, bound, found.proven or bound == value, found.states, seconds)
    tensor_offsets = {}
    if living is not None:
        tensor_offsets = {
            tensor: found.solution[record] for tensor, record in enumerate(living.record_of) if record >= 0
        }
    arena = Arena(records, found.solution, evidence, model.name if model else "", tensor_offsets)
    if isinstance(graph, Graph):
        verify_arena(graph, steps, arena, memory=model)
    return arena


def plan_shared(
    records: Sequence[Record],
    *,
    method: str | Planner = "best",
    ties: str = "tflite",
    time_limit_s: float = 10.0,
    capacity_bytes: int | None = None,
) -> SharedObjects:
    """A shared object for every record (no two records of one object live at once), least total size.

    Pinned offsets are refused: objects have none. Held to `capacity_bytes`, raises as `plan_arena` does."""
    name, planner = _planner(method, SHARED, "shared objects", other=ARENAS)
    if capacity_bytes is not None:
        planner = within_objects(planner, capacity_bytes)
    records = tuple(records)
    check_records(records)
    pinned = next((record for record in records if record.offset is not None), None)
    if pinned is not None:
        raise UsageError(f"record {pinned.id!r} is pinned at {pinned.offset}: shared objects have no offsets")
    begin = time.perf_counter()
    found = planner(records, ties=ties, time_limit_s=time_limit_s)
    seconds = time.perf_counter() - begin
    check_objects(records, found.solution)
    sizes = [0] * (max(found.solution, default=-1) + 1)
    for held, record in zip(found.solution, records, strict=True):
        sizes[held] = max(sizes[held], record.nbytes)
    value = sum(sizes)
    bound = min(value, found.bound)
    evidence = Evidence(name, value, bound, found.proven or bound == value, found.states, seconds)
    return SharedObjects(records, found.solution, tuple(sizes), evidence)


def plan_stages(problem: Graph | StageProblem, price: Price, *, method: str = "lazy", **limits: Any) -> FoundStages:
    """Stages of low total price: which units run side by side or merged, stage after stage.

    `price`: seconds of any stage (of units, for a graph those of `group_units`). Methods: sequential, greedy, ios (all
    stages priced), lazy (few). `limits` are the method's own: max_ops, max_groups, endings, strategy, budget,
    time_limit_s. At most 64 units: split larger problems with `downset.stages.unit_graph.blocks`. To measure on a
    device, choose and run, see `downset.stage`. Raises UsageError for an unknown method.
    """
    if isinstance(problem, Graph):
        problem = StageProblem(group_units(problem).predecessors)
    if method not in STAGERS:
        raise UsageError(f"unknown stage method {method!r}; choose one of {', '.join(STAGERS)}")
    found = STAGERS[method](problem, price, **limits)
    verify_steps(problem.predecessors, [unit for stage in found.stages for unit in stage.units])
    return found
