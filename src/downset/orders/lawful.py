"""The public `peak_bytes` and `lifetimes`: those of `memory.liveness`, of lawful orders only.

Searches call `memory.liveness` itself: their orders are lawful by how they are made, and they compute very many."""

from __future__ import annotations

from collections.abc import Sequence

from downset.errors import UsageError
from downset.graph.core import Graph
from downset.memory import liveness
from downset.memory.liveness import Lifetimes, OrderProblem, check_graph
from downset.memory.models import MemoryModel, MemoryName
from downset.orders.check import verify_steps
from downset.orders.problem import check_problem

__all__ = ["lifetimes", "peak_bytes"]


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
