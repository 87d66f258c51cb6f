"""THE definition of live bytes and peak: a graph and a memory model give storages, storages give everything else.

A *storage* is bytes of memory with one lifetime; tensors that share bytes (views, zero-copy concatenations,
accumulated partial sums) share storages. For a downset D (the operators executed so far)

    live(D) = Σ nbytes over storages allocated in D and not yet freed in D,

allocated when the first of its producers ran (or from the start), freed when all of its consumers ran (or never, when
kept). Executing v at D needs

    transient(v, D) = live(D) + bytes v allocates − bytes it takes over in place,

and the peak of an order is its largest transient. live is a function of the downset alone, and submodular
(docs: the proof); every search here rests on that. What is taken over lowers a transient only, never live bytes: in
place at equal aligned size, where one storage goes on as the other, or of any size while one operator runs, where its
result overlaps an input that dies with it (`storages.lagged`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from downset.errors import LimitReached
from downset.graph.core import Graph
from downset.isolation import machine_bytes
from downset.memory.models import MemoryModel, memory_model
from downset.memory.records import Overlap, Record
from downset.memory.storages import lagged, map_storages, takeover
from downset.text import abridged, format_bytes

__all__ = [
    "Lifetimes",
    "OrderProblem",
    "Storage",
    "lifetimes",
    "live_bytes",
    "order_problem",
    "peak_bytes",
    "profile",
    "transient_bytes",
]


@dataclass(frozen=True, slots=True)
class Storage:
    """A block of `nbytes` (already aligned): allocated when the first of the `producers` runs (none: before the start),
    freed when all `consumers` ran, unless `kept` to the end. Both list operators, ascending, each once. A storage
    without `consumers` is `kept`: what is read by nobody is consumed by its producers."""

    nbytes: int
    producers: tuple[int, ...]
    consumers: tuple[int, ...]
    kept: bool = False


@dataclass(frozen=True, slots=True)
class OrderProblem:
    """All that an order planner sees. `predecessors[v]` lists the operators that v directly waits for, ascending;
    `in_place[v]` the storages whose bytes v's output may take over, if by then only v has still to read them, and
    `in_place_bytes[v]` how many of each, no more than v allocates (empty: all).

    `floor_bytes`: what any order needs even before its first operator (all graph inputs at once)."""

    predecessors: tuple[tuple[int, ...], ...]
    storages: tuple[Storage, ...]
    in_place: tuple[tuple[int, ...], ...] = ()
    floor_bytes: int = 0
    in_place_bytes: tuple[tuple[int, ...], ...] = ()

    def __repr__(self) -> str:
        return f"<OrderProblem: {len(self.predecessors)} operators, {len(self.storages)} storages>"

    def candidates(self, operator: int) -> tuple[tuple[int, int], ...]:
        """(storage, bytes that may be taken over) of the operator."""
        listed = self.in_place[operator] if self.in_place else ()
        if self.in_place_bytes:
            return tuple(zip(listed, self.in_place_bytes[operator], strict=True))
        return tuple((index, self.storages[index].nbytes) for index in listed)


def live_bytes(problem: OrderProblem, downset: int) -> int:
    """Bytes live once exactly the operators of `downset` (a mask) ran. O(storages)."""
    total = 0
    for storage in problem.storages:
        allocated = not storage.producers or _ran(storage.producers, downset)
        freed = not storage.kept and len(_ran(storage.consumers, downset)) == len(storage.consumers)
        if allocated and not freed:
            total += storage.nbytes
    return total


def transient_bytes(problem: OrderProblem, downset: int, operator: int) -> int:
    """Bytes live while `operator` runs right after exactly those of `downset`. O(storages)."""
    total = live_bytes(problem, downset)
    for storage in problem.storages:
        if operator in storage.producers and not _ran(storage.producers, downset):
            total += storage.nbytes
    for candidate, nbytes in problem.candidates(operator):
        if [v for v in problem.storages[candidate].consumers if not downset >> v & 1] == [operator]:
            return total - nbytes
    return total


def _ran(operators: Sequence[int], downset: int) -> list[int]:
    return [operator for operator in operators if downset >> operator & 1]


def profile(problem: OrderProblem, steps: Sequence[int]) -> list[int]:
    """By step: `transient_bytes` while that operator runs. Incremental: O(steps + storages touched)."""
    storages = problem.storages
    produced: list[list[int]] = [[] for _ in problem.predecessors]
    consumed: list[list[int]] = [[] for _ in problem.predecessors]
    for index, storage in enumerate(storages):
        for operator in storage.producers:
            produced[operator].append(index)
        for operator in storage.consumers:
            consumed[operator].append(index)
    allocated = [not storage.producers for storage in storages]
    waiting = [len(storage.consumers) for storage in storages]
    live = sum(storage.nbytes for storage in storages if not storage.producers)
    transients = []
    for operator in steps:
        for index in produced[operator]:
            live += 0 if allocated[index] else storages[index].nbytes
            allocated[index] = True
        taken = (item for item in problem.candidates(operator) if operator in storages[item[0]].consumers)
        reused = next((nbytes for index, nbytes in taken if waiting[index] == 1), 0)
        transients.append(live - reused)
        for index in consumed[operator]:
            waiting[index] -= 1
            live -= 0 if waiting[index] or storages[index].kept else storages[index].nbytes
    return transients


def peak_bytes(problem: OrderProblem, steps: Sequence[int]) -> int:
    """The largest transient of an order, and never less than the floor."""
    return max([problem.floor_bytes, *profile(problem, steps)])


_OPERATOR_BYTES = 6_000
"""Measured: what `order` and `inspect` hold at their most, an operator, beside what does not grow with the network."""


def _check_size(graph: Graph) -> None:
    """Before any of it is taken."""
    needed, there = _OPERATOR_BYTES * len(graph.ops), machine_bytes()
    if needed > there:
        raise LimitReached(
            f"{graph.name}: planning {len(graph.ops):,} operators takes about {format_bytes(needed)} bytes, and this "
            f"machine has {format_bytes(there)}; divide the network"
        )


def order_problem(graph: Graph, memory: str | MemoryModel = "live") -> OrderProblem:
    """The ordering problem of a graph under a memory model. O(operators · inputs + storages) time and memory.
    Raises LimitReached where they do not fit into this machine's memory."""
    _check_size(graph)
    model = memory_model(memory)
    storage_map = map_storages(graph, model)
    number: dict[int, int] = {}
    storages: list[Storage] = []
    floor = 0
    for index, nbytes in enumerate(storage_map.nbytes):
        producers, consumers = tuple(storage_map.producers[index]), tuple(storage_map.consumers[index])
        kept = storage_map.kept[index]
        floor += 0 if producers else nbytes
        if nbytes == 0 or not (producers or consumers or kept):
            continue  # an input that nobody reads weighs only before the start: that is the floor
        number[index] = len(storages)
        storages.append(Storage(nbytes, producers, consumers or producers, kept))
    candidates: list[tuple[int, ...]] = []
    taken: list[tuple[int, ...]] = []
    for step, op in enumerate(graph.ops):
        over = lagged(graph, model, storage_map, step)
        reusable = [(index, storage_map.nbytes[index]) for index in takeover(graph, model, storage_map, op)]
        reusable += [] if over is None else [(over.read, over.nbytes)]
        candidates.append(tuple(number[index] for index, _ in reusable if index in number))
        taken.append(tuple(nbytes for index, nbytes in reusable if index in number))
    listed = (tuple(candidates), tuple(taken)) if any(candidates) else ((), ())
    return OrderProblem(graph.predecessors(), tuple(storages), listed[0], floor, listed[1])


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The arena problem that an order implies. `record_of[t]` is the index in `records` of the one that holds tensor t,
    or -1 (not counted, zero bytes, or spread over several records by a zero-copy concatenation); the tensor begins at
    byte `begin_of[t]` of it. `overlaps`: records that may overlap while one operator reads the one and writes the
    other."""

    records: tuple[Record, ...]
    record_of: tuple[int, ...]
    begin_of: tuple[int, ...]
    overlaps: tuple[Overlap, ...] = ()

    def tensor_offsets(self, offsets: Sequence[int]) -> dict[int, int]:
        """The offset of each tensor that lies in one record, from those of the records."""
        return {
            tensor: offsets[record] + self.begin_of[tensor]
            for tensor, record in enumerate(self.record_of)
            if record >= 0
        }

    __repr__ = abridged


def lifetimes(graph: Graph, steps: Sequence[int], memory: str | MemoryModel = "live") -> Lifetimes:
    """Records of every storage under an order, in order of production; storages taken over in place are one record.

    The largest breadth of the records, less what overlaps, equals the peak of the order. Where some graph input is read
    by nobody, the inputs start at step -1, when they are filled in; it needs room then and never again.
    """
    model = memory_model(memory)
    storage_map = map_storages(graph, model)
    step_of = {operator: step for step, operator in enumerate(steps)}
    steps_of = [
        (sorted(step_of[v] for v in produced), sorted(step_of[v] for v in consumed))
        for produced, consumed in zip(storage_map.producers, storage_map.consumers, strict=True)
    ]
    idle = any(
        not storage_map.producers[i]
        and not storage_map.consumers[i]
        and not storage_map.kept[i]
        and storage_map.nbytes[i]
        for i in range(len(steps_of))
    )
    begin = -1 if idle else 0
    start, stop = [0] * len(steps_of), [0] * len(steps_of)
    for index, (produced, consumed) in enumerate(steps_of):
        start[index] = produced[0] if produced else begin
        last = consumed[-1] if consumed else (produced[-1] if produced else begin)
        stop[index] = max(len(steps), start[index] + 1) if storage_map.kept[index] else last + 1
    owner = list(range(len(steps_of)))
    for operator in steps:
        op = graph.ops[operator]
        for candidate in takeover(graph, model, storage_map, op):
            if storage_map.nbytes[candidate] and stop[candidate] == step_of[operator] + 1:
                (result,) = storage_map.storages_of[op.outputs[0]]
                owner[result] = owner[candidate]
                stop[owner[result]] = stop[result]
                break
    names: dict[int, str] = {}
    # a tensor spread over several storages lends its name to none: the names of records are all different
    for tensor, held in enumerate(storage_map.storages_of):
        for storage in held if len(held) == 1 else ():
            names.setdefault(owner[storage], graph.tensors[tensor].name)
    chosen = sorted(
        (start[index], index) for index in set(owner) if owner[index] == index and storage_map.nbytes[index] > 0
    )
    place = {index: position for position, (_, index) in enumerate(chosen)}
    records = tuple(
        Record(
            names.get(index, f"storage {index}"), start[index], stop[index], storage_map.nbytes[index], model.alignment
        )
        for _, index in chosen
    )
    record_of = tuple(place.get(owner[held[0]], -1) if len(held) == 1 else -1 for held in storage_map.storages_of)
    overlaps = []
    for operator in steps:
        over = lagged(graph, model, storage_map, operator)
        if over is not None and owner[over.written] == over.written and stop[owner[over.read]] == step_of[operator] + 1:
            overlaps.append(Overlap(place[owner[over.read]], place[over.written], over.lag))
    return Lifetimes(records, record_of, tuple(storage_map.begin_of), tuple(overlaps))
