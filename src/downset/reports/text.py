"""Describes plans as text: pure functions from a plan, and its graph if there is one, to words and numbers."""

from __future__ import annotations

from typing import overload

from downset.compiled import OrderReport, RecomputeReport
from downset.errors import InvalidPlan, UsageError
from downset.graph.core import Graph
from downset.memory.liveness import OrderProblem, profile
from downset.memory.models import MemoryModel, MemoryName, stated_model
from downset.reports.document import Report
from downset.reports.fit import fit_lines, verdict_lines
from downset.reports.next_steps import next_steps, step_lines
from downset.reports.peak import peak_cause
from downset.reports.pipelines import period_line, stage_rows, utilisation_line
from downset.reports.stages import stage_plan_lines, stage_result_lines
from downset.results.fit import Fit, Recomputation
from downset.results.pipelines import Pipeline
from downset.results.plans import Arena, Evidence, Order, SharedObjects, StagePlan, Together
from downset.results.stages import StageResult
from downset.text import format_bytes, printable, shortened

__all__ = ["LISTED", "report"]

_Alone = (
    Order
    | Arena
    | SharedObjects
    | Together
    | StagePlan
    | StageResult
    | Pipeline
    | Fit
    | Recomputation
    | OrderReport
    | RecomputeReport
)

LISTED = 10
"""Tensors that live at the peak and are listed, the largest ones."""
_NAME_WIDTH = 60
"""The most characters of a name in a line."""


_Memory = MemoryName | MemoryModel | None


@overload
def report(graph: Graph, plan: Order, arena: Arena | None = None, /, *, memory: _Memory = ...) -> Report: ...


@overload
def report(graph: Graph, plan: Together, /, *, memory: _Memory = ...) -> Report: ...


@overload
def report(graph: Graph, plan: StagePlan | Pipeline, /) -> Report: ...


@overload
def report(problem: OrderProblem, plan: Order, /) -> Report: ...


@overload
def report(plan: Recomputation, /, *, memory: _Memory = ...) -> Report: ...


@overload
def report(plan: _Alone, /) -> Report: ...


def report(
    graph: Graph | OrderProblem | _Alone,
    plan: Order | Together | StagePlan | Pipeline | None = None,
    arena: Arena | None = None,
    /,
    *,
    memory: _Memory = None,
) -> Report:
    """One screen of plain text on any plan: its figures, bounds and proofs, and its content. The result is also a page:
    `report(...).save("out.html")` writes it, and a notebook shows it.

    `report(plan)` takes any plan, a fit, a result of `tune_stages` or `plan_recompute`, or a report of `ds.inductor`.
    `report(graph, order)`, `report(graph, order, arena)` and `report(graph, together)` also name the operator at the
    peak and the tensors live then. `report(problem, order)` names the operator by its number and shows the live bytes.
    `memory`: the memory model of the order, where that is the caller's own. Names from files are made printable, each
    on one line. Raises UsageError for anything that is not a plan, InvalidPlan for an order of another network.
    """
    if memory is not None and not (isinstance(graph, Recomputation) or isinstance(plan, (Order, Together))):
        raise UsageError("memory= is that of an order of a graph: report(graph, order, memory=...)")
    if isinstance(graph, OrderProblem):
        if memory is not None:
            raise UsageError("a bare problem has its storages already: leave memory= out")
        return _of_problem(graph, plan, arena)
    if isinstance(graph, Recomputation) and plan is None and arena is None:
        model = stated_model(graph.order.memory, memory, "order")
        return _report(None, graph, None, _lines(graph), model)
    if not isinstance(graph, Graph):
        if plan is not None or arena is not None:
            raise UsageError("a plan is reported by itself, or behind its graph: report(graph, plan)")
        return _report(None, graph, None, _lines(graph))
    if isinstance(plan, Together):
        arena, plan = plan.arena, plan.order
    if isinstance(plan, Order):
        if sorted(plan.steps) != list(range(len(graph.ops))):
            raise InvalidPlan(
                f"{_shown(graph.name)} has {len(graph.ops)} operators; this order, "
                f"of {len(plan.steps)} steps, belongs to another network"
            )
        model = stated_model(plan.memory, memory, "order")
        head = f"{_shown(graph.name)}: {len(graph.ops)} operators, memory model {model.name}"
        lines = [head, *_order_lines(plan, arena), *_peak_lines(graph, plan, model)]
        return _report(graph, plan, arena, lines, model)
    if arena is not None:
        raise UsageError("an arena is reported with its order: report(graph, order, arena)")
    return _report(graph, plan, None, [f"{_shown(graph.name)}: {len(graph.ops)} operators", *_lines(plan)])


def _of_problem(problem: OrderProblem, plan: object, arena: Arena | None) -> Report:
    if not isinstance(plan, Order) or arena is not None:
        raise UsageError("a problem is reported with its order alone: report(problem, order)")
    count = len(problem.predecessors)
    if sorted(plan.steps) != list(range(count)):
        raise InvalidPlan(f"the problem has {count} operators; this order, of {len(plan.steps)} steps, is of another")
    needs = profile(problem, plan.steps)
    step = max(range(count), key=needs.__getitem__, default=None)
    lines = _lines(plan)
    if step is not None:
        lines.append(f"peak at step {step}: operator {plan.steps[step]}, {format_bytes(needs[step])} B live")

    def markup() -> str:
        from downset.reports.page.plan_pages import problem_page
        from downset.reports.page.render import render

        return render(problem_page(problem, plan))

    return Report("\n".join(lines), markup)


def _report(
    graph: Graph | None, plan: object, arena: Arena | None, lines: list[str], memory: MemoryModel | None = None
) -> Report:
    text = "\n".join(lines)

    def markup() -> str:
        from downset.reports.page.of import page_of
        from downset.reports.page.render import render

        return render(page_of(graph, plan, arena, text, memory=memory))

    return Report(text, markup)


def _lines(plan: object) -> list[str]:
    if isinstance(plan, Order):
        model = f", memory model {plan.memory}" if plan.memory else ""
        return [f"{len(plan.steps)} operators{model}", *_order_lines(plan, None)]
    if isinstance(plan, Together):
        return [*_lines(plan.order)[:1], *_order_lines(plan.order, plan.arena)]
    if isinstance(plan, Arena):
        return [f"{len(plan.records)} records", _placed("arena", plan.evidence)]
    if isinstance(plan, SharedObjects):
        sizes = ", ".join(format_bytes(nbytes) for nbytes in plan.object_bytes[:8])
        more = f", {len(plan.object_bytes) - 8} more" if len(plan.object_bytes) > 8 else ""
        return [
            f"{len(plan.records)} records in {len(plan.object_bytes)} objects of {sizes}{more} B",
            _placed("total", plan.evidence),
        ]
    if isinstance(plan, StagePlan):
        return stage_plan_lines(plan)
    if isinstance(plan, StageResult):
        return stage_result_lines(plan)
    if isinstance(plan, Pipeline):
        stages = [
            f"stage {number}: {len(stage.ops)} operators; {'; '.join(stage_rows(plan, stage))}"
            for number, stage in enumerate(plan.stages)
        ]
        return [period_line(plan), utilisation_line(plan), *stages]
    if isinstance(plan, (OrderReport, RecomputeReport)):
        return str(plan).split("\n")
    if isinstance(plan, Recomputation):
        names = ", ".join(map(_shown, plan.recomputed)) or "nothing"
        return [
            *_lines(plan.order),
            f"cost {plan.cost:,.6g}{'  proven least' if plan.evidence.proven else ''}",
            f"run twice: {names}",
        ]
    if isinstance(plan, Fit):
        verdict = verdict_lines(plan)
        told = fit_lines(plan)[len(verdict) :]
        return [
            *map(printable, verdict),
            f"{printable(plan.model)} on {plan.target}",
            *_figures(plan),
            *map(printable, told),
            *step_lines(next_steps(plan)),
        ]
    raise UsageError(f"there is no report of a {type(plan).__name__}")


def _order_lines(order: Order, arena: Arena | None) -> list[str]:
    evidence = order.evidence
    lines = [
        f"peak   {format_bytes(order.peak_bytes):>14} B  bound {format_bytes(evidence.bound)}"
        f"{'  proven optimal' if evidence.proven else ''}"
        f"  ({evidence.method}, {evidence.states} states{evidence.stopped()})",
    ]
    return lines if arena is None else [*lines, _placed("arena", arena.evidence)]


def _placed(what: str, evidence: Evidence) -> str:
    return (
        f"{what:6} {format_bytes(evidence.value):>14} B  bound {format_bytes(evidence.bound)}"
        f"{'  proven optimal' if evidence.proven else ''}  ({evidence.method}{evidence.stopped()})"
    )


def _peak_lines(graph: Graph, order: Order, memory: MemoryModel) -> list[str]:
    cause = peak_cause(graph, order.steps, memory)
    if cause is None:
        return []
    lines = [f"the peak is at step {cause.step}, {_shown(graph.ops[cause.operator].name)!r}, where these live:"]
    lines += [f"  {format_bytes(nbytes):>14} B  {_shown(name)}" for name, nbytes in cause.live[:LISTED]]
    if smaller := cause.live[LISTED:]:
        nbytes = sum(nbytes for _, nbytes in smaller)
        lines.append(f"  {format_bytes(nbytes):>14} B  in {len(smaller):,} more, none of them larger")
    return lines


def _shown(name: str) -> str:
    """A name from a file as a line has it: printable, without its middle where it is long. Pages have it whole."""
    return shortened(printable(name), _NAME_WIDTH)


def _figures(fit: Fit) -> list[str]:
    lines = [
        f"{name:6} {format_bytes(figure.before):>14} B  now {format_bytes(figure.after)}  bound "
        f"{format_bytes(figure.bound)}{'  proven optimal' if figure.proven else ''}"
        for name, figure in (("peak", fit.peak), ("arena", fit.arena))
    ]
    if fit.measured is not None:
        taken = fit.measured
        lines.append(
            f"taken  {format_bytes(taken.before):>14} B  now {format_bytes(taken.after)}  (measured in {taken.runtime})"
        )
    return lines
