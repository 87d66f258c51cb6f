"""THE definition of live bytes and peak: a graph and a memory model give storages, storages give everything else.

A *storage* is a block of memory with one lifetime; tensors that share bytes (views, zero-copy concatenations,
accumulated partial sums) share storages. For a downset D (the operators executed so far)

    live(D) = Σ nbytes over storages allocated in D and not yet freed in D,

allocated when the first of its producers ran (or from the start), freed when all of its consumers ran (or never, when
kept). Executing v at D needs

    transient(v, D) = live(D) + bytes v allocates − bytes it takes over in place,

and the peak of an order is its largest transient. live is a function of the downset alone, and submodular
(docs: the proof); every search here rests on that. In-place is therefore allowed only at equal aligned size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from downset.errors import LimitReached
from downset.graph.core import Graph
from downset.isolation import machine_bytes
from downset.lattice import bits
from downset.memory.models import MemoryModel, memory_model
from downset.memory.records import Record
from downset.memory.storages import share, takeover
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
    """A block of `nbytes` (already aligned): allocated when the first of the `producers` (a mask; 0: before the start)
    runs, freed when all `consumers` (a mask) ran, unless `kept` to the end. `consumers` is never 0 unless `kept`: who
    is read by nobody is consumed by its producers."""

    nbytes: int
    producers: int
    consumers: int
    kept: bool = False


@dataclass(frozen=True, slots=True)
class OrderProblem:
    """All that an order planner sees. `predecessors[v]` is a mask; `in_place[v]` lists the storages whose bytes v's
    output may take over, each of the same size as what v allocates, if by then only v has still to read them.

    `floor_bytes`: what any order needs even before its first operator (all graph inputs at once)."""

    predecessors: tuple[int, ...]
    storages: tuple[Storage, ...]
    in_place: tuple[tuple[int, ...], ...] = ()
    floor_bytes: int = 0

    def __repr__(self) -> str:
        return f"<OrderProblem: {len(self.predecessors)} operators, {len(self.storages)} storages>"

    def candidates(self, operator: int) -> tuple[int, ...]:
        return self.in_place[operator] if self.in_place else ()


def live_bytes(problem: OrderProblem, downset: int) -> int:
    """Bytes live once exactly the operators of `downset` ran. O(storages)."""
    total = 0
    for storage in problem.storages:
        allocated = storage.producers == 0 or storage.producers & downset
        freed = not storage.kept and storage.consumers & ~downset == 0
        if allocated and not freed:
            total += storage.nbytes
    return total


def transient_bytes(problem: OrderProblem, downset: int, operator: int) -> int:
    """Bytes live while `operator` runs right after exactly those of `downset`. O(storages)."""
    bit = 1 << operator
    total = live_bytes(problem, downset)
    for storage in problem.storages:
        if storage.producers & bit and not storage.producers & downset:
            total += storage.nbytes
    for candidate in problem.candidates(operator):
        storage = problem.storages[candidate]
        if storage.consumers & ~downset == bit:
            return total - storage.nbytes
    return total


def profile(problem: OrderProblem, steps: Sequence[int]) -> list[int]:
    """By step: `transient_bytes` while that operator runs. Incremental: O(steps + storages touched)."""
    produced: list[list[Storage]] = [[] for _ in problem.predecessors]
    consumed: list[list[Storage]] = [[] for _ in problem.predecessors]
    for storage in problem.storages:
        for operator in bits(storage.producers):
            produced[operator].append(storage)
        for operator in bits(0 if storage.kept else storage.consumers):
            consumed[operator].append(storage)
    live = sum(storage.nbytes for storage in problem.storages if storage.producers == 0)
    downset, transients = 0, []
    for operator in steps:
        bit = 1 << operator
        live += sum(storage.nbytes for storage in produced[operator] if not storage.producers & downset)
        taken = (problem.storages[candidate] for candidate in problem.candidates(operator))
        reused = next((storage.nbytes for storage in taken if storage.consumers & ~downset == bit), 0)
        transients.append(live - reused)
        downset |= bit
        live -= sum(storage.nbytes for storage in consumed[operator] if not storage.consumers & ~downset)
    return transients


def peak_bytes(problem: OrderProblem, steps: Sequence[int]) -> int:
    """The largest transient of an order, and never less than the floor."""
    return max([problem.floor_bytes, *profile(problem, steps)])


def _check_size(graph: Graph) -> None:
    """Before any of it is taken: masks are as long as the number of operators, and there are a few for each."""
    count = len(graph.ops)
    needed, there = _MASK_BYTES * count * count, machine_bytes()
    if needed > there:
        raise LimitReached(
            f"{graph.name}: planning {count:,} operators takes about {format_bytes(needed)} bytes, and this machine "
            f"has {format_bytes(there)}; divide the network"
        )


_MASK_BYTES = 0.4
"""Measured: what `order` takes at its most, over the square of the number of operators."""


def order_problem(graph: Graph, memory: str | MemoryModel = "live") -> OrderProblem:
    """The ordering problem of a graph under a memory model. O(operators · inputs + storages) mask steps.
    Raises LimitReached where the masks do not fit into this machine's memory."""
    _check_size(graph)
    model = memory_model(memory)
    sharing = share(graph, model)
    number: dict[int, int] = {}
    storages: list[Storage] = []
    floor = 0
    for index, nbytes in enumerate(sharing.nbytes):
        producers, consumers, kept = sharing.producers[index], sharing.consumers[index], sharing.kept[index]
        floor += nbytes if producers == 0 else 0
        if nbytes == 0 or (producers == 0 and consumers == 0 and not kept):
            continue  # an input that nobody reads weighs only before the start: that is the floor
        number[index] = len(storages)
        storages.append(Storage(nbytes, producers, consumers or producers, kept))
    candidates = tuple(
        tuple(number[index] for index in takeover(graph, model, sharing, op) if index in number) for op in graph.ops
    )
    return OrderProblem(graph.predecessors(), tuple(storages), candidates if any(candidates) else (), floor)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The arena problem that an order implies. `record_of[t]` is the index in `records` of the one that holds tensor t,
    or -1 (not counted, zero bytes, or spread over several records by a zero-copy concatenation)."""

    records: tuple[Record, ...]
    record_of: tuple[int, ...]

    __repr__ = abridged


def lifetimes(graph: Graph, steps: Sequence[int], memory: str | MemoryModel = "live") -> Lifetimes:
    """Records of every storage under an order, in order of production; storages taken over in place are one record.

    The largest breadth of the records equals the peak of the order. Where some graph input is read by nobody, the
    inputs start at step -1, when they are filled in; it needs room then and never again.
    """
    model = memory_model(memory)
    sharing = share(graph, model)
    at = {operator: step for step, operator in enumerate(steps)}
    steps_of = [
        (sorted(at[v] for v in bits(produced)), sorted(at[v] for v in bits(consumed)))
        for produced, consumed in zip(sharing.producers, sharing.consumers, strict=True)
    ]
    idle = any(
        sharing.producers[i] == 0 and not sharing.consumers[i] and not sharing.kept[i] and sharing.nbytes[i]
        for i in range(len(steps_of))
    )
    begin = -1 if idle else 0
    start, stop = [0] * len(steps_of), [0] * len(steps_of)
    for index, (produced, consumed) in enumerate(steps_of):
        start[index] = produced[0] if produced else begin
        last = consumed[-1] if consumed else (produced[-1] if produced else begin)
        stop[index] = max(len(steps), start[index] + 1) if sharing.kept[index] else last + 1
    owner = list(range(len(steps_of)))
    for operator in steps:
        op = graph.ops[operator]
        for candidate in takeover(graph, model, sharing, op):
            if sharing.nbytes[candidate] and stop[candidate] == at[operator] + 1:
                (made,) = sharing.storages_of[op.outputs[0]]
                owner[made] = owner[candidate]
                stop[owner[made]] = stop[made]
                break
    names: dict[int, str] = {}
    # a tensor spread over several storages lends its name to none: the names of records are all different
    for tensor, held in enumerate(sharing.storages_of):
        for storage in held if len(held) == 1 else ():
            names.setdefault(owner[storage], graph.tensors[tensor].name)
    chosen = sorted(
        (start[index], index) for index in set(owner) if owner[index] == index and sharing.nbytes[index] > 0
    )
    place = {index: position for position, (_, index) in enumerate(chosen)}
    records = tuple(
        Record(names.get(index, f"storage {index}"), start[index], stop[index], sharing.nbytes[index], model.alignment)
        for _, index in chosen
    )
    record_of = tuple(place.get(owner[held[0]], -1) if len(held) == 1 else -1 for held in sharing.storages_of)
    return Lifetimes(records, record_of)
