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

__all__ = ["PeakCause", "peak_cause", "peak_of"]


@dataclass(frozen=True, slots=True)
class PeakCause:
    """The cause of an order's peak: the step, its operator, and the live tensors, largest first."""

    step: int
    operator: int
    nbytes: int
    live: tuple[tuple[str, int], ...]

    __repr__ = abridged


def peak_cause(graph: Graph, steps: Sequence[int], memory: str | MemoryModel) -> PeakCause | None:
    """The first step with the largest transient under the memory model; None for a graph without operators."""
    needs = profile(order_problem(graph, memory), steps)
    if not needs:
        return None
    step = max(range(len(needs)), key=needs.__getitem__)
    records = lifetimes(graph, steps, memory).records
    alive = [(record.id, record.nbytes) for record in records if record.start <= step < record.stop]
    alive.sort(key=lambda item: -item[1])
    return PeakCause(step, steps[step], needs[step], tuple(alive))


_NAME_WIDTH = 60
"""The most characters of a name in a line; JSON and the tables of pages have it whole."""


def peak_of(
    graph: Graph, steps: Sequence[int], memory: str | MemoryModel, *, most: int
) -> tuple[dict[str, Any], tuple[Table, ...]]:
    """The values of an order's peak for a document's `data`, and the table of the tensors that live then, of which a
    terminal shows the `most` largest. No table for a graph without operators."""
    cause = peak_cause(graph, steps, memory)
    if cause is None:
        return {"peak": None}, ()
    op = graph.ops[cause.operator]
    kind = kind_name(graph, op)
    smaller = [nbytes for _, nbytes in cause.live[most:]]
    table = Table(
        (
            Column("tensor", itemgetter(0), _short, key="name", left=True),
            Column("bytes", itemgetter(1), format_bytes, key="bytes"),
        ),
        cause.live,
        f"the peak is at step {cause.step} of {len(graph.ops)}, {shortened(kind, 20)} {shortened(op.name, 36)!r}, "
        "where these are live",
        key="peak.tensors",
        rest=f"{format_bytes(sum(smaller))} B in {len(smaller):,} more, none of them larger" if smaller else "",
        most=most,
    )
    values = {"step": cause.step, "operator": op.name, "kind": kind, "bytes": cause.nbytes}
    return {f"peak.{key}": value for key, value in values.items()}, (table,)


def _short(name: str) -> str:
    return shortened(printable(name), _NAME_WIDTH)
