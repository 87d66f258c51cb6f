"""The graphs that SERENITY's figures are drawn for, and what the figures share.

Nine cells, as in figures 10, 11, 13 and 15: DARTS's normal cell, SwiftNet's A, B and C, two of RandWire for CIFAR-10
and three for CIFAR-100. SwiftNet's are operators of the real file where ../shared is there. DARTS's and RandWire's come
from the zoo, in float32. The paper's RandWire seeds and widths are not public: ours are networks of the same kind, and
the two for CIFAR-10 are the first two of three stages. DARTS's cell begins with the two states that its nodes read, and
ends with the convolution of the next cell behind its concatenation: cut in front of that convolution nothing could be
rewritten, and cut in front of the states, the bytes of the stem would be the peak of every order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

from downset import MEMORY_MODELS, Graph, Op, OrderProblem, Storage, load
from downset.lattice import bits, masks
from downset.rewrites.concat.partition import concat_partition, partition_sites
from experiments.serenity.swiftnet import CELLS, MODEL, part
from zoo import graph as zoo_graph

__all__ = [
    "CELLS_OF_THE_PAPER",
    "ROUNDED",
    "available",
    "by_nodes",
    "geometric_mean",
    "nodes_as_counted",
    "rewritten",
    "whole_networks",
    "without_concats",
]

ROUNDED = {name: replace(MEMORY_MODELS[name], name=f"{name}, 64", alignment=64) for name in ("live", "serenity")}
"""The two memory models with tensors rounded up to 64 bytes, as TFLite's arena does: for figures with the allocator."""


@cache
def _swiftnet() -> Graph:
    return load(MODEL)


def _darts_cell() -> Graph:
    """The first cell of DARTS for ImageNet, from its two states to the convolution behind its concatenation."""
    network = zoo_graph("darts", weights=False)
    names = [op.name for op in network.ops]
    state = next(index for index, op in enumerate(network.ops) if op.name.startswith("cell0/") and op.kind == "Concat")
    behind = names.index("cell1/conv")
    cell = part(network, state + 1, behind)
    # The cell after the next reads the concatenation too; in the paper's cells nobody does.
    return replace(cell, outputs=network.ops[behind].outputs).check()


def _stage(name: str, stage: int) -> Graph:
    """One random graph of RandWire: all operators of the stage."""
    network = _randwire(name)
    inside = [index for index, op in enumerate(network.ops) if op.name.startswith(f"s{stage}/")]
    return part(network, inside[0], inside[-1])


@cache
def _randwire(name: str) -> Graph:
    return zoo_graph(name, weights=False, wiring=0 if name == "randwire_cifar10" else 1)


CELLS_OF_THE_PAPER: dict[str, Callable[[], Graph]] = {
    "DARTS normal cell": _darts_cell,
    **{f"SwiftNet cell {name}": lambda span=span: part(_swiftnet(), *span) for name, span in CELLS.items()},
    **{
        f"RandWire CIFAR-{classes} stage {stage + 1}": lambda classes=classes, stage=stage: _stage(
            f"randwire_cifar{classes}", stage
        )
        for classes, stages in ((10, 2), (100, 3))
        for stage in range(stages)
    },
}


WHOLE_NETWORKS = (
    "swiftnet_hpd_vwwc224_uint8",
    "darts_imagenet14",
    "randwire_cifar10",
    "randwire_coarse_s0",
    "randwire_fine_s0",
    "nasnet_mobile",
    "nasnet_large",
    "pnasnet_large",
    "amoebanet_large",
)


def available() -> dict[str, Graph]:
    """The cells that can be made here: without ../shared all but SwiftNet's."""
    return {
        name: make() for name, make in CELLS_OF_THE_PAPER.items() if MODEL.exists() or not name.startswith("SwiftNet")
    }


def whole_networks() -> dict[str, Graph]:
    """The networks of ../shared/data/orders, sizes only; empty where it is absent."""
    folder = MODEL.parents[1] / "data" / "orders"
    return {name: load(folder / f"{name}.json") for name in WHOLE_NETWORKS if folder.is_dir()}


def rewritten(graph: Graph, memory: str) -> Graph:
    """Every concatenation that can be is taken apart, as in the paper. Under `serenity` the partial sums accumulate in
    place; under `live` they are added one after another, which is what an executable file has."""
    sites = partition_sites(graph, inexact=True)
    return concat_partition(graph, sites, accumulate="sum" if memory == "serenity" else "chain", inexact=True)


def by_nodes(stage: Graph) -> Graph:
    """A RandWire stage with each node of its random graph (sum, ReLU, two convolutions) as one operator, which is how a
    graph of 32 nodes is scheduled; what a node holds while it computes is left out."""
    members: dict[str, list[Op]] = {}
    for op in stage.ops:
        members.setdefault(op.name.rpartition("/")[0] if "/n" in op.name else op.name, []).append(op)
    ops = []
    for name, inside in members.items():
        produced = {tensor for op in inside for tensor in op.outputs}
        read = dict.fromkeys(tensor for op in inside for tensor in op.inputs if tensor not in produced)
        ops.append(Op(name, "zoo::Node", tuple(read), inside[-1].outputs))
    return replace(stage, ops=tuple(ops)).check()


def without_concats(graph: Graph, problem: OrderProblem) -> OrderProblem:
    """The problem with its zero-copy concatenations left out: they allocate nothing, so each can run at once when its
    parts are there. The paper counts nodes this way. Concatenations with bytes of
    their own, or that nobody reads, stay. Raises ValueError where operators run in place."""
    dropped = _zero_copy(graph, problem)
    if problem.in_place:
        raise ValueError("operators that run in place depend on which others ran: concatenations cannot be left out")
    before: list[int] = []
    for predecessors in masks(problem.predecessors):  # operators come in a topological order
        mask = predecessors & ~dropped
        for concat in bits(predecessors & dropped):
            mask |= before[concat]
        before.append(mask)
    kept = [index for index in range(len(graph.ops)) if not dropped >> index & 1]
    place = {index: position for position, index in enumerate(kept)}

    def moved(operators: Iterable[int]) -> tuple[int, ...]:
        return tuple(place[index] for index in operators if not dropped >> index & 1)

    storages = tuple(
        Storage(storage.nbytes, moved(storage.producers), moved(storage.consumers), storage.kept)
        for storage in problem.storages
    )
    return OrderProblem(tuple(moved(bits(before[index])) for index in kept), storages, (), problem.floor_bytes)


def _zero_copy(graph: Graph, problem: OrderProblem) -> int:
    """The concatenations that are read and have no bytes of their own, as a mask."""
    read = {tensor for op in graph.ops for tensor in op.inputs}
    producers = {operator for storage in problem.storages for operator in storage.producers}
    free = (
        op.kind == "Concat" and op.outputs[0] in read and index not in producers for index, op in enumerate(graph.ops)
    )
    return sum(1 << index for index, drops in enumerate(free) if drops)


def nodes_as_counted() -> Graph:
    """SwiftNet from the pool in front of cell A to the end of cell C: without concatenations the paper's 62 nodes."""
    return part(_swiftnet(), CELLS["A"][0] - 1, CELLS["C"][1])


def geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))
