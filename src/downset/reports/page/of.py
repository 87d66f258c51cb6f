"""Chooses the page of a plan, with its graph if there is one."""

from __future__ import annotations

from downset.compiled import OrderReport, RecomputeReport
from downset.graph.core import Graph
from downset.memory.models import MemoryModel
from downset.reports.page.elements import Facts, Page, Section, Verdict
from downset.reports.page.fit_page import fit_page
from downset.reports.page.pipeline_page import pipeline_page
from downset.reports.page.plan_pages import arena_page, objects_page, order_page, stage_page
from downset.reports.page.training_page import compiled_page, recomputation_page, recompute_page
from downset.results.fit import Fit, Recomputation
from downset.results.pipelines import Pipeline
from downset.results.plans import Arena, Order, SharedObjects, StagePlan, Together
from downset.results.stages import StageResult
from downset.text import printable

__all__ = ["page_of"]


def page_of(
    graph: Graph | None, plan: object, arena: Arena | None, text: str, *, memory: MemoryModel | None = None
) -> Page:
    """The page of a plan. An order without its graph has no picture; its page shows the text. `memory`: the model of an
    order, where that is not a built-in one."""
    if isinstance(plan, Fit):
        return fit_page(plan)
    if isinstance(plan, Together):
        return arena_page(plan.arena) if graph is None else order_page(graph, plan.order, plan.arena, memory=memory)
    if isinstance(plan, Order) and graph is not None:
        return order_page(graph, plan, arena, memory=memory)
    if isinstance(plan, Arena):
        return arena_page(plan)
    if isinstance(plan, SharedObjects):
        return objects_page(plan)
    if isinstance(plan, (StageResult, StagePlan)):
        return stage_page(plan, title=printable(graph.name) if graph is not None else "Stages")
    if isinstance(plan, OrderReport):
        return compiled_page(plan)
    if isinstance(plan, RecomputeReport):
        return recompute_page(plan)
    if isinstance(plan, Recomputation):
        return recomputation_page(plan, memory=memory)
    if isinstance(plan, Pipeline):
        return pipeline_page(plan, model=printable(graph.name) if graph is not None else "")
    head, *rest = text.split("\n")
    return Page("Report", "", Verdict("plain", head), (Section("In words", (Facts(tuple(rest)),)),))
