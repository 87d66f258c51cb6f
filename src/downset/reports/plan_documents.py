"""The documents of orders, arenas and shared objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from downset.graph.core import Graph
from downset.memory.liveness import OrderProblem, profile
from downset.memory.models import MemoryModel, stated_model
from downset.reports.arena_view import (
    ArenaView,
    Operator,
    arena_view,
    moved_steps,
    order_operators,
    record_view,
    unfilled_text,
)
from downset.reports.document import (
    JSON_ONLY,
    TERMINAL,
    ChartGroup,
    Column,
    Document,
    Facts,
    Part,
    Picture,
    Section,
    Steps,
    Table,
    Value,
    Verdict,
)
from downset.reports.gaps import bound_text, gap_of
from downset.reports.next_steps import arena_next_steps, objects_next_steps, order_next_steps
from downset.reports.peak import peak_cause, peak_table, peak_values
from downset.results.plans import Arena, Evidence, Order, SharedObjects, Together
from downset.text import counted, format_bytes, format_size, printable, shortened

__all__ = [
    "UNPLACED",
    "arena_document",
    "bytes_text",
    "known",
    "objects_document",
    "order_document",
    "plain_order_document",
    "problem_document",
    "together_document",
]

_LISTED = 10
"""Tensors at the peak that people see, the largest ones."""
_MOVED = 20
"""Operators that a terminal lists; JSON and the page have them all."""
UNPLACED = Arena((), (), Evidence("none", 0, 0, False))
"""The arena of an order without offsets."""


def bytes_text(nbytes: float) -> str:
    return f"{format_bytes(nbytes)} B"


def known(evidence: Evidence) -> str:
    """How good a number of bytes is known to be, and by which method: "proven least", or its bound, the gap and the
    limit that ended the search."""
    gap = gap_of(evidence.value, evidence.bound)
    claim = "proven least" if evidence.proven else f"{bound_text(bytes_text(evidence.bound), gap)}{evidence.stopped()}"
    return f"{claim}, by {evidence.method}"


def _evidence_data(evidence: Evidence) -> dict[str, Any]:
    return {
        "bound_bytes": int(evidence.bound),
        "proven": evidence.proven,
        "seconds": evidence.seconds,
        "stopped_by": evidence.stopped_by or None,
    }


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of an order. `file_step`: the operator's place in the file. `after`: the operator of the step before."""

    step: int
    file_step: int
    moved: bool
    operator: Operator
    after: str


def _name(text: str) -> str:
    return shortened(printable(text), 40)


_STEPS = (
    Column("step", "step", key="step"),
    Column("in the file", "file_step", key="file_step"),
    Column("kind", "operator.kind", _name, key="kind", left=True),
    Column("operator", "operator.name", _name, key="name", left=True),
    Column("runs after", "after", _name, left=True),
    Column("live bytes", "operator.live_bytes", format_bytes, key="live_bytes"),
    Column("", "moved", key="moved", on=JSON_ONLY),
)


def order_document(
    graph: Graph, order: Order, arena: Arena | None = None, *, memory: MemoryModel | None = None
) -> Document:
    """An order of a graph next to the file's order, with its arena if there is one; docs/schemas/order.json has its
    keys. `memory`: the order's model, where that is not a built-in one."""
    model = stated_model(order.memory, memory, "order")
    evidence, in_file = order.evidence, tuple(range(len(graph.ops)))
    before, after = order_operators(graph, in_file, model), order_operators(graph, order.steps, model)
    before_bytes, moved = max((one.live_bytes for one in before), default=0), moved_steps(before, after)
    steps = [
        _Step(step, order.steps[step], step in moved, one, after[step - 1].name if step else "nothing")
        for step, one in enumerate(after)
    ]
    caption = f"{len(moved)} of {counted(len(steps), 'operator')} moved; all others keep the order of the file"
    moves = [one for one in steps if one.moved]
    more = f"{len(moves) - _MOVED:,} more moved" if len(moves) > _MOVED else ""
    peak = peak_cause(graph, order.steps, model)

    def draw() -> ChartGroup:
        from downset.reports.page.memory_figure import memory_figure, order_figure

        if arena is not None:
            bound = int(evidence.bound)
            view = arena_view("of this order", graph, order.steps, arena, memory=model, bound_bytes=bound)
            return memory_figure([view])
        if in_file == order.steps:
            return order_figure([ArenaView("", UNPLACED, after)])
        return order_figure([ArenaView("before", UNPLACED, before), ArenaView("after", UNPLACED, after)])

    facts = () if moves else ("the order is the file's",)
    if moves and before_bytes <= order.peak_bytes:
        facts = ("the file's order peaks at no more than this one: nothing has to move",)
    sections = (
        Section("Order" if arena is None else "Memory", (Picture(draw),)),
        Section("At the peak", peak_table(peak, most=_LISTED)),
        Section(
            "Moved operators",
            (
                Facts(facts, TERMINAL),
                Table(_STEPS, moves, caption, most=_MOVED, rest=more, on=TERMINAL),
                Table(_STEPS, steps, key="operators", on=JSON_ONLY),
            ),
        ),
        Section("What could be done next", (Steps(tuple(order_next_steps(order, graph, memory=model))),)),
    )
    head = f"Peak {bytes_text(order.peak_bytes)}"
    if before_bytes != order.peak_bytes:
        head = f"Peak {format_bytes(before_bytes)} → {bytes_text(order.peak_bytes)}"
    elif evidence.proven:
        head = f"Already optimal (proven): the file's order peaks at {bytes_text(order.peak_bytes)}"
    figures = [
        Value("peak of live bytes", order.peak_bytes, key="peak_bytes", on=JSON_ONLY),
        Value("peak in the file's order", before_bytes, key="before_bytes", on=JSON_ONLY),
    ]
    if arena is not None:
        figures.append(Value("arena", arena.arena_bytes, bytes_text, known(arena.evidence)))
    return Document(
        printable(graph.name) or "Order",
        f"an order of {counted(len(graph.ops), 'operator')}, memory model {model.name}",
        Verdict("good" if evidence.proven else "plain", head, known(evidence)),
        sections,
        tuple(figures),
        _foot(evidence, Value("memory model", model.name, key="memory")),
        {**_evidence_data(evidence), "order": order.steps, **peak_values(peak)},
    )


def _foot(evidence: Evidence, *others: Value) -> tuple[Value, ...]:
    states = Value("states", evidence.states, lambda states: f"{states:,}", key="states")
    return (Value("method", evidence.method, key="method"), *others, states)


def problem_document(problem: OrderProblem, order: Order) -> Document:
    """An order of numbered operators, next to the order of their numbers if that is possible."""
    by_number = tuple(range(len(problem.predecessors)))
    views = [_numbered("", problem, order.steps)]
    if order.steps != by_number and all(one < v for v in by_number for one in problem.predecessors[v]):
        views = [_numbered("by number", problem, by_number), _numbered("of this order", problem, order.steps)]
    needs = profile(problem, order.steps)
    step = max(by_number, key=needs.__getitem__, default=None)
    fact = "" if step is None else f"the peak is at step {step}, operator {order.steps[step]}"

    def draw() -> ChartGroup:
        from downset.reports.page.memory_figure import order_figure

        return order_figure(views, first="by number")

    alone = plain_order_document(order)
    parts: tuple[Part, ...] = (Picture(draw), *([Facts((fact,))] if fact else []))
    return replace(alone, sections=(Section("Order", parts),))


def plain_order_document(order: Order) -> Document:
    """An order of which nothing else is known."""
    model = f", memory model {order.memory}" if order.memory else ""
    state: Literal["good", "plain"] = "good" if order.evidence.proven else "plain"
    verdict = Verdict(state, f"Peak {bytes_text(order.peak_bytes)}", known(order.evidence))
    return Document(
        "Order", f"an order of {counted(len(order.steps), 'operator')}{model}", verdict, foot=_foot(order.evidence)
    )


def _numbered(heading: str, problem: OrderProblem, steps: Sequence[int]) -> ArenaView:
    needs = profile(problem, steps)
    operators = (
        Operator(f"operator {operator}", "operator", need) for operator, need in zip(steps, needs, strict=True)
    )
    return ArenaView(heading, UNPLACED, tuple(operators))


def together_document(plan: Together) -> Document:
    """An order and its arena without their graph: the document of the arena, with the verdict of the order."""
    order, arena = plain_order_document(plan.order), arena_document(plan.arena)
    figures = (Value("arena", plan.arena.arena_bytes, bytes_text, known(plan.arena.evidence)),)
    return Document(order.title, order.subtitle, order.verdict, arena.sections, figures, arena.foot)


def arena_document(arena: Arena, *, capacity_bytes: int | None = None, title: str = "Arena") -> Document:
    """Offsets of records, with the capacity if one is given, which the arena may exceed; docs/schemas/arena.json has
    its keys."""
    headline = f"An arena of {bytes_text(arena.arena_bytes)}"
    note = "The colours only tell neighbours apart: nothing is known of what makes these records."

    def draw() -> ChartGroup:
        from downset.reports.page.memory_figure import memory_figure

        view = record_view("of the records", arena)
        return memory_figure([view], limit_bytes=capacity_bytes, note=note, drawn="record")

    unfilled = unfilled_text(arena)
    sections = (
        Section("Memory", (Picture(draw), *([Facts((unfilled,))] if unfilled else []))),
        Section("What could be done next", (Steps(tuple(arena_next_steps(arena, capacity_bytes))),)),
    )

    def offsets() -> list[dict[str, Any]]:
        return [{"id": one.id, "offset": offset} for one, offset in zip(arena.records, arena.offsets, strict=True)]

    return Document(
        printable(title),
        f"offsets for {counted(len(arena.records), 'record')}",
        _verdict(capacity_bytes, arena.evidence, headline),
        sections,
        (_placed(arena.evidence),),
        _placed_foot(arena.evidence, len(arena.records)),
        {**_evidence_data(arena.evidence), "offsets": offsets},
    )


def _placed(evidence: Evidence) -> Value:
    return Value("arena", int(evidence.value), key="arena_bytes", on=JSON_ONLY)


def _placed_foot(evidence: Evidence, count: int) -> tuple[Value, ...]:
    return _foot(evidence, Value("records", f"{count:,}"))


def objects_document(
    shared: SharedObjects, *, capacity_bytes: int | None = None, title: str = "Shared objects"
) -> Document:
    """Shared objects, which may exceed the capacity, if one is given; docs/schemas/arena.json has its keys."""
    sizes = ", ".join(format_bytes(nbytes) for nbytes in shared.object_bytes[:8])
    more = f", {len(shared.object_bytes) - 8} more" if len(shared.object_bytes) > 8 else ""
    headline = f"{bytes_text(shared.total_bytes)} in {counted(len(shared.object_bytes), 'object')}"

    def draw() -> ChartGroup:
        from downset.reports.page.objects_figure import objects_figure

        return objects_figure(shared)

    sections = (
        Section("Objects", (Picture(draw), Facts((f"objects of {sizes}{more} B",)))),
        Section("What could be done next", (Steps(tuple(objects_next_steps(shared))),)),
    )

    def holders() -> list[dict[str, Any]]:
        return [{"id": one.id, "object": holder} for one, holder in zip(shared.records, shared.object_of, strict=True)]

    return Document(
        printable(title),
        f"objects for {counted(len(shared.records), 'record')}",
        _verdict(capacity_bytes, shared.evidence, headline),
        sections,
        (_placed(shared.evidence),),
        _placed_foot(shared.evidence, len(shared.records)),
        {**_evidence_data(shared.evidence), "objects": holders, "object_bytes": shared.object_bytes},
    )


def _verdict(capacity_bytes: int | None, evidence: Evidence, headline: str) -> Verdict:
    """The verdict on bytes under a capacity; without one it is `headline`."""
    if capacity_bytes is None:
        return Verdict("good" if evidence.proven else "plain", headline, known(evidence))
    limit, needed = format_size(capacity_bytes), bytes_text(evidence.value)
    if evidence.value <= capacity_bytes:
        free = bytes_text(capacity_bytes - evidence.value)
        ended = "" if evidence.proven else "; a placement that fits ends the search"
        return Verdict("good", f"Fits {limit}: {needed} taken, {free} free", f"{known(evidence)}{ended}")
    best = f"The picture shows the best that was found: {needed}, {known(evidence)}"
    if evidence.bound > capacity_bytes:
        return Verdict("bad", f"Does not fit {limit}: at least {bytes_text(evidence.bound)} are needed", best)
    return Verdict("unknown", f"Not known whether it fits {limit}", best)
