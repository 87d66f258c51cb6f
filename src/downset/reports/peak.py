"""The operator and the tensors at the peak of an order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from downset.graph.core import Graph
from downset.memory.liveness import lifetimes, order_problem, profile
from downset.memory.models import MemoryModel
from downset.reports.document import Column, Table
from downset.reports.naming import kind_name
from downset.text import abridged, format_bytes, printable, shortened

__all__ = ["PeakCause", "peak_cause", "peak_lines", "peak_table", "peak_values", "peak_words"]


_NAME_WIDTH = 60
"""The most characters of a name in a line; JSON and the tables of pages have it whole."""


@dataclass(frozen=True, slots=True)
class PeakCause:
    """The cause of an order's peak: the step, its operator, and the live tensors, largest first. `count`: of steps."""

    step: int
    count: int
    kind: str
    operator: str
    nbytes: int
    live: tuple[tuple[str, int], ...]

    __repr__ = abridged

    @property
    def place(self) -> str:
        """The step and its operator: "the peak is at step 3 of 9, Conv 'wide'"."""
        operator = f"{shortened(self.kind, 20)} {shortened(self.operator, 36)!r}"
        return f"the peak is at step {self.step} of {self.count}, {operator}"


def peak_cause(graph: Graph, steps: Sequence[int], memory: str | MemoryModel) -> PeakCause | None:
    """The first step with the largest transient under the memory model; None for a graph without operators."""
    needs = profile(order_problem(graph, memory), steps)
    if not needs:
        return None
    step = max(range(len(needs)), key=needs.__getitem__)
    records = lifetimes(graph, steps, memory).records
    alive = [(record.id, record.nbytes) for record in records if record.start <= step < record.stop]
    alive.sort(key=lambda item: -item[1])
    op = graph.ops[steps[step]]
    return PeakCause(step, len(needs), kind_name(graph, op), op.name, needs[step], tuple(alive))


def peak_values(cause: PeakCause | None) -> dict[str, Any]:
    """The values of an order's peak for a document's `data`."""
    if cause is None:
        return {"peak": None}
    values = {"step": cause.step, "operator": cause.operator, "kind": cause.kind, "bytes": cause.nbytes}
    return {f"peak.{key}": value for key, value in values.items()}


def peak_table(cause: PeakCause | None, *, most: int) -> tuple[Table, ...]:
    """The table of the tensors that live at the peak, of which a terminal shows the `most` largest; none without a
    cause."""
    if cause is None:
        return ()
    smaller = [nbytes for _, nbytes in cause.live[most:]]
    rest = f"{format_bytes(sum(smaller))} B in {len(smaller):,} more, none of them larger" if smaller else ""
    columns = (
        Column("tensor", itemgetter(0), _short, key="name", left=True),
        Column("bytes", itemgetter(1), format_bytes, key="bytes"),
    )
    caption = f"{cause.place}, where these are live"
    return (Table(columns, cause.live, caption, key="peak.tensors", rest=rest, most=most),)


def peak_lines(cause: PeakCause | None, *, most: int) -> list[str]:
    """The same as lines, for an error."""
    if cause is None:
        return []
    largest = (f"  {format_bytes(nbytes):>12} B  {_short(name)}" for name, nbytes in cause.live[:most])
    return [f"{cause.place}, where {format_bytes(cause.nbytes)} B are live; the largest are", *largest]


def peak_words(cause: PeakCause | None) -> list[str]:
    """The same in one sentence, for a message."""
    if cause is None:
        return []
    largest = ", ".join(f"{_short(name)} ({format_bytes(nbytes)} B)" for name, nbytes in cause.live[:2])
    return [f"{cause.place}, where {largest} live"]


def _short(name: str) -> str:
    return shortened(printable(name), _NAME_WIDTH)
