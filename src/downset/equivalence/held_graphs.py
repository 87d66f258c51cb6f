"""Graphs that an operator holds (If, Loop, Scan), in a network of which a rewrite changed other operators: they must be
those of the original, operator by operator, and read from outside what these read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from downset.equivalence.claims import Unproven, whole
from downset.equivalence.file_network import ABSENT, Body, FileNode
from downset.equivalence.identities import Place, same_constant

__all__ = ["same_graphs"]


def same_graphs(place: Place, node: FileNode) -> None:
    """Prove that the operator holds the graphs of the original's operator `node`, whose operators are in the same
    sequence. Raises Unproven where they differ."""
    _HeldGraphs(place).bodies(place.node.bodies, node.bodies)


@dataclass(slots=True)
class _HeldGraphs:
    place: Place
    original: dict[int, int] = field(default_factory=dict)
    """By value inside a graph: the value of the original's graph in its place."""

    def bodies(self, ours: Sequence[Body], theirs: Sequence[Body]) -> None:
        if len(ours) != len(theirs):
            raise Unproven("it holds another number of graphs")
        for mine, other in zip(ours, theirs, strict=True):
            self._body(mine, other)

    def _body(self, mine: Body, other: Body) -> None:
        second, first = self.place.second, self.place.first
        sizes = [(len(body.inputs), len(body.nodes), len(body.outputs)) for body in (mine, other)]
        if sizes[0] != sizes[1] or mine.settings != other.settings or mine.named.keys() != other.named.keys():
            raise Unproven(f"its graph {mine.label!r} differs in its ends, its settings or its number of operators")
        self._makes(mine.inputs, other.inputs)
        for index, place in zip(mine.nodes, other.nodes, strict=True):
            self._node(second.nodes[index], first.nodes[place])
        for value, target in zip(mine.outputs, other.outputs, strict=True):
            self._same(value, target)
        for name, value in mine.named.items():
            self._same(value, other.named[name])

    def _node(self, mine: FileNode, other: FileNode) -> None:
        alike = mine.kind == other.kind and mine.settings == other.settings
        if not alike or len(mine.inputs) != len(other.inputs) or len(mine.outputs) != len(other.outputs):
            raise Unproven(f"in a graph that it holds, {mine.called} is not the original's {other.called}")
        for value, target in zip(mine.inputs, other.inputs, strict=True):
            self._same(value, target)
        self.bodies(mine.bodies, other.bodies)
        self._makes(mine.outputs, other.outputs)

    def _makes(self, ours: Sequence[int], theirs: Sequence[int]) -> None:
        for value, target in zip(ours, theirs, strict=True):
            mine, other = (
                network.values[one] if one != ABSENT else None
                for network, one in ((self.place.second, value), (self.place.first, target))
            )
            if (mine is None) != (other is None):
                raise Unproven("in a graph that it holds, a result is there in one of the files only")
            if mine is None or other is None:
                continue
            if mine.form != other.form or not mine.same_default(other):
                raise Unproven(f"in a graph that it holds, {mine.label!r} has another type or default")
            self.original[value] = target

    def _same(self, value: int, target: int) -> None:
        """Prove that a value that is read holds the original's: one of the graphs, a constant, or one from outside."""
        if value in self.original or ABSENT in (value, target):
            if self.original.get(value, value) != target:
                raise Unproven("in a graph that it holds, an operator reads another value")
            return
        mine, other = self.place.second.values[value], self.place.first.values[target]
        claim = self.place.claims.get(value)
        if other.content is not None:
            if mine.form != other.form or not mine.same_content(other):
                same_constant(mine, other, whole(other))
        elif claim is None or whole(other) not in self.place.views.boxes(claim, target):
            raise Unproven(f"in a graph that it holds, {mine.label!r} from outside is not {other.label!r}")
