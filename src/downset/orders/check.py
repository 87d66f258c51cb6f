"""The laws of an order, checked by executing it in the memory model. Imports no planner.

`peak_bytes` and `lifetimes` are the public ones: those of `memory.liveness`, of lawful orders only. Searches call
`memory.liveness` itself: their orders are lawful by how they are made, and they compute very many."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from downset.errors import InvalidPlan, UsageError
from downset.graph.core import Graph
from downset.memory import liveness
from downset.memory.liveness import Lifetimes, OrderProblem, check_graph, order_problem
from downset.memory.models import MemoryModel, MemoryName, stated_model
from downset.orders.problem import check_problem
from downset.results.plans import Order
from downset.text import brief

__all__ = ["lifetimes", "peak_bytes", "verify_order", "verify_steps"]


def verify_steps(predecessors: Sequence[Sequence[int]], steps: Sequence[int]) -> None:
    """Raise InvalidPlan unless `steps` runs every operator once, each after its predecessors; UsageError for anything
    but a sequence of whole numbers. O(operators + predecessors)."""
    try:
        lawful = len(steps) == len(predecessors) and all(isinstance(operator, Integral) for operator in steps)
    except TypeError:
        raise UsageError(f"an order is a sequence of operators by number, not {brief(repr(steps))}") from None
    if not lawful or sorted(steps) != list(range(len(predecessors))):
        raise InvalidPlan(f"the order has {len(steps)} steps that are not the {len(predecessors)} operators, each once")
    done = [False] * len(steps)
    for step, operator in enumerate(steps):
        for earlier in predecessors[operator]:
            if not done[earlier]:
                raise InvalidPlan(f"step {step}: operator {operator} runs before operator {earlier}, which it needs")
        done[operator] = True


def verify_order(problem: Graph | OrderProblem, order: Order, *, memory: str | MemoryModel | None = None) -> None:
    """Raise InvalidPlan unless the order keeps its laws: it runs every operator once and after its predecessors, its
    stated peak is its peak, and its bound does not contradict value or proof. Of a graph the peak is that under the
    order's memory model, or under `memory`, where that is the caller's own. A bare problem must keep its own laws."""
    if isinstance(problem, Graph):
        verify_steps(problem.predecessors(), order.steps)
        problem = order_problem(problem, stated_model(order.memory, memory, "order"))
    else:
        check_problem(problem)
        verify_steps(problem.predecessors, order.steps)
    evidence = order.evidence
    actual = liveness.peak_bytes(problem, order.steps)
    if actual != evidence.value:
        raise InvalidPlan(f"the order states a peak of {evidence.value} bytes, but its peak is {actual}")
    if evidence.bound > evidence.value:
        raise InvalidPlan(f"the bound {evidence.bound} is above the value {evidence.value}")
    if evidence.proven and evidence.bound != evidence.value:
        raise InvalidPlan(
            f"the plan is called proven, but its value is {evidence.value} and its bound {evidence.bound}"
        )


def peak_bytes(problem: OrderProblem, steps: Sequence[int]) -> int:
    """The peak of the order `steps`: its largest transient, or `floor_bytes` if that is larger.

    Raises UsageError for a problem that breaks a law of `orders.problem.check_problem`, InvalidPlan for steps that do
    not run every operator once and after its predecessors. O(operators + storages + their lists).
    `downset.memory.liveness.peak_bytes` checks neither."""
    if isinstance(problem, Graph):
        raise UsageError("peak_bytes takes an OrderProblem; order_problem(graph, memory) is the one of a graph")
    check_problem(problem)
    verify_steps(problem.predecessors, steps)
    return liveness.peak_bytes(problem, steps)


def lifetimes(graph: Graph, steps: Sequence[int], memory: MemoryName | MemoryModel = "live") -> Lifetimes:
    """The records of all storages under the order `steps`, by their first step. A storage and those that take it over
    in place are one record.

    The largest breadth of the records, less the bytes that overlap, equals the peak of the order. Where no operator
    reads some graph input, all inputs start at step -1, when they are filled in: that input needs room only then.
    Raises InvalidPlan for steps that do not run every operator once and after its predecessors."""
    check_graph(graph)
    verify_steps(graph.predecessors(), steps)
    return liveness.lifetimes(graph, steps, memory)
