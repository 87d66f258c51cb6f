"""Both memories as a figure of a page: what lies where at each step, with the moves between them."""

from __future__ import annotations

from downset.reports.axes import Axis
from downset.reports.charts import Chart, Label, Mark
from downset.reports.document import ChartGroup, Table, columns
from downset.results.memories_fit import CopySpan, MemoriesFit
from downset.text import format_bytes, printable, shortened

__all__ = ["memories_figure"]

_FAST, _SLOW, _STORE, _LOAD = "c0", "c1", "c6", "c2"
_LABELS = 12
"""The largest copies of each memory, which carry their names."""


def memories_figure(fit: MemoriesFit) -> ChartGroup:
    """Fast memory above, slow memory below, and between them a lane of stores and a lane of loads; on one axis of the
    file's steps, moves included."""
    steps = max([1, *(one.stop for one in fit.spans)])
    x = Axis(0, steps, "step of the file: operators and moves one after another", "steps")
    charts = (
        ("Fast memory", _chart(fit, x, fast=True)),
        ("Moves", _lanes(fit, x)),
        ("Slow memory", _chart(fit, x, fast=False)),
    )
    rows = [
        (
            printable(one.name),
            "fast" if one.fast else "slow",
            format_bytes(one.offset),
            format_bytes(one.nbytes),
            f"{one.start}-{one.stop}",
        )
        for one in fit.spans
    ]
    ids = tuple(f"m{place}" for place in range(len(rows)))
    table = Table(columns("tensor", "memory", "offset", "bytes", "steps", left=2), rows, "Copies of tensors", ids=ids)
    legend = (
        (_FAST, "a tensor in fast memory"),
        (_SLOW, "a tensor in slow memory"),
        (_STORE, "a store: fast to slow"),
        (_LOAD, "a load: slow to fast"),
    )
    note = "Each rectangle is a copy of a tensor, as wide as it is needed and as high as its bytes."
    return ChartGroup("Both memories over time, with the moves between them.", charts, legend, (table,), note)


def _chart(fit: MemoriesFit, x: Axis, *, fast: bool) -> Chart:
    marks, labels = [], []
    placed = [(place, one) for place, one in enumerate(fit.spans) if one.fast == fast]
    largest = sorted(placed, key=lambda item: -item[1].nbytes)[:_LABELS]
    for place, one in placed:
        marks.append(
            Mark(one.start, one.offset, one.stop - one.start, one.nbytes, _FAST if fast else _SLOW, f"m{place}")
        )
    labels = [_label(one) for _, one in largest]
    for move in fit.moves:  # the side of a move that lies in this memory
        offset = move.target if move.into_fast == fast else move.source
        marks.append(Mark(move.step, offset, 1, move.nbytes, _LOAD if move.into_fast else _STORE, ""))
    top = max([1, *(one.offset + one.nbytes for _, one in placed)])
    name = "fast" if fast else "slow"
    return Chart(f"Offsets in {name} memory", x, Axis(0, top, "offset", "bytes"), tuple(marks), tuple(labels))


def _label(one: CopySpan) -> Label:
    middle = ((one.start + one.stop) / 2, one.offset + one.nbytes / 2)
    return Label(*middle, one.stop - one.start, one.nbytes, shortened(printable(one.name), 24))


def _lanes(fit: MemoriesFit, x: Axis) -> Chart:
    marks = tuple(
        Mark(move.step, 0.1 if move.into_fast else 1.1, 1, 0.8, _LOAD if move.into_fast else _STORE)
        for move in fit.moves
    )
    lanes = Axis(0, 2, "", "lanes", ("loads ↑", "stores ↓"))
    return Chart("Moves between the memories", x, lanes, marks, height_px=44)
