"""Pages of PyTorch's training steps: the order of a compiled graph, and what runs again to hold less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from downset.compiled import OrderReport, RecomputeReport
from downset.graph.core import ABSENT
from downset.memory.models import MemoryModel
from downset.messages import Message, Setting
from downset.reports.arena_view import ArenaView, Operator
from downset.reports.next_steps import order_next_steps, ranked
from downset.reports.page.elements import Page, Section, Table, Verdict
from downset.reports.page.memory_figure import order_figure
from downset.reports.page.next_section import next_section
from downset.reports.page.plan_pages import order_page
from downset.reports.page.trade_figure import trade_figure
from downset.results.fit import NextStep, Recomputation, StepNeed
from downset.results.plans import Arena, Evidence
from downset.text import counted, format_bytes, format_seconds, printable

__all__ = ["compiled_page", "recomputation_page", "recompute_page"]


def compiled_page(report: OrderReport) -> Page:
    """The page of a graph that PyTorch's compiler ordered: Inductor's best order and the order that runs, with what is
    live at the peak."""
    evidence = report.order.evidence
    before, after = report.inductor_bytes, report.peak_bytes
    head = f"Peak {format_bytes(before)} → {format_bytes(after)} B"
    if before == after:
        runs = "in both orders" if report.chosen else "the graph keeps Inductor's order"
        head = f"Peak {format_bytes(after)} B: {runs}"
        if evidence.proven and report.order.peak_bytes == after:
            head = f"Already optimal (proven): Inductor's order peaks at {format_bytes(after)} B"
    claim = "proven least" if evidence.proven else f"bound {format_bytes(evidence.bound)} B"
    sections = []
    theirs = "the best of Inductor's orders"
    views = [_view(f"before: {theirs}", report.before), _view("after", report.after)]
    if report.after:
        kept = report.before == report.after or not report.before
        sections.append(Section("Order", (order_figure(views[1:] if kept else views, first=theirs),)))
    rows = tuple((printable(b.name), format_bytes(b.nbytes), printable(b.source)) for b in report.peak_live)
    live = Table(
        ("buffer", "bytes", "made at"),
        rows,
        numeric=frozenset({1}),
        caption=f"Live at the peak, while {printable(report.peak_node)} runs",
    )
    sections.append(Section("At the peak", (live,)))
    sections.append(next_section(_after_order(report)))
    numbers = (
        ("peak of live bytes", f"{format_bytes(before)} → {format_bytes(after)} B", claim),
        ("the order before Inductor's own reordering", f"{format_bytes(report.given_bytes)} B", ""),
        ("planned in", format_seconds(evidence.seconds), f"{evidence.states:,} states"),
    )
    note = "Bytes are Inductor's estimate. They do not count parameters, the state of an optimiser, or what a "
    note += "fused kernel keeps in registers."
    if before == after and report.chosen:
        note += " Our order runs, because at this peak it holds less where kernels share a call."
    note += f" The graph is {printable(report.devices)}." if report.devices else ""
    state: Literal["good", "plain"] = "good" if after < before or evidence.proven else "plain"
    return Page(
        printable(report.graph),
        f"PyTorch Inductor: {counted(report.nodes, 'node')}",
        Verdict(state, head, note, numbers),
        tuple(sections),
        (("runs in", "our order" if report.chosen else "Inductor's order"),),
    )


def recompute_page(report: RecomputeReport) -> Page:
    """The page of the choice of what runs again in the backward pass, and of the front of cost and peak."""
    within = report.peak_bytes <= report.limit_bytes
    head = f"Peak {format_bytes(report.none_bytes)} → {format_bytes(report.peak_bytes)} B"
    head += "" if within else f": above the {format_bytes(report.limit_bytes)} B that were asked for"
    numbers = [
        (
            "peak (estimate)",
            f"{format_bytes(report.none_bytes)} → {format_bytes(report.peak_bytes)} B",
            f"asked for {format_bytes(report.limit_bytes)} B",
        ),
        ("runs again", format_seconds(report.cost_s), f"{counted(len(report.operators), 'operator')}; analytic"),
        ("choices tried", f"{report.tried:,}", format_seconds(report.seconds)),
    ]
    points = [(*point, "") for point in report.front]
    if report.pytorch is not None:
        numbers.insert(
            2, ("PyTorch's own choice", f"{format_bytes(report.pytorch[1])} B", format_seconds(report.pytorch[0]))
        )
        points.append((*report.pytorch, "PyTorch's own choice"))
    sections = _traded(points, (report.cost_s, report.peak_bytes), seconds=True, limit_bytes=report.limit_bytes)
    if report.operators:
        rows = tuple(
            (printable(one.name), printable(one.source), format_bytes(one.nbytes), format_seconds(one.cost_s))
            for one in report.operators
        )
        table = Table(
            ("operator", "in the model", "bytes of its result", "again, analytic"),
            rows,
            numeric=frozenset({2, 3}),
            caption="Operators that run again in the backward pass",
        )
        sections.append(Section("What runs again", (table,)))
    sections.append(next_section(_other_limits(report.front, report.cost_s, report.peak_bytes)))
    note = "Estimates from the graph before the compiler fuses it, without parameters, optimiser and batch."
    return Page(
        "Recomputation",
        f"{counted(len(report.operators), 'operator')} of a training step run again",
        Verdict("good" if within else "unknown", head, note, tuple(numbers)),
        tuple(sections),
    )


def recomputation_page(recomputation: Recomputation, *, memory: MemoryModel | None = None) -> Page:
    """The page of the network with what runs twice, in its order, and the front of cost and peak. `memory`: the order's
    model, where that is not a built-in one."""
    page = order_page(recomputation.graph, recomputation.order, memory=memory)
    choices = _traded(
        [(*point, "") for point in recomputation.front],
        (recomputation.cost, recomputation.order.peak_bytes),
        seconds=False,
    )
    sections = [*page.sections[:1], *choices]
    if recomputation.recomputed:
        sections.append(Section("What runs again", (_twice_table(recomputation),)))
    sections += page.sections[1:]
    proven = "proven least" if recomputation.evidence.proven else f"bound {recomputation.evidence.bound:,.6g}"
    numbers = (*page.verdict.numbers, ("cost of what runs twice", f"{recomputation.cost:,.6g}", proven))
    twice = counted(len(recomputation.recomputed), "operator")
    head = f"Peak {format_bytes(recomputation.order.peak_bytes)} B with {twice} run twice"
    verdict = Verdict("good" if recomputation.evidence.proven else "plain", head, "", numbers)
    return Page(page.title, page.subtitle, verdict, tuple(sections), page.facts)


def _twice_table(recomputation: Recomputation) -> Table:
    graph, names = recomputation.graph, set(recomputation.recomputed)
    rows = tuple(
        (printable(op.name), op.kind, format_bytes(sum(graph.tensors[t].nbytes for t in op.outputs if t != ABSENT)))
        for op in graph.ops
        if op.name in names
    )
    return Table(
        ("operator", "kind", "bytes of its result"), rows, numeric=frozenset({2}), caption="Operators that run twice"
    )


def _after_order(report: OrderReport) -> list[NextStep]:
    """More search where the order is not proven, and recomputation in graphs that have a backward pass."""
    steps = order_next_steps(report.order, longer=Message("a larger ", Setting("work_limit")))
    if report.graph.endswith(("(training step)", "(backward)")):
        steps.append(
            NextStep(
                "For less memory than an order can give state peak_bytes, or a smaller one: operators then run again "
                "in the backward pass, which takes time. The page of the RecomputeReport says what that gains."
            )
        )
    return steps


def _view(heading: str, needs: Sequence[StepNeed]) -> ArenaView:
    none = Arena((), (), Evidence("none", 0, 0, False))  # nothing is placed
    return ArenaView(heading, none, tuple(Operator(one.name, one.kind or "node", one.live_bytes) for one in needs))


def _traded(
    points: Sequence[tuple[float, int, str]],
    chosen: tuple[float, int],
    *,
    seconds: bool,
    limit_bytes: int | None = None,
) -> list[Section]:
    """A section with a dot for each choice; empty if there is only one."""
    if len(points) < 2:
        return []
    rows = tuple(
        (name or f"choice {place}", format_seconds(cost) if seconds else f"{cost:,.6g}", format_bytes(peak))
        for place, (cost, peak, name) in enumerate(points)
    )
    table = Table(("choice", "cost", "peak, bytes"), rows, numeric=frozenset({1, 2}), caption="Choices")
    marked = [place for place, (cost, peak, name) in enumerate(points) if (cost, peak) == chosen and not name]
    title = "Memory against what runs again: choices that no other beats in both (estimates)."
    theirs = next((place for place, point in enumerate(points) if point[2]), -1)
    figure = trade_figure(
        title,
        [(cost, float(peak)) for cost, peak, _ in points],
        table,
        chosen=marked,
        original=theirs,
        cost=("cost", "s" if seconds else "count"),
        held="peak",
        original_named="PyTorch's own choice",
        limit_bytes=limit_bytes,
    )
    return [Section("Choices", (figure,))]


def _other_limits(front: Sequence[tuple[float, int]], cost_s: float, peak_bytes: int) -> list[NextStep]:
    """The next choices of the front on both sides of the choice taken."""
    fewer = [point for point in front if point[1] < peak_bytes]
    cheaper = [point for point in front if point[0] < cost_s]
    choices = []
    if fewer:
        cost, peak = max(fewer, key=lambda point: point[1])
        choices.append(
            NextStep(
                f"For less memory ask for peak_bytes={peak}: {format_bytes(peak_bytes - peak)} B less, for "
                f"{format_seconds(max(cost - cost_s, 0.0))} more a step (estimated).",
                peak_bytes - peak,
            )
        )
    if cheaper:
        cost, peak = max(cheaper)
        choices.append(
            NextStep(
                f"For less time ask for peak_bytes={peak}: {format_seconds(cost_s - cost)} less a step, for "
                f"{format_bytes(peak - peak_bytes)} B more (estimated).",
                gained_s=cost_s - cost,
            )
        )
    return ranked(choices)
