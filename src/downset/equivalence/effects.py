"""Whether the orders of two files have the same meaning: producers come first, and effects happen in one order."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from downset.equivalence.file_network import ABSENT, Body, Effect, FileNetwork, FileNode

__all__ = ["EVERYTHING", "order_difference"]

EVERYTHING = "*"
"""The resource that every effect touches: an operator that writes it keeps its place relative to all other effects."""


def order_difference(
    first: FileNetwork,
    second: FileNetwork,
    nodes: Mapping[int, int],
    values: Mapping[int, int],
    *,
    only: tuple[Container[int], Container[int]] | None = None,
) -> str | None:
    """A message about the first fault of the two orders, or None. `nodes` and `values` are the correspondence;
    operators of the first network without a counterpart must have no effects. `only`: the operators of each network
    that are looked at."""
    seen: tuple[Container[int], Container[int]] = only or (range(len(first.nodes)), range(len(second.nodes)))
    for network, among in zip((first, second), seen, strict=True):
        difference = _too_early(network, among)
        if difference:
            return difference
    ours = _histories(first, seen[0], nodes, values)
    theirs = _histories(second, seen[1], None, None)
    for resource in ours.keys() | theirs.keys():
        if ours.get(resource) != theirs.get(resource):
            return f"operators that keep or use {resource} run in another order"
    return None


def _too_early(network: FileNetwork, among: Container[int]) -> str | None:
    """A message about an operator that runs before one that makes its input, or None."""
    results = {value for node in network.nodes for value in node.outputs} - {ABSENT}
    for _, body in _bodies(network, None):
        own = {value for index in body.nodes for value in network.nodes[index].outputs}
        there = (results - own) | set(body.inputs)
        for index in body.nodes:
            node = network.nodes[index]
            if index in among and any(
                value in results and value not in there for value in (*node.inputs, *node.captured)
            ):
                return f"in {network.label} {node.called} runs before what makes its input"
            there.update(node.outputs)
    return None


def _bodies(network: FileNetwork, nodes: Mapping[int, int] | None) -> Iterator[tuple[object, Body]]:
    """(number in the second network, graph) of every graph of a network."""
    yield from enumerate(network.bodies)
    for index, node in enumerate(network.nodes):
        for place, body in enumerate(node.bodies):
            yield (index if nodes is None else nodes.get(index), place), body


def _histories(
    network: FileNetwork, among: Container[int], nodes: Mapping[int, int] | None, values: Mapping[int, int] | None
) -> dict[object, list[object]]:
    """By graph and resource: the operators that write it, in their order, and between these the set of operators that
    read it. Numbers are those of the second network."""
    histories: dict[object, list[object]] = {}
    for graph, body in _bodies(network, nodes):
        for index in body.nodes:
            if index not in among:
                continue
            who = index if nodes is None else nodes.get(index)
            for resource, writes in _effects(network.nodes[index]):
                name = resource if values is None or isinstance(resource, str) else values.get(resource)
                history = histories.setdefault((graph, name), [set()])
                if writes:
                    history += [who, set()]
                else:
                    readers = history[-1]
                    assert isinstance(readers, set)
                    readers.add(who)
    return histories


def _effects(node: FileNode) -> Iterator[Effect]:
    yield from node.effects
    if node.effects and all(resource != EVERYTHING for resource, _ in node.effects):
        yield EVERYTHING, False
