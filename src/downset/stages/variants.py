"""The same network with some operators merged before any stage is planned: other graphs for the same search.

A variant is named in the plan, and made again from the graph when the plan is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from downset.graph.core import Graph
from downset.rewrites.merge.sites import merge_groups, merge_sites, swap_merging_pools

__all__ = ["VARIANTS", "separables_merged"]


def _as_it_is(graph: Graph) -> Graph:
    return graph


def separables_merged(graph: Graph) -> Graph:
    """Separable convolutions of equal shape side by side as one depthwise convolution and one grouped convolution:
    the largest disjoint sets whose kernels need no zeros. IOS cannot merge these (its section 6.1)."""
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
"""`pools swapped`: a 1x1 convolution behind an average pool before it, where it can then merge with others."""
