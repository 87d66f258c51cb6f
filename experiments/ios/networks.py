"""The four networks of the stages paper as unit graphs, by the names that the zoo gives its operators."""

from __future__ import annotations

from functools import cache

from downset import Graph
from downset.lattice import bits
from downset.stages.unit_graph import UnitGraph, unit_predecessors
from zoo import graph as zoo_graph

__all__ = ["NETWORKS", "block_predecessors", "blocks_of", "network", "paper_units"]

NETWORKS = {
    "inception_v3": "Inception V3",
    "randwire_large": "RandWire",
    "nasnet_large": "NASNet-A",
    "squeezenet": "SqueezeNet",
}


@cache
def network(name: str) -> Graph:
    """The network without weights: to count and plan."""
    return zoo_graph(name, weights=False)


def paper_units(graph: Graph) -> UnitGraph:
    """Units exactly as the paper's code has them: operators are named bBLOCK/uUNIT/KIND."""
    members: dict[str, list[int]] = {}
    for index, op in enumerate(graph.ops):
        members.setdefault("/".join(op.name.split("/")[:2]), []).append(index)
    units = tuple(tuple(ops) for ops in members.values())
    return UnitGraph(units, unit_predecessors(graph, units))


def blocks_of(graph: Graph, units: UnitGraph) -> tuple[tuple[int, ...], ...]:
    """The paper's blocks, as units."""
    blocks: dict[str, list[int]] = {}
    for unit, ops in enumerate(units.units):
        blocks.setdefault(graph.ops[ops[0]].name.split("/")[0], []).append(unit)
    return tuple(tuple(block) for _, block in sorted(blocks.items(), key=lambda item: int(item[0][1:])))


def block_predecessors(units: UnitGraph, block: tuple[int, ...]) -> tuple[int, ...]:
    """The predecessors inside one block, its units renumbered from 0."""
    number = {unit: place for place, unit in enumerate(block)}
    return tuple(
        sum(1 << number[earlier] for earlier in bits(units.predecessors[unit]) if earlier in number) for unit in block
    )
