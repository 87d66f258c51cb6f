"""Pages of orders, arenas, shared objects and stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from downset.graph.core import Graph
from downset.memory.liveness import OrderProblem, profile
from downset.memory.models import MemoryModel, stated_model
from downset.reports.arena_view import ArenaView, Operator, arena_view, order_operators, record_view, unfilled_text
from downset.reports.axes import Axis
from downset.reports.charts import Chart, Mark
from downset.reports.next_steps import arena_next_steps, objects_next_steps, order_next_steps
from downset.reports.page.elements import ChartGroup, Facts, Page, Section, Table, Verdict
from downset.reports.page.memory_figure import memory_figure, order_figure
from downset.reports.page.next_section import next_section
from downset.reports.page.timeline_figure import gantt_figure
from downset.reports.stages import choice_lines, stage_plan_lines, type_text
from downset.reports.time_steps import stage_next_steps
from downset.reports.timeline import stage_timeline
from downset.results.plans import Arena, Evidence, Order, SharedObjects, StagePlan
from downset.results.stages import StageResult, is_steady, peer_times
from downset.text import counted, format_bytes, format_seconds, format_size, printable

__all__ = ["arena_page", "objects_page", "order_page", "problem_page", "stage_page"]


def order_page(graph: Graph, order: Order, arena: Arena | None = None, *, memory: MemoryModel | None = None) -> Page:
    """The page of an order next to the file's order, with its arena if there is one. `memory`: the order's model, where
    that is not a built-in one."""
    model = stated_model(order.memory, memory, "order")
    steps = tuple(range(len(graph.ops)))
    file_operators = order_operators(graph, steps, model)
    planned = order_operators(graph, order.steps, model)
    before = max((operator.live_bytes for operator in file_operators), default=0)
    after = order.peak_bytes
    if arena is not None:
        figure = memory_figure(
            [
                arena_view(
                    "of this order", graph, order.steps, arena, memory=model, bound_bytes=int(order.evidence.bound)
                )
            ]
        )
    else:
        # An arena without records: there are no offsets, only operators and live bytes.
        none = Arena((), (), Evidence("none", 0, 0, False))
        views = [ArenaView("before", none, file_operators), ArenaView("after", none, planned)]
        figure = order_figure(views if steps != order.steps else [ArenaView("", none, planned)])
    head = (
        f"Peak {format_bytes(before)} → {format_bytes(after)} B" if after != before else f"Peak {format_bytes(after)} B"
    )
    claim = _known(order.evidence)
    if order.evidence.proven and before == after:
        head = f"Already optimal (proven): the file's order peaks at {format_bytes(after)} B"
    numbers = [("peak of live bytes", f"{format_bytes(after)} B", claim)]
    if arena is not None:
        numbers.append(("arena", f"{format_bytes(arena.arena_bytes)} B", _known(arena.evidence)))
    sections = (
        Section("Order" if arena is None else "Memory", (figure,)),
        next_section(order_next_steps(order, graph, memory=model)),
    )
    facts = (
        ("method", order.evidence.method),
        ("memory model", model.name),
        ("states", f"{order.evidence.states:,}"),
    )
    verdict = Verdict("good" if order.evidence.proven else "plain", head, claim, tuple(numbers))
    return Page(printable(graph.name) or "Order", f"An order of {len(graph.ops):,} operators", verdict, sections, facts)


def problem_page(problem: OrderProblem, order: Order) -> Page:
    """The page of an order of numbered operators, next to the order of their numbers if that is possible."""
    given = tuple(range(len(problem.predecessors)))
    views = [_numbered("", problem, order.steps)]
    if order.steps != given and all(before < v for v in given for before in problem.predecessors[v]):
        views = [_numbered("by number", problem, given), _numbered("of this order", problem, order.steps)]
    claim = _known(order.evidence)
    facts = (("method", order.evidence.method), ("states", f"{order.evidence.states:,}"))
    head = f"Peak {format_bytes(order.peak_bytes)} B"
    verdict = Verdict("good" if order.evidence.proven else "plain", head, claim)
    section = Section("Order", (order_figure(views, first="by number"),))
    return Page("Order", f"An order of {len(given):,} operators", verdict, (section,), facts)


def _numbered(heading: str, problem: OrderProblem, steps: Sequence[int]) -> ArenaView:
    needs = profile(problem, steps)
    operators = (
        Operator(f"operator {operator}", "operator", need) for operator, need in zip(steps, needs, strict=True)
    )
    return ArenaView(heading, Arena((), (), Evidence("none", 0, 0, False)), tuple(operators))


def arena_page(arena: Arena, *, capacity_bytes: int | None = None, title: str = "Arena") -> Page:
    """The page of offsets of records, with the capacity if one is given, which the arena may exceed."""
    view = record_view("of the records", arena)
    head = f"{format_bytes(arena.arena_bytes)} B for {len(arena.records):,} records"
    verdict = _held_to(capacity_bytes, arena.evidence, head)
    facts = [("method", arena.evidence.method), ("records", f"{len(arena.records):,}")]
    if unfilled := unfilled_text(arena):
        facts.append(("bytes", unfilled))
    note = "The colours only tell neighbours apart: nothing is known of what makes these records."
    figure = memory_figure([view], limit_bytes=capacity_bytes, note=note, drawn="record")
    sections = (Section("Memory", (figure,)), next_section(arena_next_steps(arena, capacity_bytes)))
    return Page(printable(title), f"Offsets for {len(arena.records):,} records", verdict, sections, tuple(facts))


def objects_page(shared: SharedObjects, *, capacity_bytes: int | None = None, title: str = "Shared objects") -> Page:
    """The page of shared objects: a lane for each object shows which record it holds when. The objects may exceed the
    capacity, if one is given."""
    marks, rows = [], []
    for place, (record, held) in enumerate(zip(shared.records, shared.object_of, strict=True)):
        for start, stop in record.active():
            marks.append(Mark(start, held + 0.1, stop - start, 0.8, f"c{place % 9}", f"s{place}"))
        rows.append((record.id, format_bytes(record.nbytes), str(held), f"{record.start}-{record.stop}"))
    first = min([0, *(record.start for record in shared.records)])
    last = max([1, *(record.stop for record in shared.records)])
    names = tuple(f"{place}: {format_size(nbytes)}" for place, nbytes in enumerate(shared.object_bytes))
    chart = Chart(
        "Shared objects",
        Axis(first, last, "step", "steps"),
        Axis(0, max(1, len(names)), "", "lanes", names),
        tuple(marks),
        height_px=max(40, 20 * len(names)),
    )
    table = Table(
        ("record", "bytes", "object", "steps"),
        tuple(rows),
        tuple(f"s{i}" for i in range(len(rows))),
        frozenset({1, 2, 3}),
        caption="Records",
    )
    figure = ChartGroup("Shared objects: each rectangle is a record in its object.", (("", chart),), (), (table,))
    head = f"{format_bytes(shared.total_bytes)} B in {len(names)} objects"
    verdict = _held_to(capacity_bytes, shared.evidence, head)
    facts = (("method", shared.evidence.method), ("records", f"{len(shared.records):,}"))
    return Page(
        printable(title),
        f"Objects for {len(shared.records):,} records",
        verdict,
        (Section("Objects", (figure,)), next_section(objects_next_steps(shared))),
        facts,
    )


def _held_to(capacity_bytes: int | None, evidence: Evidence, taken: str) -> Verdict:
    """The verdict on bytes under a capacity; without one it is what is `taken`."""
    claim = _known(evidence)
    if capacity_bytes is None:
        return Verdict("good" if evidence.proven else "plain", taken, claim)
    limit, needed = format_size(capacity_bytes), format_bytes(evidence.value)
    if evidence.value <= capacity_bytes:
        free = format_bytes(capacity_bytes - evidence.value)
        return Verdict("good", f"Fits {limit}: {needed} B taken, {free} B free", claim)
    shown = f"The picture shows the best that was found: {needed} B, {claim}"
    if evidence.bound > capacity_bytes:
        head = f"Does not fit {limit}: at least {format_bytes(evidence.bound)} B are needed"
        return Verdict("bad", head, shown)
    return Verdict("unknown", f"Not known whether it fits {limit}", shown)


def stage_page(stages: StageResult | StagePlan, *, title: str = "Stages") -> Page:
    """The page of stages as lanes over time. After a search it also shows the candidates as measured."""
    plan = stages.plan if isinstance(stages, StageResult) else stages
    unit_s, names = (stages.unit_s, stages.unit_names) if isinstance(stages, StageResult) else ((), ())
    timeline = stage_timeline(plan, unit_s, names)
    lanes = gantt_figure(
        "Stages: groups side by side, a stage after the one before it", [timeline], unit="stage", timed=bool(unit_s)
    )
    facts_below = stage_plan_lines(plan)[1:2]
    if unit_s:
        facts_below.append(
            f"The figure lays out units as timed alone, {format_seconds(timeline.end_s)} in all; a whole run took "
            f"{format_seconds(plan.evidence.value)} in the median (measured)."
        )
    sections = [Section("Stages", (lanes, Facts(tuple(facts_below))))]
    numbers = [("latency", format_seconds(plan.evidence.value), "measured, median" if plan.device else "from prices")]
    head = f"{len(plan.units)} units in {len(plan.stages)} stages: {format_seconds(plan.evidence.value)}"
    detail = ""
    state: Literal["good", "unknown", "plain"] = "plain"
    if isinstance(stages, StageResult):
        state, head = _stage_verdict(stages)
        first = stages.candidates[0].percentile(0.5)
        kept = plan.evidence.method == stages.candidates[0].name
        bound = "not known" if stages.bound_s is None else format_seconds(stages.bound_s)
        latency = f"{'' if kept else f'{format_seconds(first)} → '}{format_seconds(plan.evidence.value)}"
        numbers = [("latency, measured", latency, _spread(stages)), ("bound", bound, "")]
        detail = stages.why
        sections.append(Section("Candidates", (_candidates(stages),)))
        sections.append(next_section(stage_next_steps(stages)))
        sections.append(Section("In words", (Facts((*choice_lines(stages), *(f"note: {n}" for n in stages.notes))),)))
    facts = (
        ("device", plan.device_name),
        ("type", type_text(plan)),
        ("batch", str(plan.batch)),
        ("versions", plan.versions),
    )
    shown = tuple(item for item in facts if item[1])
    return Page(
        printable(title),
        f"{len(plan.units)} units on {plan.device_name or 'no device'}",
        Verdict(state, head, detail, tuple(numbers)),
        tuple(sections),
        shown,
    )


def _stage_verdict(stages: StageResult) -> tuple[Literal["good", "unknown", "plain"], str]:
    """(the state, the headline) of a search: good only where no other candidate and no runtime is known to be faster,
    and the times tell."""
    method, sequential = stages.plan.evidence.method, stages.candidates[0]
    times = peer_times(stages.peer_s)
    if stages.asked:
        head = f"{method} taken, as asked for"
        if method != sequential.name:
            gain = f"{stages.speedup:.2f}x against one after another"
            head += f": {gain if is_steady(sequential.seconds) else 'not known whether it is faster'}"
    elif method != sequential.name:
        head = f"{method} chosen: {stages.speedup:.2f}x against one after another"
    elif len(stages.candidates) == 1:
        head = "One after another: there is no other schedule"
    else:
        head = "One after another is kept: no other candidate is known to be faster"
    if times.faster:
        head += "; " + ", ".join(f"{name} is faster than this plan, {times.ratio(name)}" for name in times.faster)
    if stages.asked or times.faster:
        return "plain", head
    return ("good" if is_steady(sequential.seconds) else "unknown"), head


def _spread(stages: StageResult) -> str:
    """Words for a measured latency: the median of how many runs, and how far they spread."""
    chosen = next(one for one in stages.candidates if one.name == stages.plan.evidence.method)
    low, high = format_seconds(chosen.percentile(0.1)), format_seconds(chosen.percentile(0.9))
    runs = len(chosen.seconds)
    spread = "" if is_steady(chosen.seconds) else "; they vary too much to compare"
    return f"median of {counted(runs, 'run')}, p10 {low} to p90 {high}{spread}"


def _candidates(stages: StageResult) -> ChartGroup:
    """A chart with a bar from the 10th to the 90th percentile of each candidate; a mark shows the median."""
    marks, rows, chosen = [], [], set()
    for place, candidate in enumerate(stages.candidates):
        low, middle, high = (candidate.percentile(share) for share in (0.1, 0.5, 0.9))
        best = candidate.name == stages.plan.evidence.method
        chosen |= {place} if best else set()
        marks.append(Mark(low, place + 0.25, max(high - low, 1e-9), 0.5, "c1" if best else "c0", f"k{place}"))
        marks.append(Mark(middle - 0.0015 * high, place + 0.1, 0.003 * high, 0.8, "moved", f"k{place}"))
        rows.append(
            (
                candidate.name,
                format_seconds(low),
                format_seconds(middle),
                format_seconds(high),
                str(len(candidate.stages)),
                format_bytes(candidate.live_bytes),
            )
        )
    last = max((candidate.percentile(0.9) for candidate in stages.candidates), default=1.0)
    names = tuple(candidate.name for candidate in stages.candidates)
    chart = Chart(
        "Candidates",
        Axis(0.0, 1.1 * last, "one run", "s"),
        Axis(0, max(1, len(names)), "", "lanes", names),
        tuple(marks),
        height_px=max(40, 24 * len(names)),
    )
    columns = ("candidate", "p10", "p50", "p90", "stages", "live bytes (analytic)")
    table = Table(
        columns,
        tuple(rows),
        tuple(f"k{i}" for i in range(len(rows))),
        frozenset(range(1, 6)),
        frozenset(chosen),
        "Candidates",
    )
    return ChartGroup(
        "Candidates, measured in interleaved rounds: bars from p10 to p90, the median marked.",
        (("", chart),),
        (("c1", "chosen"), ("c0", "other candidates")),
        (table,),
    )


def _known(evidence: Evidence) -> str:
    return "proven least" if evidence.proven else f"bound {format_bytes(evidence.bound)} B"
