"""Recomputation: which operators run a second time, so that their results need not be kept.

Source: ours. Activation checkpointing chooses the tensors to keep by the sum of their bytes, which is not the peak of a
    step; here a choice is judged by the peak.
Names: a *split* divides the network's best order in two; operators before it that are *recomputed* run again for the
    readers after it. Every choice is priced by the peak of the best order of the graph that it makes.
Complexity: one search for the best order (orders/optimal.py) for each choice, at most `choices` (recompute_search.py).
Deviations: a plan has one split, and each operator runs at most twice. The choices tried do not depend on the limit,
and the effort is counted, not timed. So a larger limit never costs more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from downset.errors import InfeasibleError, LimitReached, UsageError
from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.graph.kinds import kind_of
from downset.memory.liveness import check_graph, order_problem, profile
from downset.memory.models import MemoryModel, MemoryName, memory_model
from downset.methods import check_choices
from downset.orders.plan import plan_order
from downset.results.fit import Recomputation
from downset.results.plans import Evidence, Order
from downset.rewrites.recompute_search import StepGraph, front, search
from downset.text import format_bytes

__all__ = ["plan_recompute"]

_STATES = 2_000
"""States of each search for an order: enough to finish most, and equal for all choices."""


@dataclass(frozen=True, slots=True)
class _Made:
    """The graph that a choice makes, and its best order."""

    cost: float
    graph: Graph
    order: Order
    at_peak: tuple[int, ...] = ()  # left to segments and descents: one search for an order takes long here

    @property
    def peak_bytes(self) -> int:
        return self.order.peak_bytes

    @property
    def proven(self) -> bool:
        return self.order.evidence.proven


def plan_recompute(
    graph: Graph,
    limit_bytes: int,
    *,
    memory: MemoryName | MemoryModel = "live",
    costs: Sequence[float] | None = None,
    choices: int = 300,
) -> Recomputation:
    """The cheapest recomputation found with which the network's peak is at most `limit_bytes`.

    `costs`: for each operator, the cost of running it once more, in seconds or another unit. By default it is the bytes
    that the operator reads and writes, which dominate the time of most operators worth recomputing. `choices`: how many
    sets are tried. Operators with side effects or random numbers run once. The result is proven where all sets were
    tried and all orders proven, or where nothing is recomputed. Raises InfeasibleError where the tensors of one
    operator exceed the limit, so that no recomputation can meet it; LimitReached where no set that was tried meets it;
    UsageError for costs that do not fit the network, a limit that is not a whole number, and `choices` below 1.
    """
    check_graph(graph)
    if not isinstance(limit_bytes, Integral) or isinstance(limit_bytes, bool):
        raise UsageError(f"limit_bytes is {limit_bytes!r}; give a whole number of bytes, such as 4_000_000")
    price = _prices(graph, costs)
    check_choices(choices)
    unchanged = _ordered(graph, memory)
    least = _least_needed(graph, memory)
    if limit_bytes < least:
        raise InfeasibleError(
            f"{graph.name}: one operator needs {format_bytes(least)} B however much is recomputed; give at least that"
        )
    steps = unchanged.steps

    def made(again: tuple[int, ...], late: frozenset[int]) -> _Made:
        if not again:
            return _Made(0.0, graph, unchanged)
        copied = _with_copies(graph, again, len(steps) - len(late), steps)
        return _Made(sum(price[index] for index in again), copied, _ordered(copied, memory))

    tried, every = search(_step(graph, price), _splits(graph, memory, steps), made, most=choices)
    whole = every and all(choice.judged.proven for choice in tried)
    fitting = [choice for choice in tried if choice.judged.peak_bytes <= limit_bytes]
    if not fitting:
        lowest = min(choice.judged.peak_bytes for choice in tried)
        of, do = ("all", "give a larger limit") if whole else ("the", "give a larger limit or try more choices")
        raise LimitReached(
            f"{graph.name}: the least peak of {of} {len(tried)} choices is {format_bytes(lowest)} B, above "
            f"{format_bytes(limit_bytes)}; {do}"
        )
    best = front(fitting)[0]
    proven = whole or best.judged.cost == 0
    evidence = Evidence("recompute", best.judged.cost, best.judged.cost if proven else 0.0, proven, len(tried))
    names = tuple(graph.ops[index].name for index in best.again)
    points = tuple((choice.judged.cost, choice.judged.peak_bytes) for choice in front(tried))
    return Recomputation(best.judged.graph, best.judged.order, names, best.judged.cost, evidence, points)


def _ordered(graph: Graph, memory: MemoryName | MemoryModel) -> Order:
    return plan_order(graph, memory=memory, work_limit=_STATES, time_limit_s=math.inf)


def _prices(graph: Graph, costs: Sequence[float] | None) -> tuple[float, ...]:
    if costs is None:
        touched = ([t for t in (*op.inputs, *op.outputs) if t != ABSENT] for op in graph.ops)
        return tuple(float(sum(graph.tensors[t].nbytes for t in of_op)) for of_op in touched)
    if len(costs) != len(graph.ops) or any(not 0 <= cost < float("inf") for cost in costs):
        raise UsageError(
            f"costs has {len(costs)} numbers; give one, 0 or more, for each of the {len(graph.ops)} operators"
        )
    return tuple(float(cost) for cost in costs)


def _least_needed(graph: Graph, memory: MemoryName | MemoryModel) -> int:
    """Bytes that every recomputation needs: the most that one operator reads and makes, less the bytes that it may take
    over."""
    problem, model = order_problem(graph, memory), memory_model(memory)
    in_place = bool(model.in_place or model.in_place_input)
    least = problem.floor_bytes
    for operator in range(len(graph.ops)):
        own = [s.nbytes for s in problem.storages if operator in s.producers or operator in s.consumers]
        read = [s.nbytes for s in problem.storages if operator in s.consumers]
        # A copy has fewer readers than the original, so any input might be taken over.
        reused = max(read, default=0) if in_place else 0
        least = max(least, sum(own) - reused)
    return least


def _repeatable(graph: Graph) -> list[bool]:
    """By operator: whether it may run twice. It must draw no random numbers, and no side effect may order it before or
    after another operator."""
    waited_for = {earlier for op in graph.ops for earlier in op.after}
    return [
        not op.after and index not in waited_for and kind_of(op.kind).draws == "never"
        for index, op in enumerate(graph.ops)
    ]


def _step(graph: Graph, price: Sequence[float]) -> StepGraph:
    maker = {tensor: index for index, op in enumerate(graph.ops) for tensor in op.outputs}
    reads = [{maker[tensor] for tensor in op.inputs if tensor in maker} for op in graph.ops]
    nbytes = [sum(graph.tensors[tensor].nbytes for tensor in op.outputs if tensor != ABSENT) for op in graph.ops]
    return StepGraph(reads, nbytes, price, _repeatable(graph))


def _splits(graph: Graph, memory: MemoryName | MemoryModel, steps: Sequence[int]) -> list[frozenset[int]]:
    """By split: the operators behind it; first the split right after the peak, then a few near it, then all
    others."""
    transients = profile(order_problem(graph, memory), steps)
    peak_step = transients.index(max(transients))
    near = dict.fromkeys([peak_step + 1, peak_step, peak_step - 1, peak_step + 2, *range(1, len(steps))])
    return [frozenset(steps[split:]) for split in near if 0 < split < len(steps)]


def _with_copies(graph: Graph, again: Sequence[int], split: int, steps: Sequence[int]) -> Graph:
    """The graph in which the operators `again` run a second time, right after step `split`, for the readers after
    it."""
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
            meta = graph.tensors[tensor]
            tensors.append(Tensor(f"{meta.name} again", meta.shape, meta.dtype, meta.nbytes))
        name = f"{op.name} again"
        while name in taken:
            name += "'"
        taken.add(name)
        copies.append(Op(name, op.kind, inputs, tuple(outputs), op.attrs))
    place = {operator: step for step, operator in enumerate([*steps[:split], *([None] * len(copies)), *steps[split:]])}

    def moved(op: Op, *, late: bool) -> Op:
        inputs = tuple(copy_of.get(tensor, tensor) for tensor in op.inputs) if late else op.inputs
        return Op(op.name, op.kind, inputs, op.outputs, op.attrs, tuple(sorted(place[before] for before in op.after)))

    early = [moved(graph.ops[operator], late=False) for operator in steps[:split]]
    late = [moved(graph.ops[operator], late=True) for operator in steps[split:]]
    ops = (*early, *copies, *late)
    return Graph(graph.name, tuple(tensors), ops, graph.inputs, graph.outputs, graph.constants).check()
