"""Merges by family: which of a network's merges are taken together, and the network with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from downset.graph.core import Graph
from downset.rewrites.merge.places import numbered, origins, without_numbers
from downset.rewrites.merge.sites import MERGES, MergeSite, merge_kind, merge_sites
from downset.rewrites.merge.window import windows

__all__ = ["FAMILIES", "merge_families", "merges_of"]


def _unpadded(kind: str) -> Callable[[MergeSite], bool]:
    return lambda site: site.kind == kind and site.macs_after == site.macs_before


FAMILIES: Mapping[str, Callable[[MergeSite], bool]] = {
    "stacked": _unpadded("convolutions"),
    "pools swapped": _unpadded("pools"),
    "separables merged": _unpadded("separables"),
    "padded": lambda site: site.macs_after > site.macs_before,
}
"""The families by name. `stacked`: kernels of equal window, one after another. `pools swapped`: the same, with 1x1
convolutions moved before their average pools. `separables merged`: separable convolutions of equal window. `padded`:
merges of all three kinds whose kernels are padded with zeros, which adds multiplications."""


def merges_of(graph: Graph, *, others: Sequence[Graph] = (), any_size: bool = False) -> list[MergeSite]:
    """The merges that a network offers. `others`: the same network at other sizes, at which each must be possible, too.
    `any_size`: sizes of images are open, so pads that follow from the size are not allowed."""
    return [
        site
        for site in merge_sites(graph)
        if all(MERGES[site.kind].why_not(other, site.ops) is None for other in others)
        and not (any_size and _follows_size(graph, site))
    ]


def _follows_size(graph: Graph, site: MergeSite) -> bool:
    """Whether the windows of these operators, or those before them, fit together at this size only."""
    made_by = graph.producers()
    ahead = [made_by[graph.ops[index].inputs[0]] for index in site.ops] if site.kind == "separables" else []
    for ops in (site.ops, ahead):
        along = [windows(graph, index) for index in ops]
        strided = any(window.stride > 1 for each in along for window in each)
        if strided and any(str(graph.ops[index].attrs.get("auto_pad", "")).startswith("SAME") for index in ops):
            return True
        if site.kind != "pools" and any(
            len({window.reach for window in axis}) > 1 for axis in zip(*along, strict=True)
        ):
            return True
    return False


def merge_families(graph: Graph, sites: Sequence[MergeSite], families: Sequence[str]) -> tuple[Graph, int]:
    """(the network with the merges of these families, how many there are). The largest merges come first; an operator
    is in one merge. The network is the given one where nothing merges."""
    taken: set[int] = set()
    new, count = numbered(graph), 0
    wanted = [site for site in sites if any(FAMILIES[name](site) for name in families)]
    for site in sorted(wanted, key=lambda site: (-len(site.ops), site.macs_after - site.macs_before, site.ops)):
        place = origins(new)
        if taken & set(site.ops) or not all(index in place for index in site.ops):
            continue
        ops = [place.index(index) for index in site.ops]
        kind = merge_kind(new, ops)
        if kind is not None:
            new, count = MERGES[kind].merge(new, ops), count + 1
            taken |= set(site.ops)
    return (without_numbers(new), count) if count else (graph, 0)
