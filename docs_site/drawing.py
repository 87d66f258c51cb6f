"""Shapes of the pictures: sheets of charts, lines and boxes, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from downset.reports.charts import Chart, legend_of, sheet, stacked

__all__ = ["WIDTH_PX", "box", "chart_sheet", "line"]

WIDTH_PX = 960


def chart_sheet(caption: str, charts: Sequence[tuple[str, Chart]], legend: Mapping[str, str] | None = None) -> str:
    shown, top = legend_of(legend or {}, width_px=WIDTH_PX)
    drawn, bottom = stacked(charts, width_px=WIDTH_PX, top_px=top if legend else 44.0)
    return sheet(caption, shown + drawn, width_px=WIDTH_PX, height_px=int(bottom) + 8)


def line(start: tuple[float, float], stop: tuple[float, float], colour: str, px: float, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    path = f"M{start[0]:g} {start[1]:g}L{stop[0]:g} {stop[1]:g}"
    return f'<path d="{path}" stroke="{colour}" stroke-width="{px:g}"{dash} fill="none"/>'


def box(x: float, y: float, width: float, height: float, style: str, first: str, second: str) -> str:
    middle = x + width / 2
    return (
        f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
        f'<text x="{middle:g}" y="{y + height / 2 - 3:g}" text-anchor="middle" font-size="13" font-weight="600" '
        f'style="fill:#111">{escape(first)}</text>'
        f'<text x="{middle:g}" y="{y + height / 2 + 14:g}" text-anchor="middle" font-size="11.5" style="fill:#111">'
        f"{escape(second)}</text>"
    )
