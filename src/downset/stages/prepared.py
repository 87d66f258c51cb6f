"""The graph that stages are measured and run on, prepared from a model's graph."""

from __future__ import annotations

from downset.errors import InvalidPlan
from downset.graph.core import Graph
from downset.kernels.known_values import with_known_values
from downset.plans import StagePlan
from downset.rewrites.fold_batch_norm import fold_batch_norm
from downset.rewrites.rebatch import rebatch
from downset.stages.variants import VARIANTS

__all__ = ["planned_graph", "prepare"]


def prepare(graph: Graph, *, batch: int | None = None) -> Graph:
    """The graph that is staged and run: of this batch size, known values as constants, batch normalisation folded."""
    graph = with_known_values(graph, sized=False)
    if batch is not None:
        graph = rebatch(graph, batch)
    return fold_batch_norm(with_known_values(graph))


def planned_graph(graph: Graph, plan: StagePlan) -> Graph:
    """The variant of a prepared graph that the plan's units are of. Raises InvalidPlan for one that there is not."""
    if plan.variant not in VARIANTS:
        raise InvalidPlan(f"the plan names variant {plan.variant!r}; known: {', '.join(map(repr, VARIANTS))}")
    return VARIANTS[plan.variant](graph)
