"""A correspondence, one to one, of the operators and tensors of two networks, which shows that they are the same. It is
found first, and then checked as a whole by code that does not rely on how it was found.

Every value has one producer, and inputs and outputs have positions. So for all operators that the outputs need, the
correspondence follows backwards from the outputs without a choice. Operators that no output needs are paired last, by
digests of what they compute, and their differences are reported last. Constants correspond by content: one file may
store twice a constant that the other stores once. An input corresponds by its name and place, even where it has a
default value.
Complexity: linear in operators, tensors and bytes of constants.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from downset.equivalence.effects import order_difference
from downset.equivalence.file_network import ABSENT, Body, FileNetwork

__all__ = ["Bijection", "check_bijection", "find_bijection", "graphs_difference"]


@dataclass(frozen=True, slots=True)
class Bijection:
    """`nodes`: by operator of the first network, the operator of the second. `values`: the same for values."""

    nodes: Mapping[int, int] = field(default_factory=dict)
    values: Mapping[int, int] = field(default_factory=dict)


def find_bijection(first: FileNetwork, second: FileNetwork) -> Bijection:
    """The only correspondence that can hold, as far as one was found. `check_bijection` decides whether it holds."""
    pairing = _Pairing(first, second)
    for one, other in zip(first.bodies, second.bodies, strict=False):
        pairing.bodies(one, other)
    pairing.names(first.named, second.named)
    pairing.follow()
    pairing.unread()
    return Bijection(pairing.nodes, pairing.values)


class _Pairing:
    def __init__(self, first: FileNetwork, second: FileNetwork) -> None:
        self.first, self.second = first, second
        self.nodes: dict[int, int] = {}
        self.values: dict[int, int] = {}
        self.taken: set[int] = set()
        self.left: deque[tuple[int, int]] = deque()
        self.made_by = [_producers(network) for network in (first, second)]

    def bodies(self, one: Body, other: Body) -> None:
        self.left.extend(zip(one.inputs, other.inputs, strict=False))
        self.left.extend(zip(one.outputs, other.outputs, strict=False))
        self.names(one.named, other.named)

    def names(self, ours: Mapping[Any, int], theirs: Mapping[Any, int]) -> None:
        self.left.extend((value, theirs[name]) for name, value in ours.items() if name in theirs)

    def follow(self) -> None:
        """Pair all operators and values that must correspond, given the pairs found so far."""
        while self.left:
            one, other = self.left.popleft()
            if ABSENT in (one, other) or one in self.values:
                continue
            self.values[one] = other
            maker, counterpart = self.made_by[0].get(one), self.made_by[1].get(other)
            if maker is not None and counterpart is not None:
                self.pair(maker, counterpart)

    def pair(self, one: int, other: int) -> None:
        if one in self.nodes or other in self.taken:
            return
        self.nodes[one] = other
        self.taken.add(other)
        ours, theirs = self.first.nodes[one], self.second.nodes[other]
        for mine, its in ((ours.outputs, theirs.outputs), (ours.inputs, theirs.inputs)):
            self.left.extend(zip(mine, its, strict=False))
        for mine_inside, its_inside in zip(ours.bodies, theirs.bodies, strict=False):
            self.bodies(mine_inside, its_inside)

    def unread(self) -> None:
        """Pair the operators that no output needs: first those whose results no operator reads, by digests, then the
        operators that they need."""
        waiting: dict[Hashable, deque[int]] = defaultdict(deque)
        colours = [_Colours(self.first), _Colours(self.second)]
        for node in _sinks(self.second, self.taken):
            waiting[colours[1].of_node(node)].append(node)
        for node in _sinks(self.first, set(self.nodes)):
            alike = waiting[colours[0].of_node(node)]
            if alike:
                self.pair(node, alike.popleft())
                self.follow()


def _producers(network: FileNetwork) -> dict[int, int]:
    return {value: index for index, node in enumerate(network.nodes) for value in node.outputs if value != ABSENT}


def _needed(network: FileNetwork) -> set[int]:
    """The operators that outputs need, and values that the file names."""
    made_by = _producers(network)
    ends = [*network.named.values(), *(end for body in network.bodies for end in (*body.outputs, *body.named.values()))]
    needed: set[int] = set()
    while ends:
        maker = made_by.get(ends.pop())
        if maker is not None and maker not in needed:
            needed.add(maker)
            node = network.nodes[maker]
            ends += (*node.inputs, *node.captured)
            ends += (end for body in node.bodies for end in (*body.outputs, *body.named.values()))
    return needed


def _sinks(network: FileNetwork, consumed: set[int]) -> list[int]:
    read = {value for node in network.nodes for value in (*node.inputs, *node.captured)}
    return [index for index, node in enumerate(network.nodes) if index not in consumed and not read & set(node.outputs)]


class _Colours:
    """A digest for each operator, over everything that it depends on. Equal digests only propose a pair."""

    def __init__(self, network: FileNetwork) -> None:
        self._network = network
        self._value: dict[int, bytes] = {}
        self._node: dict[int, bytes] = {}
        self._made_by = _producers(network)

    def of_node(self, node: int) -> bytes:
        stack = [node]
        while stack:
            index = stack[-1]
            makers = [self._made_by[value] for value in self._network.nodes[index].inputs if value in self._made_by]
            waits = [maker for maker in makers if maker not in self._node and maker != index]
            if index in self._node or not waits or len(stack) > len(self._network.nodes):
                stack.pop()
                self._node.setdefault(index, self._digest(index))
            else:
                stack += waits
        return self._node[node]

    def _digest(self, index: int) -> bytes:
        node = self._network.nodes[index]
        parts = [repr(node.kind), repr(sorted(node.settings.items(), key=repr))]
        return _digest([*(part.encode() for part in parts), *map(self._of_value, node.inputs)])

    def _of_value(self, value: int) -> bytes:
        if value == ABSENT:
            return b"absent"
        maker = self._made_by.get(value)
        if maker is not None:
            place = self._network.nodes[maker].outputs.index(value)
            return _digest([self._node.get(maker, b""), str(place).encode()])
        if value not in self._value:
            described = self._network.values[value]
            self._value[value] = _digest(
                [repr(described.form).encode(), described.content() if described.content else b""]
            )
        return self._value[value]


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def check_bijection(first: FileNetwork, second: FileNetwork, bijection: Bijection) -> str | None:
    """A message about the first difference of the two networks under `bijection`; None where they are the same.

    It checks that operators and tensors correspond one to one; that kinds, settings, forms and contents are equal; that
    corresponding operators read corresponding values, in bodies too; that both files run every operator after those
    that it needs; and that effects happen in the same order.
    """
    check = _Check(first, second, bijection)
    return check.whole() or order_difference(first, second, bijection.nodes, bijection.values)


def graphs_difference(
    first: FileNetwork, second: FileNetwork, bijection: Bijection, one: int, other: int
) -> str | None:
    """A message about the first difference of the graphs that two operators hold; None where they are the same, but for
    rounding of constants."""
    check = _Check(first, second, bijection, rounding=True)
    ours, theirs = first.nodes[one], second.nodes[other]
    return check.graphs(ours.bodies, theirs.bodies, ours.called)


class _Check:
    """`rounding`: constants may differ by rounding."""

    def __init__(
        self, first: FileNetwork, second: FileNetwork, bijection: Bijection, *, rounding: bool = False
    ) -> None:
        self.first, self.second, self.found, self.rounding = first, second, bijection, rounding
        self.alike: set[tuple[int, int]] = set()

    def whole(self) -> str | None:
        first, second = self.first, self.second
        if first.settings != second.settings:
            return f"they differ in {_first_key(first.settings, second.settings)}"
        if first.named.keys() != second.named.keys():
            return f"they differ in the {_first_key(first.named, second.named)}"
        needed = _needed(first), _needed(second)
        return (
            self._named(first.named, second.named)
            or self._bodies(first.bodies, second.bodies, "the file")
            or self._nodes(*(sorted(indices) for indices in needed))
            or order_difference(first, second, self.found.nodes, self.found.values, only=needed)
            or self._nodes(range(len(first.nodes)), range(len(second.nodes)))
            or self._one_to_one()
            or order_difference(first, second, self.found.nodes, self.found.values)
        )

    def _nodes(self, ours: Sequence[int], theirs: Sequence[int]) -> str | None:
        """The first difference of these operators, among which each must have its counterpart."""
        there, paired = set(theirs), set()
        for index in ours:
            other = self.found.nodes.get(index)
            if other not in there:
                return f"{self.first.nodes[index].called} has no counterpart"
            difference = self._node(index)
            if difference:
                return difference
            paired.add(other)
        left = next((index for index in theirs if index not in paired), None)
        return None if left is None else f"{self.second.nodes[left].called} of the other has no counterpart"

    def _one_to_one(self) -> str | None:
        first, second, nodes = self.first, self.second, self.found.nodes
        if sorted(nodes.values()) != list(range(len(second.nodes))):
            return "operators do not correspond one to one"
        counterparts = list(self.found.values.items())
        varying = [other for one, other in counterparts if first.values[one].content is None]
        if len(set(varying)) != len(varying):
            return "tensors do not correspond one to one"
        return None

    def graphs(self, ours: tuple[Body, ...], theirs: tuple[Body, ...], where: str) -> str | None:
        """The first difference of graphs, and of the graphs that their operators hold."""
        inside = [index for body in ours for index in body.nodes]
        lost = next((index for index in inside if index not in self.found.nodes), None)
        if lost is not None:
            return f"{self.first.nodes[lost].called} has no counterpart"
        if any(len(one.nodes) != len(other.nodes) for one, other in zip(ours, theirs, strict=False)):
            return f"{where} holds graphs of other sizes"
        difference = self._bodies(ours, theirs, where) or next(filter(None, map(self._node, inside)), None)
        if difference:
            return difference
        pairs = ((self.first.nodes[each], self.second.nodes[self.found.nodes[each]], each) for each in inside)
        deeper = (self.graphs(one.bodies, other.bodies, self.first.nodes[each].called) for one, other, each in pairs)
        return next(filter(None, deeper), None)

    def _named(self, ours: Mapping[Any, int], theirs: Mapping[Any, int]) -> str | None:
        differences = (self._value(value, theirs[name], _label_text(name)) for name, value in ours.items())
        return next(filter(None, differences), None)

    def _bodies(self, ours: tuple[Body, ...], theirs: tuple[Body, ...], where: str) -> str | None:
        """The first difference of graphs, except for their operators. All operators must be paired elsewhere."""
        if len(ours) != len(theirs):
            return f"{where} holds {len(ours)} graphs, in the other {len(theirs)}"
        for one, other in zip(ours, theirs, strict=True):
            if not {self.found.nodes.get(index) for index in one.nodes} <= {None, *other.nodes}:
                return f"operators of the graph {one.label!r} belong to another one in the other file"
            if one.settings != other.settings:
                return f"{one.label} has other {_first_key(one.settings, other.settings)}"
            if one.named.keys() != other.named.keys():
                return f"{one.label} has no {_first_key(one.named, other.named)} in both files"
            difference = self._named(one.named, other.named)
            if difference:
                return difference
            for what, mine, its in (("inputs", one.inputs, other.inputs), ("outputs", one.outputs, other.outputs)):
                difference = self._values(mine, its, f"the {what} of {one.label!r}")
                if difference:
                    return difference
        return None

    def _node(self, index: int) -> str | None:
        one, other = self.first.nodes[index], self.second.nodes[self.found.nodes[index]]
        where = self.first.nodes[index].called
        if one.kind != other.kind:
            return f"{where} is {other.called} in the other"
        if one.settings != other.settings:
            return f"{where} has another {_first_key(one.settings, other.settings)}"
        return (
            self._values(one.inputs, other.inputs, f"the inputs of {where}")
            or self._values(one.outputs, other.outputs, f"the outputs of {where}")
            or self._bodies(one.bodies, other.bodies, where)
        )

    def _values(self, ours: tuple[int, ...], theirs: tuple[int, ...], where: str) -> str | None:
        if len(ours) != len(theirs):
            return f"{where}: {len(ours)} against {len(theirs)}"
        differences = (self._value(one, other, where) for one, other in zip(ours, theirs, strict=True))
        return next(filter(None, differences), None)

    def _value(self, one: int, other: int, where: str) -> str | None:
        if (one, other) in self.alike:
            return None
        if ABSENT in (one, other):
            return None if one == other else f"{where}: one is absent"
        ours, theirs = self.first.values[one], self.second.values[other]
        if (ours.content is None) != (theirs.content is None) or ours.keeps != theirs.keeps:
            return f"{where}: {ours.label!r} is a constant or a state in one file only"
        if ours.form != theirs.form:
            return f"{where}: {ours.label!r} has another type, shape or quantization"
        if ours.content is None or theirs.content is None:
            if not ours.same_default(theirs):
                return f"{where}: {ours.label!r} has another default value"
            if self.found.values.get(one) != other:
                return f"{where}: in the other file {theirs.label!r} takes the place of {ours.label!r}"
        elif not ours.same_content(theirs) and not (self.rounding and ours.rounds_to(theirs)):
            return f"{where}: the constant {ours.label!r} has other values"
        self.alike.add((one, other))
        return None


def _first_key(one: Mapping[Any, object], other: Mapping[Any, object]) -> str:
    missing = object()
    keys = [*one, *(key for key in other if key not in one)]
    return _label_text(next(key for key in keys if one.get(key, missing) != other.get(key, missing)))


def _label_text(key: str | tuple[str, ...]) -> str:
    """A key of settings or names in messages: what it is, then the names in it."""
    return key if isinstance(key, str) else " ".join((key[0], *(repr(part) for part in key[1:])))
