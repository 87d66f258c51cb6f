"""The content of a picture of an arena: its records, what is known of their tensors, and live bytes at each step."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from downset.graph.core import Graph
from downset.memory.bounds import breadth_bound, breadths
from downset.memory.liveness import lifetimes, order_problem, profile
from downset.memory.models import MemoryModel
from downset.reports.naming import kind_name, shape_text
from downset.results.plans import Arena
from downset.text import format_bytes

__all__ = [
    "KINDS_SHOWN",
    "ArenaView",
    "Operator",
    "arena_view",
    "kind_styles",
    "moved_steps",
    "record_view",
    "unfilled_text",
]

KINDS_SHOWN = 7
"""Kinds of operators with a colour of their own; the rest shares one."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator with the name that a picture gives it. `live_bytes`: bytes live while it runs."""

    name: str
    kind: str
    live_bytes: int


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """`kind`: the kind of the operator that makes the tensor, or "input"."""

    shape: str
    kind: str


@dataclass(frozen=True, slots=True)
class ArenaView:
    """An arena with a heading. `operators` (by step) and `tensors` (by name of record) are empty if only records are
    known. `scratch_bytes` and `tail_bytes`, which the runtime reports, lie above the arena. `bound_bytes`: a lower
    bound for every order and placement of the network, if known."""

    heading: str
    arena: Arena
    operators: tuple[Operator, ...] = ()
    tensors: Mapping[str, TensorFacts] = field(default_factory=dict)
    scratch_bytes: int = 0
    tail_bytes: int = 0
    bound_bytes: int | None = None

    @property
    def proven(self) -> str:
        """Text on what is proven of the arena's size; "" if nothing is."""
        if self.bound_bytes is not None and self.arena.arena_bytes <= self.bound_bytes:
            return "proven least"
        if not self.arena.evidence.proven:
            return ""
        return "proven least for this order" if self.operators else "proven least"

    @property
    def bound(self) -> int:
        """The bound of the network if it is known, otherwise that of the order or the records."""
        return int(self.arena.evidence.bound) if self.bound_bytes is None else self.bound_bytes

    @property
    def total_bytes(self) -> int:
        return self.arena.arena_bytes + self.scratch_bytes + self.tail_bytes

    @property
    def start(self) -> int:
        return min([0, *(record.start for record in self.arena.records)])

    @property
    def stop(self) -> int:
        return max([1, len(self.operators), *(record.stop for record in self.arena.records)])

    @property
    def live_bytes(self) -> tuple[int, ...]:
        """Bytes live while each operator runs, by step from `start`; without operators those of the live records."""
        if self.operators:
            return (0,) * (0 - self.start) + tuple(operator.live_bytes for operator in self.operators)
        changes, live, totals = dict(breadths(self.arena.records)), 0, []
        for step in range(self.start, self.stop):
            live = changes.get(step, live)
            totals.append(live)
        return tuple(totals)

    @property
    def peak_step(self) -> int:
        """The first step with the most live bytes."""
        live = self.live_bytes
        return self.start + max(range(len(live)), key=live.__getitem__, default=0)


def arena_view(
    heading: str,
    graph: Graph,
    steps: Sequence[int],
    arena: Arena,
    *,
    memory: str | MemoryModel = "live",
    bound_bytes: int | None = None,
) -> ArenaView:
    """The view of an arena of a graph whose operators run in this order. `bound_bytes`: a lower bound for every order
    and placement."""
    operators = order_operators(graph, steps, memory)
    producers = graph.producers()
    facts: dict[str, TensorFacts] = {}
    lives = lifetimes(graph, steps, memory)
    for tensor, record in enumerate(lives.record_of):
        if record < 0:
            continue
        made_by = producers[tensor]
        item = graph.tensors[tensor]
        kind = "input" if made_by < 0 else kind_name(graph, graph.ops[made_by])
        facts.setdefault(lives.records[record].id, TensorFacts(f"{shape_text(item)} {item.dtype}".strip(), kind))
    return ArenaView(heading, arena, operators, facts, bound_bytes=bound_bytes)


def order_operators(graph: Graph, steps: Sequence[int], memory: str | MemoryModel) -> tuple[Operator, ...]:
    """The operator of each step, with the bytes live while it runs."""
    needs = profile(order_problem(graph, memory), steps)
    return tuple(
        Operator(graph.ops[operator].name or f"operator {operator}", kind_name(graph, graph.ops[operator]), need)
        for operator, need in zip(steps, needs, strict=True)
    )


def record_view(heading: str, arena: Arena) -> ArenaView:
    """The view of an arena of which only the records are known."""
    return ArenaView(heading, arena)


def unfilled_text(arena: Arena) -> str:
    """Text on the bytes of an arena that no record holds even at the peak of the live records; "" if there are none."""
    live = breadth_bound(arena.records)
    if arena.arena_bytes <= live:
        return ""
    unused = format_bytes(arena.arena_bytes - live)
    why = "; offsets are multiples of alignments" if any(record.alignment > 1 for record in arena.records) else ""
    return f"{format_bytes(live)} B are live at the peak, where {unused} B stay unused{why}"


def kind_styles(views: Sequence[ArenaView]) -> dict[str, str]:
    """The style of the colour of each kind of operator. The kinds that make the most bytes have distinct colours, which
    are the same in every view."""
    weight: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for view in views:
        for record in view.arena.records:
            facts = view.tensors.get(record.id)
            if facts is not None:
                weight[facts.kind] += record.nbytes
        for operator in view.operators:
            count[operator.kind] += 1
    ranked = sorted({*weight, *count}, key=lambda kind: (-weight[kind], -count[kind], kind))
    return {kind: f"c{min(place, KINDS_SHOWN)}" if place < KINDS_SHOWN else "c8" for place, kind in enumerate(ranked)}


def moved_steps(before: Sequence[Operator], after: Sequence[Operator]) -> frozenset[int]:
    """The steps of the new order whose operators changed their place among the others: those outside of a longest
    sequence that both orders run in the same order. New operators count too. O(n log n)."""
    place = {(operator.name, operator.kind): step for step, operator in enumerate(before)}
    ends: list[int] = []
    last: list[int] = []
    previous: dict[int, int] = {}
    for step, operator in enumerate(after):
        old = place.get((operator.name, operator.kind))
        if old is None:
            continue
        position = bisect_left(ends, old)
        if position:
            previous[step] = last[position - 1]
        if position == len(ends):
            ends.append(old)
            last.append(step)
        else:
            ends[position], last[position] = old, step
    kept = set()
    step = last[-1] if last else -1
    while step >= 0:
        kept.add(step)
        step = previous.get(step, -1)
    return frozenset(range(len(after))) - kept
