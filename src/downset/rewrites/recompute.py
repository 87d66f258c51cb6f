"""Recomputation by the true peak: which operators run a second time so that what they made need not be kept.

Source: ours; activation checkpointing chooses what to save by the sum of its bytes, which is not what a step peaks at.
Names: a *split* divides the network's best order in two; operators before it that are *recomputed* run again for the
    readers after it. Every choice is priced by the peak of the best order of the graph that it makes.
Complexity: a search for the best order (orders/optimal.py) a choice. All choices are tried where they are at most
    `choices`; else the greedy descent below, with as many.
Deviations: one split a plan, and each operator at most twice. The choices tried do not depend on the limit, and the
    effort is counted and not timed: so a larger limit never costs more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from downset.errors import InfeasibleError, LimitReached, UsageError
from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.graph.kinds import kind_of
from downset.memory.liveness import order_problem, profile
from downset.memory.models import MemoryModel, MemoryName, memory_model
from downset.orders.plan import plan_order
from downset.plans import Evidence, Order
from downset.text import format_bytes

__all__ = ["Recomputation", "plan_recompute"]

_STATES = 2_000
"""States of a search for an order: enough for most, and the same for every choice."""
_BREADTH = 6
"""Operators tried at every step of the descent."""


@dataclass(frozen=True, slots=True)
class Recomputation:
    """`graph`: the network in which `recomputed` (names of its operators) run a second time, under names of their own;
    `order`: its best order. `cost`: what runs twice; its `evidence` says whether no other choice of one split of the
    network's own best order costs less within the limit. `front`: (cost, peak bytes) of the choices that no other
    beats, the cheapest first."""

    graph: Graph
    order: Order
    recomputed: tuple[str, ...]
    cost: float
    evidence: Evidence
    front: tuple[tuple[float, int], ...]

    def __repr__(self) -> str:
        return f"<Recomputation of {len(self.recomputed)} operators: {self.order!r}, cost {self.cost:g}>"


@dataclass(frozen=True, slots=True)
class _Choice:
    cost: float
    again: tuple[int, ...]
    split: int
    graph: Graph
    order: Order

    def rank(self) -> tuple[float, int, int, tuple[int, ...]]:
        return self.cost, self.order.peak_bytes, self.split, self.again


def plan_recompute(
    graph: Graph,
    limit_bytes: int,
    *,
    memory: MemoryName | MemoryModel = "live",
    costs: Sequence[float] | None = None,
    choices: int = 300,
) -> Recomputation:
    """The least recomputation with which the network peaks at no more than `limit_bytes`.

    `costs`: of each operator once more, in seconds or any unit; without them the bytes that it reads and writes, which
    is what most operators worth recomputing take their time for. `choices`: how many sets are tried. Operators with
    side effects or random numbers run once. Raises InfeasibleError where no recomputation at all meets the limit
    (proven: one operator's own tensors exceed it), LimitReached where none was found that does, UsageError for costs
    that do not fit the network.
    """
    price = _prices(graph, costs)
    if choices < 1:
        raise UsageError(f"choices is {choices}; try at least 1")
    first = _judged(graph, memory, price, (), 0, graph)
    least = _least_needed(graph, memory)
    if limit_bytes < least:
        raise InfeasibleError(
            f"{graph.name}: one operator needs {format_bytes(least)} B however much is recomputed; give at least that"
        )
    steps = first.order.steps
    possible = _all_choices(graph, steps, choices)
    if possible is None:
        tried, whole = _descent(graph, memory, price, first, choices), False
    else:
        tried = [first, *(_judged(graph, memory, price, again, split, graph, steps) for split, again in possible)]
        whole = all(choice.order.evidence.proven for choice in tried)
    fitting = [choice for choice in tried if choice.order.peak_bytes <= limit_bytes]
    if not fitting:
        lowest = min(choice.order.peak_bytes for choice in tried)
        of, do = ("all", "give a larger limit") if whole else ("the", "give a larger limit or try more choices")
        raise LimitReached(
            f"{graph.name}: the least peak of {of} {len(tried)} choices is {format_bytes(lowest)} B, above "
            f"{format_bytes(limit_bytes)}; {do}"
        )
    best = min(fitting, key=_Choice.rank)
    proven = whole or best.cost == 0
    evidence = Evidence("recompute", best.cost, best.cost if proven else 0.0, proven, len(tried))
    names = tuple(graph.ops[index].name for index in best.again)
    return Recomputation(best.graph, best.order, names, best.cost, evidence, _front(tried))


def _prices(graph: Graph, costs: Sequence[float] | None) -> tuple[float, ...]:
    if costs is None:
        touched = ([t for t in (*op.inputs, *op.outputs) if t != ABSENT] for op in graph.ops)
        return tuple(float(sum(graph.tensors[t].nbytes for t in of_op)) for of_op in touched)
    if len(costs) != len(graph.ops) or any(not 0 <= cost < float("inf") for cost in costs):
        raise UsageError(f"costs are {len(costs)} numbers; give one from 0 for each of the {len(graph.ops)} operators")
    return tuple(float(cost) for cost in costs)


def _least_needed(graph: Graph, memory: MemoryName | MemoryModel) -> int:
    """Bytes below which no recomputation comes: what one operator reads and makes, less what it may take over."""
    problem, model = order_problem(graph, memory), memory_model(memory)
    in_place = bool(model.in_place or model.in_place_input)
    least = problem.floor_bytes
    for operator in range(len(graph.ops)):
        own = [s.nbytes for s in problem.storages if operator in s.producers or operator in s.consumers]
        read = [s.nbytes for s in problem.storages if operator in s.consumers]
        # A copy has fewer readers than the original had, so whatever is read might be taken over then.
        reused = max(read, default=0) if in_place else 0
        least = max(least, sum(own) - reused)
    return least


def _repeatable(graph: Graph) -> list[bool]:
    """Operators that may run twice: no side effect before or after them, no random numbers in them."""
    waited_for = {earlier for op in graph.ops for earlier in op.after}
    return [
        not op.after and index not in waited_for and kind_of(op.kind).draws == "never"
        for index, op in enumerate(graph.ops)
    ]


def _all_choices(graph: Graph, steps: Sequence[int], most: int) -> list[tuple[int, tuple[int, ...]]] | None:
    """(split, operators that run again) of every choice that changes something, or None where they are too many."""
    may = _repeatable(graph)
    found: list[tuple[int, tuple[int, ...]]] = []
    for split in range(1, len(steps)):
        early = [operator for operator in steps[:split] if may[operator]]
        if 2 ** len(early) > 64 * most:
            return None
        late = set(steps[split:])
        for count in range(1, len(early) + 1):
            for again in combinations(early, count):
                found += [(split, tuple(sorted(again)))] if _all_read(graph, again, late) else []
        if len(found) > most:
            return None
    return found


def _all_read(graph: Graph, again: Sequence[int], late: set[int]) -> bool:
    """Whether every operator that runs again has a reader for it: one after the split, or another that runs again."""
    reading = {tensor for index in (*again, *late) for tensor in graph.ops[index].inputs}
    return all(any(tensor in reading for tensor in graph.ops[index].outputs) for index in again)


def _descent(
    graph: Graph, memory: MemoryName | MemoryModel, price: Sequence[float], first: _Choice, most: int
) -> list[_Choice]:
    """Step by step, what is held at the peak only for readers after it is recomputed: of those that hold the most bytes
    for their cost, the one that leaves the least peak."""
    steps = first.order.steps
    transients = profile(order_problem(graph, memory), steps)
    tried = [first]
    for split in _splits(transients):
        now = first
        while len(tried) < most:
            ahead = list(_candidates(graph, steps, split, now.again, price))[:_BREADTH]
            judged = [
                _judged(graph, memory, price, tuple(sorted((*now.again, index))), split, graph, steps)
                for index in ahead[: most - len(tried)]
            ]
            if not judged:
                break
            tried += judged
            now = min(judged, key=lambda choice: (choice.order.peak_bytes, *choice.rank()))
    return tried


def _splits(transients: Sequence[int]) -> list[int]:
    """Right after the peak first, then a few steps around it."""
    at = transients.index(max(transients))
    near = [at + 1, at, at - 1, at + 2]
    return [split for split in dict.fromkeys(near) if 0 < split < len(transients)]


def _candidates(
    graph: Graph, steps: Sequence[int], split: int, again: Sequence[int], price: Sequence[float]
) -> Iterator[int]:
    """Operators before the split that somebody would read again, the most bytes for their cost first."""
    may, late = _repeatable(graph), {*steps[split:], *again}
    read = {tensor for index in late for tensor in graph.ops[index].inputs}

    def gain(index: int) -> tuple[float, int]:
        held = sum(graph.tensors[tensor].nbytes for tensor in graph.ops[index].outputs if tensor in read)
        return -held / max(price[index], 1e-12), index

    early = [index for index in steps[:split] if may[index] and index not in again]
    yield from sorted((index for index in early if any(t in read for t in graph.ops[index].outputs)), key=gain)


def _judged(
    graph: Graph,
    memory: MemoryName | MemoryModel,
    price: Sequence[float],
    again: tuple[int, ...],
    split: int,
    given: Graph,
    steps: Sequence[int] = (),
) -> _Choice:
    made = _with_copies(graph, again, split, steps) if again else given
    order = plan_order(made, memory=memory, work_limit=_STATES, time_limit_s=math.inf)
    return _Choice(sum(price[index] for index in again), again, split, made, order)


def _with_copies(graph: Graph, again: Sequence[int], split: int, steps: Sequence[int]) -> Graph:
    """The graph in which these operators run once more for the readers after the split."""
    tensors: list[Tensor] = list(graph.tensors)
    taken = {op.name for op in graph.ops}
    copy_of: dict[int, int] = {}
    copies: list[Op] = []
    for index in sorted(again, key=list(steps).index):
        op = graph.ops[index]
        inputs = tuple(copy_of.get(tensor, tensor) for tensor in op.inputs)
        outputs = []
        for tensor in op.outputs:
            if tensor == ABSENT:
                outputs.append(ABSENT)
                continue
            copy_of[tensor] = len(tensors)
            outputs.append(len(tensors))
            held = graph.tensors[tensor]
            tensors.append(Tensor(f"{held.name} again", held.shape, held.dtype, held.nbytes))
        name = f"{op.name} again"
        while name in taken:
            name += "'"
        taken.add(name)
        copies.append(Op(name, op.kind, inputs, tuple(outputs), op.attrs))
    place = {operator: at for at, operator in enumerate([*steps[:split], *([None] * len(copies)), *steps[split:]])}

    def moved(op: Op, *, late: bool) -> Op:
        inputs = tuple(copy_of.get(tensor, tensor) for tensor in op.inputs) if late else op.inputs
        return Op(op.name, op.kind, inputs, op.outputs, op.attrs, tuple(sorted(place[before] for before in op.after)))

    early = [moved(graph.ops[operator], late=False) for operator in steps[:split]]
    late = [moved(graph.ops[operator], late=True) for operator in steps[split:]]
    ops = (*early, *copies, *late)
    return Graph(graph.name, tuple(tensors), ops, graph.inputs, graph.outputs, graph.constants).check()


def _front(tried: Sequence[_Choice]) -> tuple[tuple[float, int], ...]:
    found: list[tuple[float, int]] = []
    for choice in sorted(tried, key=_Choice.rank):
        if not found or choice.order.peak_bytes < found[-1][1]:
            found.append((choice.cost, choice.order.peak_bytes))
    return tuple(found)
