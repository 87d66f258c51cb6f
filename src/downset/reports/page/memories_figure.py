"""Both memories as a figure of a page: what lies where at each step, with the moves between them."""

from __future__ import annotations

from collections.abc import Sequence

from downset.reports.axes import Axis
from downset.reports.charts import Chart, Label, Mark
from downset.reports.document import ChartGroup, Table, columns
from downset.results.memories_fit import CopySpan, MemoriesFit, MovedCopy
from downset.text import format_bytes, printable, shortened

__all__ = ["LEGEND", "memories_figure", "memory_charts"]

_FAST, _SLOW, _STORE, _LOAD = "c0", "c1", "c6", "c2"
LEGEND = (
    (_FAST, "a tensor in fast memory"),
    (_SLOW, "a tensor in slow memory"),
    (_STORE, "a store: fast to slow"),
    (_LOAD, "a load: slow to fast"),
)
_LABELS = 12
"""The largest copies of each memory, which carry their names."""


def memories_figure(fit: MemoriesFit) -> ChartGroup:
    """Fast memory above, slow memory below, and between them a lane of stores and a lane of loads; on one axis of the
    file's steps, moves included."""
    charts = memory_charts(fit.spans, fit.moves)
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
    note = "Each rectangle is a copy of a tensor, as wide as it is needed and as high as its bytes."
    return ChartGroup("Both memories over time, with the moves between them.", charts, LEGEND, (table,), note)


def memory_charts(
    spans: Sequence[CopySpan], moves: Sequence[MovedCopy], *, titled: bool = False
) -> tuple[tuple[str, Chart], ...]:
    """The charts with their headings. `titled`: rectangles carry their text."""
    steps = max([1, *(one.stop for one in spans)])
    x = Axis(0, steps, "step of the file: operators and moves one after another", "steps")
    return (
        ("Fast memory", _chart(spans, moves, x, fast=True, titled=titled)),
        ("Moves", _lanes(moves, x)),
        ("Slow memory", _chart(spans, moves, x, fast=False, titled=titled)),
    )


def _chart(spans: Sequence[CopySpan], moves: Sequence[MovedCopy], x: Axis, *, fast: bool, titled: bool) -> Chart:
    marks, labels = [], []
    placed = [(place, one) for place, one in enumerate(spans) if one.fast == fast]
    largest = sorted(placed, key=lambda item: -item[1].nbytes)[:_LABELS]
    for place, one in placed:
        title = f"{one.name}: {format_bytes(one.nbytes)} B at {format_bytes(one.offset)}" if titled else ""
        style, row = _FAST if fast else _SLOW, "" if titled else f"m{place}"
        marks.append(Mark(one.start, one.offset, one.stop - one.start, one.nbytes, style, row, title))
    labels = [_label(one) for _, one in largest]
    for move in moves:  # the side of a move that lies in this memory
        offset = move.target if move.into_fast == fast else move.source
        marks.append(Mark(move.step, offset, 1, move.nbytes, _LOAD if move.into_fast else _STORE, ""))
    top = max([1, *(one.offset + one.nbytes for _, one in placed)])
    name = "fast" if fast else "slow"
    return Chart(f"Offsets in {name} memory", x, Axis(0, top, "offset", "bytes"), tuple(marks), tuple(labels))


def _label(one: CopySpan) -> Label:
    middle = ((one.start + one.stop) / 2, one.offset + one.nbytes / 2)
    return Label(*middle, one.stop - one.start, one.nbytes, shortened(printable(one.name), 24))


def _lanes(moves: Sequence[MovedCopy], x: Axis) -> Chart:
    marks = tuple(
        Mark(move.step, 0.1 if move.into_fast else 1.1, 1, 0.8, _LOAD if move.into_fast else _STORE) for move in moves
    )
    lanes = Axis(0, 2, "", "lanes", ("loads ↑", "stores ↓"))
    return Chart("Moves between the memories", x, lanes, marks, height_px=44)
