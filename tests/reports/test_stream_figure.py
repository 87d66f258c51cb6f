"""The picture of a stream: its rectangles are the rows of the record."""

from dataclasses import replace

import numpy as np
import pytest

from downset.reports.charts import chart_svg
from downset.reports.page.stream_figure import stream_figure
from downset.results.stream_fit import KeptState, StreamFit
from downset.results.streams import State, StreamRecord

RECORD = StreamRecord(40, 4, "x", 1, "states", 9, ())


def stream_of(kept):
    return StreamFit(RECORD, 9, None, 8, 7, 6, 5, tuple(kept))


@pytest.mark.parametrize("seed", range(10))
def test_each_lane_has_the_rows_that_are_found_and_left(seed):
    random = np.random.default_rng(seed)
    kept = []
    for place in range(5):
        rows = int(random.integers(6, 60))
        first, shift = int(random.integers(0, rows // 2)), int(random.integers(1, 3))
        stop = int(random.integers(first + 1, rows - shift + 1))
        age = int(random.random() < 0.3)
        kept.append(KeptState(State(f"state/<{place}>", f"<{place}>", 1, (first, stop), shift, "", age), rows, 2, 64))
    figure = stream_figure(stream_of(kept))
    ((_, chart),), (table,) = figure.charts, figure.tables
    read = [one for one in kept if not one.state.age]
    expected = [
        (lane, (a + d * late, b + d * late))
        for lane, one in enumerate(read)
        for (a, b), d in [(one.state.rows, one.state.shift)]
        for late in (0, 1)
    ]
    drawn = [
        (int(mark.y), tuple(round(edge * read[int(mark.y)].rows) for edge in (mark.x, mark.x + mark.width)))
        for mark in chart.marks
    ]
    assert drawn == expected
    assert all(mark.x + mark.width <= 1 + 1e-9 and mark.y + mark.height <= int(mark.y) + 1 for mark in chart.marks)
    assert [mark.row for mark in chart.marks] == [f"s{lane}" for lane, _ in expected]
    assert len(table.rows) == len(read) == len(chart.y.names)
    assert "<0>" not in chart_svg(replace(chart))
