"""Orders an ExecuTorch graph: units of nodes that move together, the bytes of their tensors, and the order of least
peak.

A unit is a call with the `memory.alloc` nodes that it writes into. ExecuTorch takes the first node that names a tensor
as its birth, so an early allocation costs bytes; every allocation moves directly in front of its call. Bytes are
counted as in ExecuTorch: a tensor from its allocation to its last reader, an output until the end, an input from the
start, a mutable buffer always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

from downset.errors import UnsupportedError
from downset.integrations.executorch_nodes import (
    is_alloc,
    leaves_of,
    row_of,
    spec_of_node,
    specs_of_node,
    takes_result,
    values_of_node,
    views_of_node,
    written_arguments,
    written_results,
)
from downset.integrations.executorch_offsets import PlacementSettings, arena_of
from downset.integrations.scheduler_order import least_peak_order
from downset.memory.liveness import OrderProblem, Storage
from downset.memory.records import Record, align_up
from downset.results.plans import Order
from downset.text import abridged, format_bytes

__all__ = ["Dialect", "GraphReport", "SpecStorage", "Units", "call_of", "link", "reordered"]


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The gain of ordering and placing one graph."""

    nodes: int
    given_bytes: int
    """Bytes of the arena with the given order, placed by us."""
    ordered_bytes: int
    """Bytes of the arena with our order, placed by us."""
    order: Order
    """Our order of the units. Its evidence states the bound of the peak, and whether the peak is proven least."""
    chosen: bool
    """Whether the graph has our order now, because that takes fewer bytes."""
    own_bytes: int | None = None
    """Bytes that ExecuTorch's own planner takes for the graph as it was given; None where it was not asked."""

    __repr__ = abridged

    def __str__(self) -> str:
        """The report as one line of text."""
        before, after = self.own_bytes or self.given_bytes, min(self.given_bytes, self.ordered_bytes)
        kept = "" if self.chosen else "; the given order stays"
        return (
            f"{self.nodes} nodes: arena {format_bytes(before)} -> {format_bytes(after)} B "
            f"({(after - before) / max(before, 1):+.1%}){kept}; "
            f"peak {self.order.evidence.in_bytes()}"
        )


Tensors = Callable[[Any], Iterable[tuple[object, int, int]]]
"""A function from a node to the blocks of bytes that hold its value: (key, bytes, memory). Bytes are 0 if they are not
planned here."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a graph states its tensors, and which of them are planned."""

    tensors: Tensors
    views: Callable[[Any], Iterable[tuple[object, object]]]
    """A function from a node to pairs of keys that are one storage."""
    alignment: int
    inputs: bool
    outputs: bool
    buffers: bool
    always: Callable[[Any], bool]
    """Whether an input is a buffer that is written to; it then lives through the whole run."""

    @staticmethod
    def out_variants(signature: Any, *, alignment: int, inputs: bool, outputs: bool, buffers: bool) -> Dialect:
        """The dialect of graphs whose calls write into what `memory.alloc` made, and whose nodes have the specs of
        their tensors."""
        names = {} if signature is None else signature.inputs_to_buffers
        mutated = set() if signature is None else set(signature.buffers_to_mutate.values())

        def always(node: Any) -> bool:
            return names.get(node.target) in mutated

        return Dialect(specs_of_node, lambda _: (), alignment, inputs, outputs, buffers, always)

    @staticmethod
    def edge() -> Dialect:
        """The dialect of graphs whose calls make new tensors; a `view_copy` will be a view."""
        return Dialect(values_of_node, views_of_node, 16, False, True, False, lambda _: False)


def reordered(graph_module: Any, dialect: Dialect, settings: PlacementSettings, work_limit: int) -> GraphReport | None:
    """Move the nodes of a graph into the order of least bytes; None if there is nothing to order. Raises
    UnsupportedError if a graph cannot be ordered, and leaves the graph as it is."""
    graph = graph_module.graph
    units = Units(list(graph.nodes), dialect)
    if len(units.members) < 2:
        return None
    file_steps = tuple(range(len(units.members)))
    order = least_peak_order(units.problem(), work_limit=work_limit)
    before, after = (units.arena_bytes(steps, settings) for steps in (file_steps, order.steps))
    chosen = after < before
    steps = order.steps if chosen else file_steps
    sequence = [*units.head, *chain.from_iterable(units.members[step] for step in steps)]
    link(sequence)
    if sequence[0] is not next(iter(graph.nodes)):
        next(iter(graph.nodes)).prepend(sequence[0])
    graph.lint()
    graph_module.recompile()
    return GraphReport(len(graph.nodes), before, after, order, chosen)


def link(sequence: Sequence[Any]) -> None:
    """Let nodes of a graph follow each other in this sequence, behind its first node."""
    for earlier, later in pairwise(sequence):
        if earlier.next is not later:
            earlier.append(later)


@dataclass(slots=True)
class SpecStorage:
    """One storage, and the units that use it."""

    nbytes: int = 0
    memory: int = 1
    is_input: bool = False
    """Whether it lives before the first unit."""
    kept: bool = False
    """Whether it lives after the last unit."""
    made_by: int | None = None
    touched: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    """The units that write to it, without the one that makes it."""


class Units:
    """The units of a graph and the blocks of bytes that they use. `head`: inputs and attributes, which stay first."""

    def __init__(self, nodes: Sequence[Any], dialect: Dialect) -> None:
        self._dialect = dialect
        self.head = [node for node in nodes if node.op in ("placeholder", "get_attr")]
        self.members = _units(nodes)
        self._unit_of = {node: unit for unit, members in enumerate(self.members) for node in members}
        self._storages = SpecStorages(nodes, dialect)
        for node in self.head:
            for storage in self._storages.of(node):
                storage.is_input = True
                storage.kept = storage.kept or dialect.always(node)
                if not (dialect.buffers if dialect.always(node) else dialect.inputs):
                    storage.nbytes = 0
        for node, unit in self._unit_of.items():
            for storage in self._storages.of(node):
                if not storage.is_input and storage.made_by is None:
                    storage.made_by = unit
            for touched in (node, *node.all_input_nodes):
                for storage in self._storages.of(touched):
                    storage.touched.add(unit)
            for target in written_arguments(node):
                for storage in self._storages.of(target):
                    if storage.made_by != unit:
                        storage.written.add(unit)
        for source in next(node for node in nodes if node.op == "output").all_input_nodes:
            for storage in self._storages.of(source):
                storage.kept = True
                if not dialect.outputs:
                    storage.nbytes = 0

    def storages(self) -> Iterable[SpecStorage]:
        return self._storages.all()

    def of(self, node: Any) -> list[SpecStorage]:
        """The storages that hold the value of a node."""
        return self._storages.of(node)

    def touching(self, unit: int) -> list[SpecStorage]:
        """The storages that a unit uses, each once."""
        return [storage for storage in self._storages.all() if unit in storage.touched]

    def root_node(self, storage: SpecStorage) -> Any:
        """The node whose value the bytes of a storage are: an input, the call that writes there, or the node that takes
        it from a call with several results."""
        nodes = self.head if storage.is_input else self._unit_of
        return next(
            node
            for node in nodes
            if not is_alloc(node)
            and self._storages.of(node) == [storage]
            and not isinstance(node.meta.get("spec"), list | tuple)
        )

    def root_spec(self, storage: SpecStorage) -> Any:
        """The spec of the first node that has the storage, which is not a view."""
        return self._storages.first_spec(storage)

    def problem(self) -> OrderProblem:
        before: list[set[int]] = [set() for _ in self.members]
        for node, unit in self._unit_of.items():
            before[unit] |= {self._unit_of[source] for source in node.all_input_nodes if source in self._unit_of}
        last: dict[object, int] = {}
        for unit, members in enumerate(self.members):
            row = row_of(call_of(members))
            if row is not None:
                before[unit] |= {last[row]} if row in last else set()
                last[row] = unit
        for storage in self._storages.all():
            for write in storage.written:
                for other in storage.touched:
                    before[max(write, other)].add(min(write, other))
        storages = []
        for storage in self._storages.all():
            makers = () if storage.made_by is None else (storage.made_by,)
            readers = tuple(sorted(storage.touched - set(makers))) or makers
            if storage.nbytes and (readers or storage.kept):
                storages.append(
                    Storage(align_up(storage.nbytes, self._dialect.alignment), makers, readers, storage.kept)
                )
        return OrderProblem(tuple(tuple(sorted(w - {unit})) for unit, w in enumerate(before)), tuple(storages))

    def arena_bytes(self, steps: Sequence[int], settings: PlacementSettings) -> int:
        """Bytes of all memories if the units run in this order."""
        step_of = {unit: when for when, unit in enumerate(steps, start=1)}
        unit = self._dialect.alignment
        memories: dict[int, list[Record]] = {}
        for index, storage in enumerate(self._storages.all()):
            if storage.nbytes:
                places = [step_of[toucher] for toucher in storage.touched]
                first = 0 if storage.is_input else min(places)
                last = len(steps) + 1 if storage.kept else max(places, default=0)
                record = Record(str(index), first, last + 1, align_up(storage.nbytes, unit), unit)
                memories.setdefault(storage.memory, []).append(record)
        return sum(arena_of(records, settings)[1] for records in memories.values())


class SpecStorages:
    """The storages of a graph. Keys of the same bytes are one storage."""

    def __init__(self, nodes: Sequence[Any], dialect: Dialect) -> None:
        self._keys: dict[Any, list[object]] = {}
        self._storage_of: dict[object, SpecStorage] = {}
        self._joined: dict[object, object] = {}
        for node in nodes:
            tensors = [] if node.op == "output" else list(dialect.tensors(node))
            self._keys[node] = [key for key, _, _ in tensors]
            for key, nbytes, memory in tensors:
                storage = self._storage_of.setdefault(key, SpecStorage())
                storage.nbytes, storage.memory = max(storage.nbytes, nbytes), memory
        for node in nodes:
            pairs = list(dialect.views(node))
            for result in written_results(node):
                if len(self._keys[node]) == len(self._keys[result]) == 1:
                    pairs.append((self._keys[node][0], self._keys[result][0]))
                elif self._keys[node]:
                    raise UnsupportedError(f"node {node.name} writes into several tensors at once")
            for one, other in pairs:
                self._join(one, other)

    def _join(self, part: object, whole: object) -> None:
        inner, outer = self._root(part), self._root(whole)
        if inner != outer:
            self._joined[inner] = outer
            self._storage_of[outer].nbytes = max(self._storage_of[outer].nbytes, self._storage_of.pop(inner).nbytes)

    def of(self, node: Any) -> list[SpecStorage]:
        if node not in self._keys:
            return []  # made after the storages were read
        return [self._storage_of[key] for key in dict.fromkeys(map(self._root, self._keys[node]))]

    def all(self) -> Iterable[SpecStorage]:
        return self._storage_of.values()

    def first_spec(self, storage: SpecStorage) -> Any:
        """The first spec of the storage that is not a view, in a graph whose nodes have specs."""
        for node, keys in self._keys.items():
            for key, spec in zip(keys, leaves_of(spec_of_node(node)), strict=False):
                if self._storage_of[self._root(key)] is storage and getattr(spec, "_base", None) is None:
                    return spec
        raise UnsupportedError("a storage has no spec")

    def _root(self, key: object) -> object:
        while key in self._joined:
            key = self._joined[key]
        return key


def _units(nodes: Sequence[Any]) -> list[list[Any]]:
    """The units of these nodes. An allocation belongs to the first node that reads it, which is the call that writes
    there; a node that takes one of several results belongs to the call that has them."""
    position = {node: index for index, node in enumerate(nodes)}
    waiting: dict[Any, list[Any]] = {}
    unit_of: dict[Any, list[Any]] = {}
    units = []
    for node in nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if takes_result(node) and node.args[0] in unit_of:
            unit_of[node.args[0]].append(node)
            continue
        first = min(node.users, key=position.__getitem__, default=None)
        if is_alloc(node) and first is not None and first.op != "output":
            waiting.setdefault(first, []).append(node)
        else:
            units.append([*waiting.pop(node, ()), node])
            unit_of[node] = units[-1]
    return units


def call_of(members: Sequence[Any]) -> Any:
    """The node of a unit that computes; the others are its allocations, and those that take its results."""
    return next((node for node in members if not is_alloc(node)), members[-1])
