"""Prepares a model's graph: stages are planned, measured and run on the prepared graph."""

from __future__ import annotations

from downset.errors import InvalidPlan
from downset.graph.core import Graph
from downset.kernels.known_values import with_known_values
from downset.results.plans import StagePlan
from downset.rewrites.fold_batch_norm import fold_batch_norm
from downset.rewrites.rebatch import rebatch
from downset.stages.variants import VARIANTS

__all__ = ["planned_graph", "prepare"]


def prepare(graph: Graph, *, batch: int | None = None) -> Graph:
    """The graph with this batch size (None: the model's), known values as constants, and batch normalisation folded."""
    graph = with_known_values(graph, sized=False)
    if batch is not None:
        graph = rebatch(graph, batch)
    return fold_batch_norm(with_known_values(graph))


def planned_graph(graph: Graph, plan: StagePlan) -> Graph:
    """The variant of a prepared graph that the plan names. Raises InvalidPlan for an unknown variant."""
    if plan.variant not in VARIANTS:
        raise InvalidPlan(f"the plan names variant {plan.variant!r}; known: {', '.join(map(repr, VARIANTS))}")
    return VARIANTS[plan.variant](graph)
