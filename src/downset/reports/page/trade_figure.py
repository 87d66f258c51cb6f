"""A figure of memory against a cost: a dot for each candidate, and a line through those that no other beats in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from downset.reports.axes import Axis, Unit
from downset.reports.charts import Chart, Curve, Level, Mark
from downset.reports.document import ChartGroup, Table
from downset.text import format_bytes

__all__ = ["TradeAxes", "TradePoint", "trade_figure"]


@dataclass(frozen=True, slots=True)
class TradePoint:
    """A candidate of this cost and these bytes. `role`: chosen, or the original with which all are compared."""

    cost: float
    nbytes: float
    role: Literal["chosen", "other", "original"] = "other"


@dataclass(frozen=True, slots=True)
class TradeAxes:
    """The labels of both axes, and the unit of the cost."""

    cost: str
    unit: Unit
    nbytes_label: str


_STYLES = {"chosen": "c6", "other": "c5", "original": "c8"}


def trade_figure(
    title: str,
    points: Sequence[TradePoint],
    table: Table,
    axes: TradeAxes,
    *,
    original_named: str = "as the file is",
    limit_bytes: int | None = None,
) -> ChartGroup:
    """Points, each for a row of the table, with a line through those that no other beats in both. The legend calls the
    original `original_named`. `limit_bytes`: a line is drawn there if it lies within the axis of the points."""
    unit = axes.unit
    ids = tuple(f"{unit}{place}" for place in range(len(points)))
    if unit == "s":  # a browser draws no dots in units that are much larger than the picture
        points, unit = [replace(point, cost=1e6 * point.cost) for point in points], "µs"
    x_axis = _around([point.cost for point in points], axes.cost, unit)
    y_axis = _around([point.nbytes for point in points], axes.nbytes_label, "bytes")
    places = [(point.cost, point.nbytes) for point in points]
    colours = [_STYLES[point.role] for point in points]
    size = _dot_px(places, x_axis, y_axis)
    marks = [
        Mark(x, y, 0.0, 0.0, colour, name, dot_px=size if colour == "c5" else max(size, _NAMED_PX))
        for (x, y), colour, name in zip(places, colours, ids, strict=True)
    ]
    marks.sort(key=lambda mark: ("c8", "c6", "c5").index(mark.style))  # the smaller dots lie over those with a name
    front: list[tuple[float, float]] = []
    for x, y in sorted(places):
        if not front or y < front[-1][1]:
            front.append((x, y))
    levels = []
    if limit_bytes is not None and y_axis.start <= limit_bytes <= y_axis.start + y_axis.extent:
        levels.append(Level(limit_bytes, f"limit {format_bytes(limit_bytes)} B", "limit"))
    chart = Chart(
        title,
        x_axis,
        y_axis,
        tuple(marks),
        curves=(Curve(tuple(front), "after"),),
        levels=tuple(levels),
        height_px=_TRADE_PX,
    )
    chosen = frozenset(place for place, point in enumerate(points) if point.role == "chosen")
    legend = [("c6", "chosen"), ("c5", "other candidates"), ("c8", original_named)]
    shown = tuple(item for item in legend if item[0] in colours)
    return ChartGroup(title, (("", chart),), shown, (replace(table, ids=ids, marked=chosen),))


def _around(values: Sequence[float], label: str, unit: Unit) -> Axis:
    """An axis with room on both sides of the values. It starts at 0 unless all values are far from 0."""
    least, most = min(values), max(values)
    start = 0.0 if least < 0.5 * most or least == most else least
    room = 0.06 * ((most - start) or most or 1.0)
    return Axis(start - room, most + room, label, unit)


_TRADE_PX = 280
_NAMED_PX = 10.0
"""The least diameter of the dots that the legend names."""
_NARROW_PX = 270
"""The width of a plot in a window of 400 pixels."""


def _dot_px(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> float:
    """The diameter of dots at which none covers another in a narrow window, within the bounds of good visibility."""
    apart = [
        math.hypot((one[0] - other[0]) / x.extent * _NARROW_PX, (one[1] - other[1]) / y.extent * _TRADE_PX)
        for place, one in enumerate(points)
        for other in points[:place]
        if one != other
    ]
    return min(11.0, max(4.0, min(apart, default=11.0)))
