"""Shared objects as a figure of a page: a lane for each object shows which record it holds when."""

from __future__ import annotations

from downset.reports.axes import Axis
from downset.reports.charts import Chart, Mark
from downset.reports.document import ChartGroup, Table, columns
from downset.results.plans import SharedObjects
from downset.text import format_bytes, format_size

__all__ = ["objects_figure"]


def objects_figure(shared: SharedObjects) -> ChartGroup:
    """Each record in its object, and the table of the records."""
    marks, rows = [], []
    for place, (record, holder) in enumerate(zip(shared.records, shared.object_of, strict=True)):
        for start, stop in record.active():
            marks.append(Mark(start, holder + 0.1, stop - start, 0.8, f"c{place % 9}", f"s{place}"))
        rows.append((record.id, format_bytes(record.nbytes), str(holder), f"{record.start}-{record.stop}"))
    first = min([0, *(record.start for record in shared.records)])
    last = max([1, *(record.stop for record in shared.records)])
    names = tuple(f"{place}: {format_size(nbytes)}" for place, nbytes in enumerate(shared.object_bytes))
    chart = Chart(
        "Shared objects",
        Axis(first, last, "step", "steps"),
        Axis(0, max(1, len(names)), "", "lanes", names),
        tuple(marks),
        height_px=max(40, 20 * len(names)),
    )
    ids = tuple(f"s{place}" for place in range(len(rows)))
    table = Table(columns("record", "bytes", "object", "steps"), rows, "Records", ids=ids)
    return ChartGroup("Shared objects: each rectangle is a record in its object.", (("", chart),), (), (table,))
