"""Timelines as figures of a page: a Gantt chart with lanes for devices or for the groups of a stage."""

from __future__ import annotations

from collections.abc import Sequence

from downset.reports.axes import Axis
from downset.reports.charts import Chart, Label, Mark
from downset.reports.document import ChartGroup, Table, columns
from downset.reports.timeline import Timeline
from downset.results.pipelines import Pipeline
from downset.text import format_seconds, printable

__all__ = ["gantt_figure", "rows_figure"]

_COLOURS = 7
_ROWS_SHOWN = 4_000
"""Slices that are drawn at most: a page stays below a megabyte."""
_LANE_PX = 20


def gantt_figure(name: str, timelines: Sequence[Timeline], *, unit: str = "frame", timed: bool = True) -> ChartGroup:
    """The timelines below each other on one scale of seconds. `unit`: what the number of a slice counts; slices of one
    number have one colour. `timed`: whether lengths are seconds."""
    charts, tables, shown = [], [], set[int]()
    longest = max([1e-12, *(timeline.end_s for timeline in timelines)])
    room = _ROWS_SHOWN // max(len(timelines), 1)
    for place, timeline in enumerate(timelines):
        marks: list[Mark] = []
        labels: list[Label] = []
        rows: list[tuple[str, ...]] = []
        for number, item in enumerate(timeline.slices[:room]):
            row = f"g{place}-{number}"
            length = item.stop_s - item.start_s
            shown.add(item.frame % _COLOURS)
            marks.append(Mark(item.start_s, item.lane + 0.1, length, 0.8, f"c{item.frame % _COLOURS}", row))
            rows.append(
                (
                    item.name,
                    timeline.lanes[item.lane],
                    str(item.frame),
                    format_seconds(item.start_s),
                    format_seconds(length),
                )
                if timed
                else (item.name, timeline.lanes[item.lane], str(item.frame))
            )
            if unit == "stage":
                labels.append(
                    Label(item.start_s + length / 2, item.lane + 0.5, length, 0.8, item.name.partition(": ")[2])
                )
        axis = Axis(0.0, longest, "time" if timed else "units, one length each", "s" if timed else "count")
        lanes = Axis(0, max(len(timeline.lanes), 1), "", "lanes", timeline.lanes)
        chart = Chart(
            f"{name}: {timeline.heading}",
            axis,
            lanes,
            tuple(marks),
            tuple(labels),
            height_px=max(40, _LANE_PX * len(timeline.lanes)),
        )
        charts.append((f"{timeline.heading.capitalize()}: {timeline.note}", chart))
        titles = ("what", "lane", unit, *(("start", "length") if timed else ()))
        left_out = len(timeline.slices) - len(rows)
        caption = f"Slices, {timeline.heading}" + (f" ({left_out} more are not drawn)" if left_out else "")
        ids = tuple(f"g{place}-{number}" for number in range(len(rows)))
        tables.append(Table(columns(*titles, left=2), rows, caption, ids=ids))
    legend = tuple((f"c{number}", f"{unit} {number}, {number + _COLOURS}, …") for number in sorted(shown))
    return ChartGroup(name, tuple(charts), legend, tuple(tables))


def rows_figure(plan: Pipeline) -> ChartGroup:
    """The rows of the frame that each device computes, block after block. Row 0 is at the top."""
    marks: list[Mark] = []
    labels: list[Label] = []
    rows: list[tuple[str, ...]] = []
    names = [printable(device.name) for device in plan.cluster.devices]
    column = 0
    for number, stage in enumerate(plan.stages):
        for place, block in enumerate(stage.blocks):
            widest = max([1, *(strip.columns[1] for strip in block.strips if strip.columns is not None)])
            for strip in block.strips:
                row = f"r{len(rows)}"
                top, bottom = (edge / block.frame_rows for edge in (strip.start, strip.stop))
                first, last = strip.columns or (0, 1)
                left, wide = column + 0.03 + 0.94 * first / widest, 0.94 * (last - first) / widest
                marks.append(Mark(left, top, wide, bottom - top, f"c{strip.device % 9}", row))
                labels.append(Label(left + wide / 2, (top + bottom) / 2, wide, bottom - top, names[strip.device]))
                across = f" x {strip.columns[0]}-{strip.columns[1]}" if strip.columns is not None else ""
                what = "columns" if block.axis else "rows"
                leads = " (leads)" if strip.device == stage.leader else ""
                rows.append(
                    (
                        names[strip.device] + leads,
                        str(number),
                        str(place),
                        str(len(block.ops)),
                        f"{strip.start}-{strip.stop}{across} of {block.frame_rows} {what}",
                        f"{strip.macs / 1e6:,.3g}",
                        f"{strip.redundant_macs / max(strip.macs, 1):.1%}",
                    )
                )
            column += 1
    x = Axis(0, max(column, 1), "block after block, in the order of the stages", "count")
    y = Axis(0, 1, "", "lanes", ("frame",))
    chart = Chart("Rows of the frame by device", x, y, tuple(marks), tuple(labels), height_px=200)
    legend = tuple((f"c{device % 9}", name) for device, name in enumerate(names))
    table = Table(
        columns("device", "stage", "block", "operators", "rows", "MMACs", "redundant"),
        rows,
        "Rows by device",
        ids=tuple(f"r{place}" for place in range(len(rows))),
    )
    return ChartGroup(
        "Each device's rows on the frame, from the top of the frame down.", (("", chart),), legend, (table,)
    )
