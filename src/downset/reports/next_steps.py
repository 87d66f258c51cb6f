"""Steps that a user can take next, with computed numbers, the best first: one list for the terminal, JSON and pages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from downset.graph.core import WORKSPACE, Graph
from downset.memory.bounds import breadth_bound
from downset.memory.liveness import lifetimes, order_problem, profile
from downset.memory.models import MemoryModel
from downset.memory.records import Record, live_pieces
from downset.messages import Call, Message, Part, Setting, joined
from downset.reports.more_search import search_setting
from downset.results.next_step import NextStep
from downset.results.plans import Arena, Evidence, Order, SharedObjects
from downset.text import format_bytes, printable, shortened

__all__ = [
    "arena_next_steps",
    "listed",
    "more_search",
    "objects_next_steps",
    "order_next_steps",
    "ranked",
    "remedy_lines",
    "smaller_tensors",
]

_LARGEST = 3
"""The most tensors at the peak for which a step is computed."""
_LISTED = 5
"""The most steps in a message."""


def ranked(steps: Iterable[NextStep]) -> list[NextStep]:
    """The best first: steps that make the network fit, then those that gain most bytes, then most seconds."""
    return sorted(steps, key=lambda step: (not step.suffices, -(step.gained_bytes or 0), -(step.gained_s or 0.0)))


def listed(steps: Sequence[NextStep]) -> Message:
    """The first of the steps on one line, for a message that something does not fit."""
    return joined(
        "; ",
        (
            Message(f"{head}{': ' if head else ''}({number}) ", step.text.removesuffix("."))
            for number, (head, step) in enumerate(_headed(steps[:_LISTED]), start=1)
        ),
    )


def remedy_lines(steps: Sequence[NextStep]) -> list[str]:
    """The first of the steps, a line each, under headings that say what they are for."""
    lines: list[str] = []
    for number, (head, step) in enumerate(_headed(steps[:_LISTED]), start=1):
        lines += [f"{head}:"] if head else []
        lines.append(Message(f"  {number}. ", step.text))
    return lines


def _headed(steps: Sequence[NextStep]) -> Iterator[tuple[str, NextStep]]:
    """Each step with its heading; empty if the step before has the same one."""
    before: bool | None = None
    for step in steps:
        head = "to make it fit" if step.suffices else "to need less"
        yield ("" if step.suffices == before else head), step
        before = step.suffices


def order_next_steps(
    order: Order, graph: Graph | None = None, *, longer: Part | None = None, memory: MemoryModel | None = None
) -> list[NextStep]:
    """Steps after an order: more search if its peak is not proven least, and smaller tensors at its peak. `longer`:
    what searches longer where another function than `plan_order` made the order. `memory`: its model, where that is not
    a built-in one."""
    evidence = order.evidence
    setting = longer or search_setting(evidence, "optimal")
    steps = [] if evidence.proven else more_search(order.peak_bytes, int(evidence.bound), setting, what="peak")
    if graph is not None:
        steps += smaller_tensors(graph, order.steps, memory or order.memory)
    return ranked(steps)


def arena_next_steps(arena: Arena, capacity_bytes: int | None = None) -> list[NextStep]:
    """Steps after a placement of records: more search, or smaller records at the step of the most live bytes."""
    evidence = arena.evidence
    steps = _more_placing(evidence, capacity_bytes)
    return ranked([*steps, *(_smaller_records(arena.records, arena.arena_bytes) if evidence.proven else ())])


def objects_next_steps(shared: SharedObjects) -> list[NextStep]:
    """Steps after sharing objects: more search, or offsets in one arena, which can need less."""
    live = breadth_bound(shared.records)
    steps = _more_placing(shared.evidence, None)
    if live < shared.total_bytes:
        gained = shared.total_bytes - live
        steps.append(
            NextStep(
                Message(
                    "Place offsets in one arena (",
                    Call("plan_arena"),
                    f"): it needs {format_bytes(live)} B or more, at most {format_bytes(gained)} B less.",
                ),
                gained,
            )
        )
    return ranked(steps)


def _more_placing(evidence: Evidence, capacity_bytes: int | None) -> list[NextStep]:
    gap = int(evidence.value - evidence.bound)
    if evidence.proven or gap <= 0:
        return []
    searched = capacity_bytes is None or evidence.value > capacity_bytes
    setting = search_setting(evidence, "best") if searched else Setting("capacity_bytes", None)
    if setting is None:
        return []
    bound = format_bytes(evidence.bound)
    more = f": at most {format_bytes(gap)} B may be saved; the lower bound is {bound} B."
    return [NextStep(Message(*_how(setting), more), gap)]


def _how(setting: Part) -> tuple[Part, ...]:
    return f"Search {'longer' if 'limit' in str(setting) else 'for the least'} (", setting, ")"


def more_search(
    value: int, bound: int, setting: Part | None, *, what: str = "arena", missing_bytes: int | None = None
) -> list[NextStep]:
    """The step to more search by a setting; none without one or a gap. `missing_bytes`: stated in
    place of the bound."""
    gap = value - bound
    if setting is None or gap <= 0:
        return []
    beside = (
        f"the bound is {format_bytes(bound)} B"
        if missing_bytes is None
        else f"{format_bytes(missing_bytes)} B are missing"
    )
    most = f", at most {format_bytes(gap)} B may still be saved; {beside}" if bound > 0 else ""  # 0: no bound is known
    return [NextStep(Message(*_how(setting), f": the {what} is not proven least{most}."), gap)]


def smaller_tensors(
    graph: Graph, steps: Sequence[int], memory: str | MemoryModel, *, original: Graph | None = None
) -> list[NextStep]:
    """Steps that halve a tensor at the peak, with the peak that this order then has. `original`: the network before
    rewriting; tensors that only the rewritten one has are left out, because users cannot change them."""
    needs = profile(order_problem(graph, memory), steps)
    if not needs:
        return []
    peak = max(needs)
    step = needs.index(peak)
    live = [record for record in lifetimes(graph, steps, memory).records if record.start <= step < record.stop]
    live = [record for record in live if not record.id.endswith(WORKSPACE)]  # what kernels hold is not the user's
    if original is not None:
        names = {tensor.name for tensor in original.tensors}
        live = [record for record in live if record.id in names]
    wishes = []
    for record in sorted(live, key=lambda one: -one.nbytes)[:_LARGEST]:
        half = record.nbytes // 2
        left = max(need - half if record.start <= step < record.stop else need for step, need in enumerate(needs))
        if left < peak:
            wishes.append(
                NextStep(
                    f"Halve tensor {shortened(printable(record.id), 60)} ({format_bytes(record.nbytes)} B; fewer "
                    f"channels or a smaller input): this order would peak at {format_bytes(left)} B, "
                    f"{format_bytes(peak - left)} B less (analytic).",
                    peak - left,
                )
            )
    return wishes


def _most_with_halved(record: Record, changes: Sequence[int], live: Sequence[int]) -> int:
    """The most live bytes with one record halved. `changes`: the steps at which the live bytes change, the record's
    starts and stops among them; `live`: those bytes from each on."""
    most, place = 0, 0
    for start, stop in record.active():
        first, last = bisect_left(changes, start), bisect_left(changes, stop)
        most = max(most, max(live[place:first], default=0), max(live[first:last]) - record.nbytes // 2)
        place = last
    return max(most, max(live[place:], default=0))


def _smaller_records(records: Sequence[Record], arena_bytes: int) -> list[NextStep]:
    """Records at the step of the most live bytes, with the bytes that every placement gains if one is halved. Empty
    unless the arena is as small as the live bytes: otherwise a better placement might gain more. There may be a million
    records: they are swept once."""
    changes, live = live_pieces(records).breadths()
    peak = max(live, default=0)
    if peak != arena_bytes or not live:
        return []
    step = changes[live.index(peak)]
    there = [record for record in records if any(start <= step < stop for start, stop in record.active())]
    steps = []
    for record in sorted(there, key=lambda one: -one.nbytes)[:_LARGEST]:
        left = _most_with_halved(record, changes, live)
        if left < peak:
            steps.append(
                NextStep(
                    f"Halve record {shortened(printable(record.id), 60)} ({format_bytes(record.nbytes)} B): the most "
                    f"bytes live at a step fall to {format_bytes(left)} B, {format_bytes(peak - left)} B less.",
                    peak - left,
                )
            )
    return steps
