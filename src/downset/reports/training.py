"""The documents of PyTorch's training steps: the order of a compiled graph, and what runs again to hold less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from downset.compiled import OrderReport, PeakReport, RecomputeReport
from downset.graph.core import ABSENT, Op
from downset.memory.models import MemoryModel
from downset.messages import Message, Setting
from downset.reports.arena_view import ArenaView, Operator
from downset.reports.document import Column, Document, Picture, Section, Steps, Table, Value, Verdict, columns
from downset.reports.next_steps import order_next_steps, ranked
from downset.reports.page.memory_figure import order_figure
from downset.reports.page.trade_figure import TradeAxes, TradePoint, trade_figure
from downset.reports.plan_documents import UNPLACED, bytes_text, known, order_document
from downset.results.fit import Recomputation
from downset.results.inspections import StepNeed
from downset.results.next_step import NextStep
from downset.text import counted, format_bytes, format_seconds, printable

__all__ = ["compiled_document", "peak_document", "recomputation_document", "recompute_document"]

_LISTED = 10
"""Buffers at the peak that are listed, the largest ones."""


def compiled_document(report: OrderReport) -> Document:
    """A graph that PyTorch's compiler ordered: Inductor's best order and the order that runs, with what is live at the
    peak."""
    evidence = report.order.evidence
    before, after = report.inductor_bytes, report.peak_bytes
    headline = f"Peak {format_bytes(before)} → {bytes_text(after)}"
    if before == after:
        runs = "in both orders" if report.chosen else "the graph keeps Inductor's order"
        headline = f"Peak {bytes_text(after)}: {runs}"
        if evidence.proven and report.order.peak_bytes == after:
            headline = f"Already optimal (proven): Inductor's order peaks at {bytes_text(after)}"
    best = "the best of Inductor's orders"
    views = [_view(f"before: {best}", report.before), _view("after", report.after)]
    kept = report.before == report.after or not report.before
    picture = Picture(lambda: order_figure(views[1:] if kept else views, first=best))
    live = Table(
        (
            Column("buffer", "name", printable, left=True),
            Column("bytes", "nbytes", format_bytes),
            Column("made at", "source", printable, left=True),
        ),
        report.peak_live,
        f"live at the peak, while {printable(report.peak_node)} runs",
        most=_LISTED,
    )
    sections = (
        Section("Order", (picture,) if report.after else ()),
        Section("At the peak", (live,)),
        Section("What could be done next", (Steps(tuple(_after_order(report))),)),
    )
    figures = (
        Value("peak before Inductor's own reordering", report.given_bytes, bytes_text),
        Value("planned in", evidence.seconds, format_seconds, f"{evidence.states:,} states"),
    )
    note = f"{(after - before) / max(before, 1):+.1%} against the best of Inductor's orders; {known(evidence)}.\n"
    note += "Bytes are Inductor's estimate. They do not count parameters, the state of an optimiser, or what a "
    note += "fused kernel keeps in registers."
    if before == after and report.chosen:
        note += " Our order runs, because at this peak it holds less where kernels share a call."
    note += f" The graph is {printable(report.devices)}." if report.devices else ""
    state: Literal["good", "plain"] = "good" if after < before or evidence.proven else "plain"
    return Document(
        printable(report.graph),
        f"PyTorch Inductor: {counted(report.nodes, 'node')}",
        Verdict(state, headline, note),
        sections,
        figures,
        (Value("runs in", "our order" if report.chosen else "Inductor's order"),),
    )


def peak_document(report: PeakReport) -> Document:
    """The tensors that are live at the peak of a plain training step, by module."""
    table = Table(
        (
            Column("in the model", lambda of: printable(of.module) or "outside of modules", left=True),
            Column("kind", "kind", printable, left=True),
            Column("made in", "part", left=True),
            Column("tensors", "count"),
            Column("bytes", "nbytes", format_bytes),
        ),
        report.modules,
        f"live at the peak, while {printable(report.peak_operator)} runs",
        most=_LISTED,
    )
    picture = Picture(lambda: order_figure([_view("the step", report.operators)], first="the step"))
    sections = (
        Section("At the peak", (table,)),
        Section("The step", (picture,) if report.operators else ()),
        Section("What could be done next", (Steps((_COMPILE_IT,)),)),
    )
    parts: dict[str, int] = {}
    for of in report.modules:
        part = "gradients" if of.module.startswith("gradient of ") else of.part
        parts[part] = parts.get(part, 0) + of.nbytes
    figures = tuple(
        Value(
            f"of it from the {name} pass" if name != "gradients" else "of it gradients of parameters",
            nbytes,
            bytes_text,
        )
        for name, nbytes in parts.items()
    )
    note = "Watched in plain PyTorch, without parameters, the state of the optimiser, the batch and what libraries "
    note += "allocate inside an operator."
    return Document(
        "Peak of a training step",
        f"plain PyTorch: {counted(len(report.operators), 'operator')}",
        Verdict("plain", f"Peak {bytes_text(report.peak_bytes)}", note),
        sections,
        figures,
    )


_COMPILE_IT = NextStep(
    "For less memory compile the step, ds.inductor.compile_step(model, loss_fn, optimizer), and state peak_bytes."
)


def recompute_document(report: RecomputeReport) -> Document:
    """The choice of what runs again in the backward pass, and the front of cost and peak."""
    within = report.peak_bytes <= report.limit_bytes
    headline = f"Peak {format_bytes(report.none_bytes)} → {bytes_text(report.peak_bytes)}"
    headline += "" if within else ": more than was asked for"
    count = counted(len(report.operators), "operator")
    figures = [
        Value("peak that was asked for", report.limit_bytes, bytes_text),
        Value("runs again", report.cost_s, format_seconds, f"{count}; analytic"),
        Value("choices tried", report.tried, lambda tried: f"{tried:,}", format_seconds(report.seconds)),
    ]
    points = [(*point, "") for point in report.front]
    if report.pytorch is not None:
        cost_s, peak_bytes = report.pytorch
        figures.append(Value("PyTorch's own choice", peak_bytes, bytes_text, format_seconds(cost_s)))
        points.append((*report.pytorch, "PyTorch's own choice"))
    table = Table(
        (
            Column("operator", "name", printable, left=True),
            Column("in the model", "source", printable, left=True),
            Column("bytes of its result", "nbytes", format_bytes),
            Column("again, analytic", "cost_s", format_seconds),
        ),
        report.operators,
        "operators that run again in the backward pass",
    )
    chosen = (report.cost_s, report.peak_bytes)
    sections = (
        Section("Choices", _traded(points, chosen, seconds=True, limit_bytes=report.limit_bytes)),
        Section("What runs again", (table,)),
        Section(
            "What could be done next", (Steps(tuple(_other_limits(report.front, report.cost_s, report.peak_bytes))),)
        ),
    )
    note = "Estimates from the graph before the compiler fuses it, without parameters, optimiser and batch."
    return Document(
        "Recomputation",
        f"{count} of a training step {'runs' if len(report.operators) == 1 else 'run'} again",
        Verdict("good" if within else "unknown", headline, note),
        sections,
        tuple(figures),
    )


def recomputation_document(recomputation: Recomputation, *, memory: MemoryModel | None = None) -> Document:
    """The network with what runs twice, in its order, and the front of cost and peak. `memory`: the order's model,
    where that is not a built-in one."""
    document = order_document(recomputation.graph, recomputation.order, memory=memory)
    points = [(*point, "") for point in recomputation.front]
    chosen = (recomputation.cost, recomputation.order.peak_bytes)
    sections = (
        *document.sections[:1],
        Section("Choices", _traded(points, chosen, seconds=False)),
        Section("What runs again", (_twice_table(recomputation),)),
        *document.sections[1:],
    )
    evidence = recomputation.evidence
    proven = "proven least" if evidence.proven else f"bound {_cost_text(evidence.bound)}"
    figures = (*document.figures, Value("cost of what runs twice", recomputation.cost, _cost_text, proven))
    twice = counted(len(recomputation.recomputed), "operator")
    headline = f"Peak {bytes_text(recomputation.order.peak_bytes)} with {twice} run twice"
    verdict = Verdict("good" if evidence.proven else "plain", headline, known(recomputation.order.evidence))
    return replace(document, verdict=verdict, sections=sections, figures=figures)


def _cost_text(cost: float) -> str:
    return f"{cost:,.6g}"


def _twice_table(recomputation: Recomputation) -> Table:
    graph, names = recomputation.graph, set(recomputation.recomputed)

    def result_bytes(op: Op) -> int:
        return sum(graph.tensors[tensor].nbytes for tensor in op.outputs if tensor != ABSENT)

    return Table(
        (
            Column("operator", "name", printable, left=True),
            Column("kind", "kind", left=True),
            Column("bytes of its result", result_bytes, format_bytes),
        ),
        [op for op in graph.ops if op.name in names],
        "operators that run twice",
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
    return ArenaView(
        heading, UNPLACED, tuple(Operator(one.name, one.kind or "node", one.live_bytes or 0) for one in needs)
    )


def _traded(
    points: Sequence[tuple[float, int, str]],
    chosen: tuple[float, int],
    *,
    seconds: bool,
    limit_bytes: int | None = None,
) -> tuple[Picture, ...]:
    """A picture with a dot for each choice; none if there is only one."""
    if len(points) < 2:
        return ()
    rows = [
        (name or f"choice {place}", format_seconds(cost) if seconds else _cost_text(cost), format_bytes(peak))
        for place, (cost, peak, name) in enumerate(points)
    ]
    table = Table(columns("choice", "cost", "peak, bytes"), rows, "Choices")
    dots = [
        TradePoint(cost, peak, "original" if name else "chosen" if (cost, peak) == chosen else "other")
        for cost, peak, name in points
    ]
    title = "Memory against what runs again: choices that no other beats in both (estimates)."
    draw = partial(
        trade_figure,
        title,
        dots,
        table,
        TradeAxes("cost", "s" if seconds else "count", "peak"),
        original_named="PyTorch's own choice",
        limit_bytes=limit_bytes,
    )
    return (Picture(draw),)


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
