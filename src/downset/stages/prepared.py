"""Prepares a model's graph: stages are planned, measured and run on the prepared graph.

A variant is a rewrite of a prepared graph before its stages are planned. A plan names its variant; running the plan
makes the variant from the prepared graph again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from downset.errors import InvalidPlan
from downset.graph.core import Graph
from downset.kernels.known_values import with_known_values
from downset.results.plans import StagePlan
from downset.rewrites.fold_batch_norm import fold_batch_norm
from downset.rewrites.merge.sites import merge_groups, merge_sites, swap_merging_pools
from downset.rewrites.rebatch import rebatch

__all__ = ["VARIANTS", "planned_graph", "prepare"]


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


def _as_it_is(graph: Graph) -> Graph:
    return graph


def _separables_merged(graph: Graph) -> Graph:
    """The graph in which separable convolutions of equal shape side by side are one depthwise and one grouped
    convolution. The largest sets come first, and only those that add no MACs. IOS cannot merge these (section 6.1)."""
    sites = [site for site in merge_sites(graph) if site.kind == "separables" and site.macs_after == site.macs_before]
    chosen: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for site in sorted(sites, key=lambda site: (-len(site.ops), site.ops)):
        if not taken & set(site.ops):
            chosen.append(site.ops)
            taken |= set(site.ops)
    if not chosen:
        return graph
    merged, _ = merge_groups(graph, sorted(chosen))
    return merged


VARIANTS: Mapping[str, Callable[[Graph], Graph]] = {
    "": _as_it_is,
    "pools swapped": swap_merging_pools,
    "separables merged": _separables_merged,
}
"""The variants by name. `pools swapped`: a 1x1 convolution behind an average pool moves in front of the pool, if it can
merge with others there."""
