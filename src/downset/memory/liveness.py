"""The only definition of live bytes and peak: a graph and a memory model give storages; all else follows from these.

A *storage* is bytes of memory with one lifetime; tensors that share bytes (views, zero-copy concatenations,
accumulated partial sums) share storages. For a downset D (the operators executed so far)

    live(D) = Σ nbytes over storages allocated in D and not yet freed in D,

A storage is allocated when the first of its producers has run (one without producers: from the start). It is freed when
all of its consumers have run; a kept one is never freed. Executing v after D needs

    transient(v, D) = live(D) + bytes v allocates − bytes it takes over in place,

and the peak of an order is its largest transient. live is a function of the downset alone and is submodular (docs/tour
proves it); every search here relies on that. Bytes taken over lower a transient only, never live bytes. They are a
whole storage, where an operator works in place at equal aligned size, or some bytes of an input that the result
overlaps while the operator runs and that is freed after it (`storages.lagged`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from downset.errors import LimitReached, UsageError
from downset.graph.core import Graph
from downset.memory.litert_sequence import litert_ranks
from downset.memory.models import MemoryModel, memory_model
from downset.memory.records import Overlap, Record
from downset.memory.storages import exact_bytes, lagged, map_storages, takeover
from downset.process.limits import machine_bytes
from downset.text import abridged, format_bytes, of_pytorch

__all__ = [
    "Lifetimes",
    "OrderProblem",
    "Storage",
    "added_bytes",
    "check_graph",
    "lifetimes",
    "live_bytes",
    "order_problem",
    "peak_bytes",
    "profile",
    "transient_bytes",
]


@dataclass(frozen=True, slots=True)
class Storage:
    """A memory block of `nbytes` (already aligned). It is allocated when the first of the `producers` runs (none:
    before the start) and freed when all `consumers` have run, unless it is `kept` to the end. Both list operators,
    ascending, each once. Only a kept storage has no `consumers`: its producers consume a result that no operator
    reads."""

    nbytes: int
    producers: tuple[int, ...]
    consumers: tuple[int, ...]
    kept: bool = False


@dataclass(frozen=True, slots=True)
class OrderProblem:
    """The input of an order planner.

    `predecessors[v]` lists the operators that v directly waits for, ascending. `in_place[v]` lists the storages whose
    bytes v's output may take over once v is their only consumer left: the largest of these. `in_place_bytes[v]` states
    how many bytes of each, no more than v allocates (empty: all). `floor_bytes`: bytes that every order needs before
    its first operator (all graph inputs together)."""

    predecessors: tuple[tuple[int, ...], ...]
    storages: tuple[Storage, ...]
    in_place: tuple[tuple[int, ...], ...] = ()
    floor_bytes: int = 0
    in_place_bytes: tuple[tuple[int, ...], ...] = ()

    def __repr__(self) -> str:
        return f"<OrderProblem: {len(self.predecessors)} operators, {len(self.storages)} storages>"

    def candidates(self, operator: int) -> tuple[tuple[int, int], ...]:
        """(storage, bytes that the operator may take over) for each storage that it may reuse. It takes over the most
        bytes that it can: one that takes fewer where more operators have run would make `transient_bytes` depend on
        the order in a way that no search allows for."""
        listed = self.in_place[operator] if self.in_place else ()
        if self.in_place_bytes:
            return tuple(zip(listed, self.in_place_bytes[operator], strict=True))
        return tuple((index, self.storages[index].nbytes) for index in listed)


def live_bytes(problem: OrderProblem, downset: int) -> int:
    """Bytes live when exactly the operators of `downset` (a mask) have run. O(storages)."""
    total = 0
    for storage in problem.storages:
        allocated = not storage.producers or _ran(storage.producers, downset)
        freed = not storage.kept and len(_ran(storage.consumers, downset)) == len(storage.consumers)
        if allocated and not freed:
            total += storage.nbytes
    return total


def transient_bytes(problem: OrderProblem, downset: int, operator: int) -> int:
    """Bytes live while `operator` runs, when exactly the operators of `downset` (a mask) have run. O(storages)."""
    return live_bytes(problem, downset) + added_bytes(problem, downset, operator)


def added_bytes(problem: OrderProblem, downset: int, operator: int) -> int:
    """Bytes that `operator` adds to the live bytes while it runs: what it allocates less what it takes over."""
    total = 0
    for storage in problem.storages:
        if operator in storage.producers and not _ran(storage.producers, downset):
            total += storage.nbytes
    reusable = (
        nbytes
        for candidate, nbytes in problem.candidates(operator)
        if [v for v in problem.storages[candidate].consumers if not downset >> v & 1] == [operator]
    )
    return total - max(reusable, default=0)


def _ran(operators: Sequence[int], downset: int) -> list[int]:
    return [operator for operator in operators if downset >> operator & 1]


def profile(problem: OrderProblem, steps: Sequence[int]) -> list[int]:
    """By step of the order `steps`: the transient in bytes. O(steps + storages touched)."""
    storages = problem.storages
    produced: list[list[int]] = [[] for _ in problem.predecessors]
    consumed: list[list[int]] = [[] for _ in problem.predecessors]
    for index, storage in enumerate(storages):
        for operator in storage.producers:
            produced[operator].append(index)
        for operator in storage.consumers:
            consumed[operator].append(index)
    nbytes = [storage.nbytes for storage in storages]
    freed = [0 if storage.kept else storage.nbytes for storage in storages]
    allocated = [not storage.producers for storage in storages]
    waiting = [len(storage.consumers) for storage in storages]
    live = sum(storage.nbytes for storage in storages if not storage.producers)
    transients = []
    for operator in steps:
        for index in produced[operator]:
            if not allocated[index]:
                allocated[index] = True
                live += nbytes[index]
        reused = 0
        for index, over in problem.candidates(operator):
            if waiting[index] == 1 and over > reused and operator in storages[index].consumers:
                reused = over
        transients.append(live - reused)
        for index in consumed[operator]:
            waiting[index] -= 1
            if not waiting[index]:
                live -= freed[index]
    return transients


def peak_bytes(problem: OrderProblem, steps: Sequence[int]) -> int:
    """The peak of the order `steps`: its largest transient, or `floor_bytes` if that is larger."""
    return max([problem.floor_bytes, *profile(problem, steps)])


_OPERATOR_BYTES = 6_000
"""Measured: the most bytes for each operator that `order` and `inspect` hold, in addition to what does not grow with
the network."""


def check_graph(graph: object) -> None:
    """Raise UsageError for anything but a graph."""
    if not isinstance(graph, Graph):
        given = type(graph).__name__ + of_pytorch(graph)
        raise UsageError(f"give a Graph, such as ds.load(path) returns, not a {given}")


def _check_size(graph: Graph) -> None:
    """Raise LimitReached where planning would take more memory than the machine has, before any is taken."""
    check_graph(graph)
    needed, there = _OPERATOR_BYTES * len(graph.ops), machine_bytes()
    if needed > there:
        raise LimitReached(
            f"{graph.name}: planning {len(graph.ops):,} operators takes about {format_bytes(needed)} bytes, and this "
            f"machine has {format_bytes(there)}; divide the network"
        )


def order_problem(graph: Graph, memory: str | MemoryModel = "live") -> OrderProblem:
    """The ordering problem of a graph under a memory model. O(operators · inputs + storages) time and memory. Raises
    LimitReached where planning does not fit into this machine's memory, UsageError for an unknown memory model."""
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
            continue  # an input that no operator reads counts only before the start, in the floor
        number[index] = len(storages)
        storages.append(Storage(nbytes, producers, consumers or producers, kept))
    candidates: list[tuple[int, ...]] = []
    taken: list[tuple[int, ...]] = []
    for step, op in enumerate(graph.ops):
        over = lagged(graph, model, storage_map, step)
        reusable = [(index, storage_map.nbytes[index]) for index in sorted(takeover(graph, model, storage_map, op))]
        reusable += [] if over is None else [(over.read, over.nbytes)]
        candidates.append(tuple(number[index] for index, _ in reusable if index in number))
        taken.append(tuple(nbytes for index, nbytes in reusable if index in number))
    listed = (tuple(candidates), tuple(taken)) if any(candidates) else ((), ())
    return OrderProblem(graph.predecessors(), tuple(storages), listed[0], floor, listed[1])


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The arena problem that an order implies. Record `record_of[t]` of `records` holds tensor t, from its byte
    `begin_of[t]` on. It is -1 for a tensor that is not counted, has no bytes, or lies in several records (a zero-copy
    concatenation). `overlaps`: pairs of records that may overlap while one operator reads one and writes the other."""

    records: tuple[Record, ...]
    record_of: tuple[int, ...]
    begin_of: tuple[int, ...]
    overlaps: tuple[Overlap, ...] = ()

    def first_tensors(self) -> list[int]:
        """The first tensor in each record; numbers beyond all tensors for records of scratch."""
        first = {record: tensor for tensor, record in reversed([*enumerate(self.record_of)])}
        return [first.get(record, len(self.record_of) + record) for record in range(len(self.records))]

    def tensor_offsets(self, offsets: Sequence[int]) -> dict[int, int]:
        """The offset of each tensor that lies in one record, from the offsets of the records."""
        return {
            tensor: offsets[record] + self.begin_of[tensor]
            for tensor, record in enumerate(self.record_of)
            if record >= 0
        }

    __repr__ = abridged


def lifetimes(graph: Graph, steps: Sequence[int], memory: str | MemoryModel = "live") -> Lifetimes:
    """The records of all storages under the order `steps`, by their first step. A storage and those that take it over
    in place are one record.

    The largest breadth of the records, less the bytes that overlap, equals the peak of the order. Where no operator
    reads some graph input, all inputs start at step -1, when they are filled in: that input needs room only then.
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
    # a tensor in several storages gives its name to none of them, so that the names of records differ
    for tensor, storages in enumerate(storage_map.storages_of):
        for storage in storages if len(storages) == 1 else ():
            names.setdefault(owner[storage], graph.tensors[tensor].name)
    counted = [index for index in set(owner) if owner[index] == index and storage_map.nbytes[index] > 0]
    tied = len({(start[index], storage_map.nbytes[index]) for index in counted}) < len(counted)
    rank = litert_ranks(graph, steps, storage_map) if model.rounds_offsets and tied else {}
    chosen = sorted(counted, key=lambda index: (start[index], rank.get(index, index), index))
    place = {index: position for position, index in enumerate(chosen)}
    for index in storage_map.scratch:
        names[index] = f"scratch {index} of {graph.ops[storage_map.producers[index][0]].name}"
    records = tuple(
        Record(
            names.get(index, f"storage {index}"),
            start[index],
            stop[index],
            storage_map.nbytes[index],
            model.alignment,
            exact_bytes=exact_bytes(graph, model, storage_map, index) if model.rounds_offsets else None,
        )
        for index in chosen
    )
    record_of = tuple(place.get(owner[own[0]], -1) if len(own) == 1 else -1 for own in storage_map.storages_of)
    overlaps = []
    for operator in steps:
        over = lagged(graph, model, storage_map, operator)
        if over is not None and owner[over.written] == over.written and stop[owner[over.read]] == step_of[operator] + 1:
            overlaps.append(Overlap(place[owner[over.read]], place[over.written], over.lag))
    return Lifetimes(records, record_of, tuple(storage_map.begin_of), tuple(overlaps))
