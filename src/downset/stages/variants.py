"""Variants: rewrites that are applied to a prepared graph before its stages are planned.

A plan names its variant; running the plan makes the variant from the prepared graph again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from downset.graph.core import Graph
from downset.rewrites.merge.sites import merge_groups, merge_sites, swap_merging_pools

__all__ = ["VARIANTS", "separables_merged"]


def _as_it_is(graph: Graph) -> Graph:
    return graph


def separables_merged(graph: Graph) -> Graph:
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
    "separables merged": separables_merged,
}
"""The variants by name. `pools swapped`: a 1x1 convolution behind an average pool moves in front of the pool, if it can
merge with others there."""
