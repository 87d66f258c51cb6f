"""The rows that a stream keeps, as a figure of a page: by tensor, what a call finds and what it leaves for the next."""

from __future__ import annotations

from downset.reports.axes import Axis
from downset.reports.charts import Chart, Label, Mark
from downset.reports.document import ChartGroup, Table, columns
from downset.results.stream_fit import KeptState, StreamFit
from downset.text import format_bytes, printable, shortened

__all__ = ["stream_figure"]

_FOUND, _LEFT = "c0", "c1"
_LANE_PX = 26
_LANES = 200
"""States that are drawn at most."""


def stream_figure(stream: StreamFit) -> ChartGroup:
    """A lane for each state that is read, in the window's order: its rows at their places among all rows of the
    tensor."""
    drawn = [one for one in stream.kept if not one.state.age][:_LANES]
    marks: list[Mark] = []
    labels: list[Label] = []
    for lane, one in enumerate(drawn):
        for place, (first, stop) in enumerate(_spans(one)):
            begin, width = first / one.rows, (stop - first) / one.rows
            top, height = lane + 0.08 + 0.44 * place, 0.4
            marks.append(Mark(begin, top, width, height, (_FOUND, _LEFT)[place], f"s{lane}"))
            labels.append(Label(begin + width / 2, top + height / 2, width, height, f"{first} to {stop}"))
    names = tuple(shortened(printable(one.state.tensor), 24) for one in drawn)
    x = Axis(0.0, 1.0, "rows of the window, from the oldest to the newest, as a share of each tensor's", "share")
    y = Axis(0, max(len(drawn), 1), "", "lanes", names)
    chart = Chart("Rows that are kept", x, y, tuple(marks), tuple(labels), height_px=max(40, _LANE_PX * len(drawn)))
    rows = [
        (
            printable(one.state.tensor),
            *(f"{first} to {stop}" for first, stop in _spans(one)),
            str(one.rows),
            str(one.new),
            format_bytes(one.nbytes),
        )
        for one in drawn
    ]
    titles = ("tensor", "before", "after", "rows", "new rows", "bytes")
    table = Table(columns(*titles), rows, "States", ids=tuple(f"s{lane}" for lane in range(len(drawn))))
    legend = ((_FOUND, "rows that a call finds"), (_LEFT, "rows that it leaves, which are the next call's"))
    return ChartGroup("Rows of the window's tensors that are kept from call to call.", (("", chart),), legend, (table,))


def _spans(one: KeptState) -> tuple[tuple[int, int], tuple[int, int]]:
    """The rows that a state holds before a call, and those that it holds after it, of the window of that call."""
    first, stop = one.state.rows
    return (first, stop), (first + one.state.shift, stop + one.state.shift)
