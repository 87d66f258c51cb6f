"""The operators of a network that can be merged, and the merges by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from downset.errors import UsageError
from downset.graph.core import Graph
from downset.lattice import ancestors, bits, masks
from downset.rewrites.merge.convolutions import merge_convs, mergeable, merged_macs, not_plain, other_attrs
from downset.rewrites.merge.places import numbered, origins, without_numbers
from downset.rewrites.merge.pools import (
    macs_through_pools,
    merge_through_pools,
    mergeable_through_pools,
    pool_swappable,
    swap_pool,
)
from downset.rewrites.merge.separable import depthwise_of, merge_separables, mergeable_separables, separable_macs
from downset.rewrites.merge.window import windows

__all__ = [
    "MERGES",
    "Merge",
    "merge_groups",
    "merge_kind",
    "merge_sites",
    "swap_merging_pools",
]


@dataclass(frozen=True, slots=True)
class Merge:
    """A kind of merge. `why_not(graph, ops)`: why `merge(graph, ops)` refuses these operators, or None. `macs(graph,
    ops)`: MACs before and after, of operators that it accepts."""

    why_not: Callable[[Graph, Sequence[int]], str | None]
    merge: Callable[[Graph, Sequence[int]], Graph]
    macs: Callable[[Graph, Sequence[int]], tuple[int, int]]


MERGES: Mapping[str, Merge] = {
    "convolutions": Merge(mergeable, merge_convs, merged_macs),
    "pools": Merge(mergeable_through_pools, merge_through_pools, macs_through_pools),
    "separables": Merge(mergeable_separables, merge_separables, separable_macs),
}


@dataclass(frozen=True, slots=True)
class MergeSite:
    """Operators, ascending, that can be merged; so can any two or more of them. `kind`: a key of MERGES. A separable
    convolution is named by its pointwise one."""

    kind: str
    ops: tuple[int, ...]
    macs_before: int
    macs_after: int


def merge_kind(graph: Graph, ops: Sequence[int]) -> str | None:
    """The first kind of merge that accepts these operators, or None."""
    return next((kind for kind, merge in MERGES.items() if merge.why_not(graph, ops) is None), None)


def merge_groups(graph: Graph, groups: Iterable[Sequence[int]]) -> tuple[Graph, tuple[int, ...]]:
    """Merge each of these disjoint groups of operators. Returns the new graph, and for each of its operators the
    operator of the old graph that it replaces: for merged ones the first of them, -1 for a new Split, Concat or Add.
    Raises UsageError where groups overlap or cannot be merged."""
    new = numbered(graph)
    for group in groups:
        place = origins(new)
        if any(index not in place for index in group):
            raise UsageError(f"{graph.name}: operators {list(group)} are in two groups that merge, or do not exist")
        ops = [place.index(index) for index in group]
        kind = merge_kind(new, ops)
        if kind is None:
            reasons = "; ".join(f"{name}: {merge.why_not(graph, group)}" for name, merge in MERGES.items())
            raise UsageError(f"{graph.name}: cannot merge operators {list(group)}: {reasons}")
        new = MERGES[kind].merge(new, ops)
    return without_numbers(new), origins(new)


def merge_sites(graph: Graph) -> list[MergeSite]:
    """The largest sets of operators that can be merged, and the subsets of them with equal kernels, which need no zeros
    in kernels (such as all 1x1).

    They are sorted by their first operator. Separable convolutions that wait for each other are divided into sets by
    how many of them come one after another before each, so that the members of a set are independent. Polynomial time:
    operators are classed by keys, without a search over subsets.
    """
    above = ancestors(masks(graph.predecessors()))
    places: dict[tuple[str, tuple[int, ...]], None] = {}
    for kind, members, kernel in _alike(graph):
        for level in _levels(members, above) if kind == "separables" else [members]:
            for ops in (level, *_classes(level, kernel.__getitem__)):
                if len(ops) > 1 and (kind != "pools" or not _none_pooled(graph, ops)):
                    places[kind, tuple(sorted(ops))] = None
    sites = [MergeSite(kind, ops, *MERGES[kind].macs(graph, ops)) for kind, ops in places]
    return sorted(sites, key=lambda site: (site.ops[0], list(MERGES).index(site.kind), -len(site.ops)))


def swap_merging_pools(graph: Graph) -> Graph:
    """The same network in which each 1x1 convolution behind an average pool is moved before the pool, if it can then be
    merged with another. To a planner of stages, merges through pools are then merges of convolutions on one input."""
    swap = [
        index
        for kind, members, _ in _alike(graph)
        if kind == "pools" and len(members) > 1
        for index in members
        if pool_swappable(graph, index) is None
    ]
    new = numbered(graph)
    for index in swap:
        new = swap_pool(new, origins(new).index(index))
    return without_numbers(new) if swap else graph


_Alike = tuple[str, list[int], Mapping[int, Any]]


def _alike(graph: Graph) -> Iterator[_Alike]:
    """(kind of merge, operators, their kernels): any of the operators that do not wait for each other can be merged."""
    plain = [index for index in range(len(graph.ops)) if not_plain(graph, index) is None]
    kernel: dict[int, Any] = {index: _kernel(graph, index) for index in plain}
    convolutions = [index for index in plain if int(graph.ops[index].attrs.get("group", 1)) == 1]
    classes: dict[Any, list[int]] = {}
    for index in convolutions:
        classes.setdefault((graph.ops[index].inputs[0], *_key(graph, index)), []).append(index)
    for members in classes.values():
        yield "convolutions", members, kernel

    # Convolutions behind a pool, by the pool's input and the key that they have once they are moved before the pool.
    through: dict[Any, list[int]] = {}
    made_by = graph.producers()
    for index in convolutions:
        if pool_swappable(graph, index) is None:
            op = graph.ops[index]
            root = graph.ops[made_by[op.inputs[0]]].inputs[0]
            along = tuple((1, extent) for extent in graph.tensors[root].shape[2:])
            attrs = tuple(item for item in other_attrs(op) if not item[0].startswith("activation"))
            through.setdefault((root, "Conv", along, attrs, graph.tensors[root].dtype), []).append(index)
    for key, pooled in through.items():
        yield "pools", sorted([*classes.get(key, []), *pooled]), kernel

    depthwise = {index: conv for index in convolutions if (conv := depthwise_of(graph, index)) is not None}
    for members in _classes(
        depthwise, lambda index: (*_key(graph, index), *_key(graph, depthwise[index]), _shapes(graph, index))
    ):
        yield "separables", members, {index: kernel[depthwise[index]] for index in members}


def _none_pooled(graph: Graph, ops: Sequence[int]) -> bool:
    return len({graph.ops[index].inputs[0] for index in ops}) == 1


def _classes(ops: Iterable[int], key: Callable[[int], Any]) -> list[list[int]]:
    by_key: dict[Any, list[int]] = {}
    for index in ops:
        by_key.setdefault(key(index), []).append(index)
    return list(by_key.values())


def _key(graph: Graph, index: int) -> tuple[Any, ...]:
    """A key that is equal for convolutions that `unlike` accepts together."""
    op = graph.ops[index]
    along = tuple((window.stride, window.result) for window in windows(graph, index))
    return op.kind, along, other_attrs(op), graph.tensors[op.outputs[0]].dtype


def _kernel(graph: Graph, index: int) -> tuple[Any, ...]:
    return tuple((window.taps, window.dilation, window.before) for window in windows(graph, index))


def _shapes(graph: Graph, index: int) -> tuple[Any, ...]:
    op = graph.ops[index]
    before = graph.ops[graph.producers()[op.inputs[0]]]
    return tuple(graph.tensors[tensor].shape for tensor in (before.inputs[0], op.inputs[0], op.outputs[0]))


def _levels(ops: Sequence[int], above: Sequence[int]) -> list[list[int]]:
    """The operators (ascending), grouped by the longest chain of them that each waits for."""
    inside = sum(1 << index for index in ops)
    level: dict[int, int] = {}
    for index in ops:
        level[index] = 1 + max((level[earlier] for earlier in bits(above[index] & inside)), default=-1)
    return _classes(ops, level.__getitem__)
