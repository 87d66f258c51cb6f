"""Chooses the document of a plan, with its graph if there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from downset.compiled import OrderReport, PeakReport, RecomputeReport
from downset.errors import InvalidPlan, UsageError
from downset.graph.core import Graph
from downset.memory.liveness import OrderProblem
from downset.memory.models import MemoryModel, MemoryName, stated_model
from downset.reports.document import Document
from downset.reports.fit_document import fit_document
from downset.reports.memories_document import memories_document
from downset.reports.pipeline_documents import split_document
from downset.reports.plan_documents import (
    arena_document,
    objects_document,
    order_document,
    plain_order_document,
    problem_document,
    together_document,
)
from downset.reports.stages import stage_document, stage_plan_document
from downset.reports.training import compiled_document, peak_document, recomputation_document, recompute_document
from downset.results.fit import Fit, Recomputation
from downset.results.memories_fit import MemoriesFit
from downset.results.pipelines import Pipeline
from downset.results.plans import Arena, Order, SharedObjects, StagePlan, Together
from downset.results.stages import StageResult
from downset.text import printable, shortened

__all__ = ["document_of"]

_Memory = MemoryName | MemoryModel | None


def document_of(
    subject: object, plan: object = None, arena: Arena | None = None, *, memory: _Memory = None
) -> Document:
    """The document of a plan, behind its graph or problem where that is given. Raises UsageError for anything that is
    not a plan, InvalidPlan for an order of another network."""
    if memory is not None and not (isinstance(subject, Recomputation) or isinstance(plan, (Order, Together))):
        raise UsageError("memory= is that of an order of a graph: report(graph, order, memory=...)")
    if isinstance(subject, OrderProblem):
        if memory is not None:
            raise UsageError("a bare problem has its storages already: leave memory= out")
        return _of_problem(subject, plan, arena)
    if isinstance(subject, Graph):
        return _of_graph(subject, plan, arena, memory)
    if plan is not None or arena is not None:
        raise UsageError("a plan is reported by itself, or behind its graph: report(graph, plan)")
    if isinstance(subject, Recomputation):
        return recomputation_document(subject, memory=stated_model(subject.order.memory, memory, "order"))
    return _alone(subject)


def _of_problem(problem: OrderProblem, plan: object, arena: Arena | None) -> Document:
    if not isinstance(plan, Order) or arena is not None:
        raise UsageError("a problem is reported with its order alone: report(problem, order)")
    count = len(problem.predecessors)
    if sorted(plan.steps) != list(range(count)):
        raise InvalidPlan(f"the problem has {count} operators; this order, of {len(plan.steps)} steps, is of another")
    return problem_document(problem, plan)


def _of_graph(graph: Graph, plan: object, arena: Arena | None, memory: _Memory) -> Document:
    if isinstance(plan, Together):
        arena, plan = plan.arena, plan.order
    if isinstance(plan, Order):
        if sorted(plan.steps) != list(range(len(graph.ops))):
            raise InvalidPlan(
                f"{shortened(printable(graph.name), 60)} has {len(graph.ops)} operators; this order, "
                f"of {len(plan.steps)} steps, belongs to another network"
            )
        return order_document(graph, plan, arena, memory=stated_model(plan.memory, memory, "order"))
    if arena is not None:
        raise UsageError("an arena is reported with its order: report(graph, order, arena)")
    return _alone(plan, title=printable(graph.name))


def _alone(plan: object, *, title: str = "") -> Document:
    """The document of a plan that needs no graph. `title`: the name of the network, where it is known."""
    if isinstance(plan, StagePlan):
        return stage_plan_document(plan, title=title or "Stages")
    if isinstance(plan, StageResult):
        return stage_document(plan, title=title or "Stages")
    if isinstance(plan, Pipeline):
        return split_document(plan, model=title)
    for kind, document in _DOCUMENTS.items():
        if isinstance(plan, kind):
            return document(plan)
    raise UsageError(f"there is no report of a {type(plan).__name__}")


_DOCUMENTS: dict[type, Callable[[Any], Document]] = {
    Fit: fit_document,
    MemoriesFit: memories_document,
    Order: plain_order_document,
    Together: together_document,
    Arena: arena_document,
    SharedObjects: objects_document,
    OrderReport: compiled_document,
    PeakReport: peak_document,
    RecomputeReport: recompute_document,
    Recomputation: recomputation_document,
}
