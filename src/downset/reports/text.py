"""Reports any plan: as text, as a page and in a notebook."""

from __future__ import annotations

import os
from pathlib import Path
from typing import overload

from downset.compiled import OrderReport, PeakReport, RecomputeReport
from downset.errors import UsageError
from downset.graph.core import Graph
from downset.memory.liveness import OrderProblem
from downset.memory.models import MemoryModel, MemoryName
from downset.process.whole_files import write_whole
from downset.reports.document import PAGE_SUFFIXES, Document
from downset.reports.documents import document_of
from downset.reports.terminal import text_of
from downset.results.fit import Fit, Recomputation
from downset.results.pipelines import Pipeline
from downset.results.plans import Arena, Order, SharedObjects, StagePlan, Together
from downset.results.stages import StageResult
from downset.text import shortened

__all__ = ["Report", "report"]

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
    | PeakReport
    | RecomputeReport
)


class Report(str):
    """One screen of plain text, and the same as a self-contained HTML page: `page()` returns its markup, `save` writes
    it, and a notebook shows it. Pages need Jinja2 (extra `report`); the text does not."""

    _document: Document

    def __new__(cls, document: Document) -> Report:
        report = super().__new__(cls, text_of(document))
        report._document = document
        return report

    def __repr__(self) -> str:
        return f"Report({shortened(self.partition(chr(10))[0], 60)!r}, {len(self.splitlines())} lines)"

    def page(self) -> str:
        """The HTML text of the page. Raises UnsupportedError if Jinja2 is not installed."""
        from downset.reports.page.render import render

        return render(self._document)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, completely or not at all. Raises UsageError if it cannot be written, or if the
        file's name does not end in .html or .htm; a pipe or a device may have any name."""
        file = Path(path)
        if file.suffix.lower() not in PAGE_SUFFIXES and (file.is_file() or not file.exists()):
            raise UsageError(f"save writes an HTML page: {file} must end in {' or '.join(PAGE_SUFFIXES)}")
        write_whole(path, self.page().encode())

    def _repr_html_(self) -> str | None:
        """The page for a notebook; None if Jinja2 is not installed, so that the notebook shows the text."""
        from downset.errors import UnsupportedError
        from downset.reports.page.render import embedded

        try:
            return embedded(self.page())
        except UnsupportedError:
            return None


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
    return Report(document_of(graph, plan, arena, memory=memory))
