"""The laws of an order, checked by executing it in the memory model. Imports no planner."""

from __future__ import annotations

from collections.abc import Sequence

from downset.errors import InvalidPlan
from downset.graph.core import Graph
from downset.memory.liveness import order_problem, peak_bytes
from downset.plans import Order

__all__ = ["verify_order", "verify_steps"]


def verify_steps(predecessors: Sequence[Sequence[int]], steps: Sequence[int]) -> None:
    """Raise InvalidPlan unless `steps` runs every operator once, each after its predecessors."""
    if sorted(steps) != list(range(len(predecessors))):
        raise InvalidPlan(f"the order has {len(steps)} steps that are not the {len(predecessors)} operators, each once")
    done = [False] * len(steps)
    for step, operator in enumerate(steps):
        for earlier in predecessors[operator]:
            if not done[earlier]:
                raise InvalidPlan(f"step {step}: operator {operator} runs before operator {earlier}, which it needs")
        done[operator] = True


def verify_order(graph: Graph, order: Order) -> None:
    """Raise InvalidPlan unless the order keeps its laws: it runs every operator once and after its predecessors, its
    stated peak is its peak under its memory model, and its bound does not contradict value or proof."""
    verify_steps(graph.predecessors(), order.steps)
    evidence = order.evidence
    actual = peak_bytes(order_problem(graph, order.memory), order.steps)
    if actual != evidence.value:
        raise InvalidPlan(f"the order states a peak of {evidence.value} bytes, but its peak is {actual}")
    if evidence.bound > evidence.value:
        raise InvalidPlan(f"the bound {evidence.bound} is above the value {evidence.value}")
    if evidence.proven and evidence.bound != evidence.value:
        raise InvalidPlan(
            f"the plan is called proven, but its value is {evidence.value} and its bound {evidence.bound}"
        )
