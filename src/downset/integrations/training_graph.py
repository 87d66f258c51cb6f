"""A training step as its compiler sees it: operators, the bytes that they make, and which operators run again in the
backward pass.

The peak of a choice is that of its best order of the graph that the compiler probably makes. Cheap operators are
computed inside each of their readers (`inlined_operators`). A result that only operators of one kernel of loops read is
part of that kernel and takes no memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from downset.budget import Budget
from downset.integrations.inlined_operators import Expression, Inlining, inlined
from downset.integrations.scheduler_order import live_at
from downset.memory.liveness import OrderProblem, Storage, profile
from downset.orders.optimal import optimal
from downset.orders.plan import plan_order
from downset.rewrites.recompute_search import REFUSED, StepGraph

__all__ = [
    "Priced",
    "TrainingGraph",
    "planned_steps",
    "priced",
    "problems",
    "with_host",
]

_STATES = 2_000
"""How many states the search for the order of one choice may visit: too few for the bounds from pairs of operators, on
which no choice depends."""


@dataclass(frozen=True, slots=True)
class TrainingGraph:
    """Lists by operator, in an order in which the operators can run."""

    reads: tuple[tuple[int, ...], ...]
    """The operators whose outputs it reads."""
    waits: tuple[tuple[int, ...], ...]
    """Further operators that run before it: those that read what it writes in place."""
    nbytes: tuple[int, ...]
    loops: tuple[int, ...]
    """The number of elements of its loops, or 0 if the compiler does not fuse it."""
    costs: tuple[float, ...]
    """Seconds of running it once more."""
    may: tuple[bool, ...]
    """Whether it may run twice."""
    kept: frozenset[int]
    """Operators whose outputs the graph returns."""
    late: frozenset[int]
    """Operators of the backward pass, and of the update if that is part of the graph."""
    apart: bool
    """Whether forward and backward are two graphs; the first then runs before the second."""
    expressions: tuple[Expression | None, ...] = ()
    """The expression that the compiler may compute inside every reader, by operator; None if it stores the result."""
    inlining: Inlining = field(default_factory=Inlining)
    donated: bool = False
    """Whether the backward pass may write over what the forward pass saved for it."""
    moved: frozenset[int] = frozenset()
    """Operators whose second run is a copy of the first one's result from the host, where it was put meanwhile."""
    workspaces: tuple[int, ...] = ()
    """Bytes that a library allocates while it runs the operator, in addition to its results; none if empty."""

    def step(self) -> StepGraph:
        return StepGraph(self.reads, self.nbytes, self.costs, self.may, self.moved)


@dataclass(frozen=True, slots=True)
class Priced:
    """A set of operators that run again: the additional seconds, the peak of the best order, and whether that is
    proven."""

    cost: float
    peak_bytes: int
    proven: bool
    at_peak: tuple[int, ...] = ()
    """The operators of the forward pass whose results, or those of their copies, live at the peak, largest first."""


@dataclass(frozen=True, slots=True)
class _Copied:
    """The operators with their copies, in an order in which they can run. `origin`: the operator of each. `loops`: the
    elements of its loops, 0 for what is copied to the host and back."""

    origin: tuple[int, ...]
    loops: tuple[int, ...]
    reads: tuple[frozenset[int], ...]
    waits: tuple[frozenset[int], ...]
    late: tuple[bool, ...]


def with_host(graph: TrainingGraph, link_bytes_s: float, movable: Collection[int]) -> TrainingGraph:
    """The graph in which these results, of the forward pass, move to the host and back over a link of so many bytes a
    second, where that takes less time than a second run, or where it may not run twice."""
    seconds = [2 * nbytes / link_bytes_s for nbytes in graph.nbytes]
    moved = frozenset(
        v
        for v, nbytes in enumerate(graph.nbytes)
        if nbytes
        and v in movable
        and v not in graph.late
        and v not in graph.kept
        and (not graph.may[v] or seconds[v] < graph.costs[v])
    )
    return replace(
        graph,
        moved=moved,
        may=tuple(may or v in moved for v, may in enumerate(graph.may)),
        costs=tuple(seconds[v] if v in moved else cost for v, cost in enumerate(graph.costs)),
    )


def priced(graph: TrainingGraph, again: Collection[int], *, most_s: float = math.inf) -> Priced:
    """The seconds that a set of operators adds by running again, and its peak in its best order. A set that adds more
    than `most_s` has no order, and the peak `REFUSED`."""
    copied = _copied(graph, again)
    runs = [0] * len(graph.reads)
    for operator in copied.origin:
        runs[operator] += 1
    cost = math.fsum(graph.costs[v] * (runs[v] - 1) for v in range(len(runs)) if runs[v])
    if cost > most_s:
        return Priced(cost, REFUSED, False, ())
    peak = bound = 0
    at_peak: tuple[int, ...] = ()
    for problem, owners in _problems(graph, copied):
        order = optimal(problem, clock=Budget(math.inf, _STATES).start())
        transients = profile(problem, order.solution)
        its_peak = max([problem.floor_bytes, *transients])
        bound = max(bound, order.bound)
        if its_peak > peak:
            peak = its_peak
            live = dict.fromkeys(owners[storage] for storage in live_at(problem, order.solution, transients)[1])
            at_peak = tuple(operator for operator in live if operator not in graph.late)
    return Priced(cost, peak, peak == bound, at_peak)


def planned_steps(graph: TrainingGraph, again: Collection[int]) -> list[tuple[int, bool]]:
    """The operators that run as kernels, or end one, in the best order of a step in one graph; each with whether it is
    the copy of an operator that runs again."""
    copied = _copied(graph, again)
    copied = _without_inlined(graph, copied) if graph.expressions else copied
    kernel = _kernels(graph, copied)
    problem, _ = _problem(graph, copied, kernel, range(len(kernel)))
    inside: dict[int, list[int]] = {}
    for v, last in enumerate(kernel):
        inside.setdefault(last, []).append(v)
    order = plan_order(problem, work_limit=_STATES, time_limit_s=math.inf)
    ends = sorted(inside)
    operators = (v for step in order.steps for v in inside[ends[step]])
    return [(copied.origin[v], copied.late[v] and copied.origin[v] not in graph.late) for v in operators]


def problems(graph: TrainingGraph, again: Collection[int]) -> list[OrderProblem]:
    """The problem of the whole graph once these operators run again; two problems if forward and backward are two
    graphs."""
    return [problem for problem, _ in _problems(graph, _copied(graph, again))]


def _copied(graph: TrainingGraph, again: Collection[int]) -> _Copied:
    count = len(graph.reads)
    copy_of = {operator: count + position for position, operator in enumerate(sorted(again))}
    ids = _in_order(graph, copy_of)
    origin = {v: v for v in range(count)} | {copy: operator for operator, copy in copy_of.items()}
    late = {v: v in graph.late or v >= count for v in ids}

    def sources(v: int) -> set[int]:
        read = graph.reads[origin[v]] if v < count or origin[v] not in graph.moved else ()
        return {copy_of.get(source, source) for source in read} if late[v] else set(read)

    reads = {v: sources(v) for v in ids}
    unread = set(range(count)) - {source for of in graph.reads for source in of}
    alive: set[int] = set()
    for v in reversed(ids):
        if late[v] or v in graph.kept or v in unread or v in alive:
            alive.add(v)
            alive |= reads[v]
    behind = _last_early(graph, alive) if copy_of and not graph.apart else frozenset()
    order = [v for v in ids if v in alive]
    number = {v: position for position, v in enumerate(order)}

    def waits(v: int) -> frozenset[int]:
        if v >= count:
            return frozenset(number[earlier] for earlier in behind)
        readers = graph.waits[v]
        if not readers:
            return frozenset()
        copies = [*readers, *(copy_of[reader] for reader in readers if reader in copy_of and late[v])]
        return frozenset(number[reader] for reader in copies if reader in number)

    moved = graph.moved & copy_of.keys()
    return _Copied(
        tuple(origin[v] for v in order),
        tuple(0 if origin[v] in moved else graph.loops[origin[v]] for v in order),
        tuple(frozenset(number[source] for source in reads[v]) for v in order),
        tuple(waits(v) for v in order),
        tuple(late[v] for v in order),
    )


def _in_order(graph: TrainingGraph, copy_of: Mapping[int, int]) -> list[int]:
    """Operators and copies, each copy just before the first operator that reads it, or that writes over what it reads:
    the order that is tried first."""
    order = [v for v in range(len(graph.reads)) if v not in graph.late]
    placed: set[int] = set()
    for v in sorted(graph.late):
        ahead, copied = [v], set[int]()
        while ahead:
            reader = ahead.pop()
            for of in (*graph.reads[reader], *graph.waits[reader]):
                if of in copy_of and of not in placed and of not in copied:
                    copied.add(of)
                    ahead.append(of)
        order += [*(copy_of[operator] for operator in sorted(copied)), v]
        placed |= copied
    return order


def _last_early(graph: TrainingGraph, alive: Collection[int]) -> frozenset[int]:
    """The early operator that has the most others before it. Copies run after it, as the loss does in a step."""
    before: dict[int, int] = {}  # masks
    for v in range(len(graph.reads)):
        if v not in graph.late and v in alive:
            before[v] = 1 << v
            for source in graph.reads[v]:
                before[v] |= before[source]
    return frozenset([max(before, key=lambda v: (before[v].bit_count(), -v))]) if before else frozenset()


def _problems(graph: TrainingGraph, copied: _Copied) -> list[tuple[OrderProblem, list[int]]]:
    """Each problem, with the operator that makes each of its storages."""
    copied = _without_inlined(graph, copied) if graph.expressions else copied
    kernel = _kernels(graph, copied)
    if not graph.apart:
        return [_problem(graph, copied, kernel, range(len(kernel)))]
    return [
        _problem(graph, copied, kernel, [v for v, late in enumerate(copied.late) if late is side])
        for side in (False, True)
    ]


def _without_inlined(graph: TrainingGraph, copied: _Copied) -> _Copied:
    """The operators whose results the compiler stores. They also read what the operators computed inside them read."""
    stored = {v for v, operator in enumerate(copied.origin) if operator in graph.kept}
    for v, (reads, waits) in enumerate(zip(copied.reads, copied.waits, strict=True)):
        stored |= waits
        if not copied.loops[v]:
            stored |= reads
        elif graph.apart:
            stored |= {s for s in reads if copied.late[s] != copied.late[v]}
    stored -= {v for v, operator in enumerate(copied.origin) if not graph.nbytes[operator] and not copied.reads[v]}
    expressions = [graph.expressions[v] if copied.loops[i] else None for i, v in enumerate(copied.origin)]
    gone = inlined(copied.reads, expressions, stored, graph.inlining)
    waits_of: dict[int, frozenset[int]] = {}
    stays = [v for v in range(len(copied.origin)) if v not in gone]
    number = {v: position for position, v in enumerate(stays)}
    reads_of = []
    for v, sources in enumerate(copied.reads):
        inside = gone.keys() & sources
        waits_of[v] = copied.waits[v].union(*(waits_of[source] for source in inside))
        reads_of.append(sources.difference(inside).union(*(gone[source] for source in inside)))
    return _Copied(
        tuple(copied.origin[v] for v in stays),
        tuple(copied.loops[v] for v in stays),
        tuple(frozenset(number[source] for source in reads_of[v]) for v in stays),
        tuple(frozenset(number[earlier] for earlier in waits_of[v] if earlier in number) for v in stays),
        tuple(copied.late[v] for v in stays),
    )


def _kernels(graph: TrainingGraph, copied: _Copied) -> list[int]:
    """The last operator of the kernel of each operator. A kernel includes an operator only if nothing else reads it,
    so no cycles arise."""
    readers: list[set[int]] = [set() for _ in copied.origin]
    waiters: list[set[int]] = [set() for _ in copied.origin]
    for v, (reads, waits) in enumerate(zip(copied.reads, copied.waits, strict=True)):
        for source in reads:
            readers[source].add(v)
        for source in waits:
            waiters[source].add(v)
    kernel = list(range(len(copied.origin)))
    for v in reversed(kernel[:]):
        loops = copied.loops[v]
        into = {kernel[reader] for reader in readers[v]}
        if not loops or len(into) != 1 or copied.origin[v] in graph.kept:
            continue
        (last,) = into
        same = loops == copied.loops[last] and not (graph.apart and copied.late[v] != copied.late[last])
        if same and all(kernel[waiter] == last for waiter in waiters[v]):
            kernel[v] = last
    return kernel


def _problem(
    graph: TrainingGraph, copied: _Copied, kernel: Sequence[int], operators: Collection[int]
) -> tuple[OrderProblem, list[int]]:
    """The problem of some of the operators, and the operator that makes each storage. What they read of others lives
    from the start; what others read of them lives to the end."""
    inside = set(operators)
    lasts = sorted({kernel[v] for v in inside})
    number = {last: position for position, last in enumerate(lasts)}
    before: list[set[int]] = [set() for _ in lasts]
    readers: dict[int, set[int]] = {}
    copies = {v for v, origin in enumerate(copied.origin) if copied.late[v] and origin not in graph.late}
    kept = {v for v, origin in enumerate(copied.origin) if origin in graph.kept and v not in copies}
    inner: set[int] = set()
    for v in range(len(kernel)):
        for source in copied.reads[v]:
            if v not in inside and source in inside:
                kept.add(source)
            if v in inside and kernel[source] != kernel[v]:
                readers.setdefault(source, set()).add(number[kernel[v]])
            elif v in inside:
                inner.add(source)
        if v in inside:
            here = (copied.reads[v] | copied.waits[v]) & inside
            before[number[kernel[v]]] |= {number[kernel[source]] for source in here} - {number[kernel[v]]}
    storages: list[Storage] = []
    owners: list[int] = []
    for v in range(len(kernel)):
        nbytes = graph.nbytes[copied.origin[v]]
        own = (number[kernel[v]],) if v in inside else ()
        read = tuple(sorted(readers.get(v, ())))
        if nbytes and (read or (own and (v in kept or v not in inner))):
            returned = not own and copied.origin[v] in graph.kept
            storages.append(Storage(nbytes, own, read or own, kept=v in kept or returned))
            owners.append(copied.origin[v])
        inner_bytes = graph.workspaces[copied.origin[v]] if graph.workspaces and own else 0
        if inner_bytes and not (v in copies and copied.origin[v] in graph.moved):
            storages.append(Storage(inner_bytes, own, own))
            owners.append(copied.origin[v])
    problem = OrderProblem(
        tuple(tuple(sorted(of)) for of in before), tuple(storages), _in_place(graph, copied, lasts, storages)
    )
    return problem, owners


def _in_place(
    graph: TrainingGraph, copied: _Copied, lasts: Sequence[int], storages: Sequence[Storage]
) -> tuple[tuple[int, ...], ...]:
    """The storages that each kernel reads last and may write over, element by element."""
    sizes_of: list[set[int]] = [set() for _ in lasts]
    for storage in storages:
        for producer in storage.producers:
            sizes_of[producer].add(storage.nbytes)
    sources: list[list[int]] = [[] for _ in lasts]
    for index, storage in enumerate(storages):
        for reader in storage.consumers if not storage.kept and (storage.producers or graph.donated) else ():
            if (
                copied.loops[lasts[reader]]
                and storage.nbytes in sizes_of[reader] - {0}
                and reader not in storage.producers
            ):
                sources[reader].append(index)
    return tuple(tuple(of) for of in sources) if any(sources) else ()
