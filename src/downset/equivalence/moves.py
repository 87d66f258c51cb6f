"""Files with moves between two memories: the network without its moves, and whether its tensors lie where they may.

A move is a RESHAPE to the same shape, which gives the value that it reads. So the network in which the readers of its
result read its input computes the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from downset.equivalence.file_network import (
    ABSENT,
    Body,
    FileNetwork,
    FileNode,
    metadata_of,
    without_metadata,
)
from downset.equivalence.meaning import listed_integers
from downset.equivalence.offline import Offline
from downset.results.two_memories import ALIGNMENT, MEMORIES_KEY, TwoMemories, read_two_memories

__all__ = ["memories_of", "moves_fault", "without_moves"]


def memories_of(network: FileNetwork) -> TwoMemories | None:
    """The record of the two memories that the metadata of a file hold. Raises LoadError for damaged metadata."""
    stored = metadata_of(network, MEMORIES_KEY)
    return None if stored is None else read_two_memories(stored)


def without_moves(network: FileNetwork) -> FileNetwork:
    """The network of a file with moves without them and without what its metadata say of memories; any other network
    as it is."""
    if memories_of(network) is None:
        return network
    main = network.bodies[0]
    same: dict[int, int] = {}
    """By result of a move: the value that was made first."""
    for index in main.nodes:
        node = network.nodes[index]
        if _copies(network, node):
            same[node.outputs[0]] = same.get(node.inputs[0], node.inputs[0])
    gone = {index for index in main.nodes if {*network.nodes[index].outputs} & same.keys()}
    kept = [index for index in range(len(network.nodes)) if index not in gone]
    number = {old: new for new, old in enumerate(kept)}
    values = list(network.values)
    for output in main.outputs:  # a certificate names what the caller gets by the name of the last copy
        if output in same and same[output] not in main.inputs:
            values[same[output]] = replace(values[same[output]], label=values[output].label)
    return replace(
        without_metadata(network, MEMORIES_KEY),
        values=tuple(values),
        nodes=tuple(_reading(network.nodes[index], same) for index in kept),
        bodies=tuple(_body(body, number, same) for body in network.bodies),
        named=_named(network.named, same),
    )


def _copies(network: FileNetwork, node: FileNode) -> bool:
    """Whether the result is the value that the node reads, with the same shape, type and quantization."""
    if node.kind != "RESHAPE" or len(node.inputs) != 1 or len(node.outputs) != 1 or node.effects:
        return False
    read, result = (network.values[value] for value in (*node.inputs, *node.outputs))
    if read.keeps or result.keeps or read.form != result.form or read.shape is None:
        return False
    return listed_integers(node.settings.get("newShape")) == [*read.shape]


def _reading(node: FileNode, same: Mapping[int, int]) -> FileNode:
    inputs = tuple(value if value == ABSENT else same.get(value, value) for value in node.inputs)
    captured = tuple(same.get(value, value) for value in node.captured)
    return (
        node if (inputs, captured) == (node.inputs, node.captured) else replace(node, inputs=inputs, captured=captured)
    )


def _body(body: Body, number: Mapping[int, int], same: Mapping[int, int]) -> Body:
    return replace(
        body,
        outputs=tuple(same.get(value, value) for value in body.outputs),
        nodes=tuple(number[one] for one in body.nodes if one in number),
        named=_named(body.named, same),
    )


def _named(named: Mapping[Any, int], same: Mapping[int, int]) -> dict[Any, int]:
    return {name: same.get(value, value) for name, value in named.items()}


def moves_fault(network: FileNetwork, offline: Offline | None) -> str | None:
    """Why the tensors of a file for two memories do not lie in them; None where they do, and for any other file.
    `check_placement` checks all else."""
    memories = memories_of(network)
    if memories is None:
        return None
    if offline is None:
        return "it states no offsets"
    if memories.distance % ALIGNMENT:
        return f"the distance {memories.distance} of its memories is not a multiple of {ALIGNMENT}"
    least = memories.fast_bytes if memories.distance > 0 else memories.slow_bytes
    if abs(memories.distance) < least:
        return f"its memories overlap: they are {abs(memories.distance)} bytes apart, and the lower one has {least}"
    main = network.bodies[0]
    results = [value for node in main.nodes for value in network.nodes[node].outputs if value != ABSENT]
    for value in (*main.inputs, *results):
        offset, nbytes = offline.offsets[value], offline.nbytes[value]
        label = network.values[value].label
        if not nbytes or network.values[value].content is not None:
            continue
        if offset < 0:
            return f"{label!r} has no offset: the runtime may place it between the memories"
        if memories.is_fast(offset, nbytes) is None:
            return f"{label!r} at {offset} lies outside the room for tensors in both memories"
    return None
