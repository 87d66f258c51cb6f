"""Draws charts as SVG text: rectangles, curves and levels in data units on two labelled axes.

A chart is drawn for a fixed width. The page's script redraws axes and labels for the available width and for the part
that is zoomed into. The content of the plot is in data units and is drawn once. Names are escaped here, so text from a
file never becomes markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from downset.reports.axes import Axis, tick_text, ticks
from downset.text import printable, shortened

__all__ = [
    "STYLE",
    "Chart",
    "Curve",
    "Label",
    "Level",
    "Mark",
    "Moment",
    "chart_svg",
    "legend_of",
    "listed",
    "sheet",
    "stacked",
]

LEFT_PX, RIGHT_PX, TOP_PX, BOTTOM_PX = 86, 14, 8, 36
_CHARACTER_PX = 6.4
"""The mean width of a character of 11 px: how much text fits into a rectangle."""

STYLE = """
.sheet{--ink:#1b1f24;--soft:#5c6670;--grid:#dfe3e8;--surface:#fff}
.chart{font:12px system-ui,sans-serif;color:var(--ink)}
.chart text{fill:var(--soft);font-size:11.5px}.chart .frame{fill:var(--plot,#f6f8fa)}.chart .grid{stroke:var(--grid)}
.chart .marks rect{stroke:var(--surface,#fff);stroke-width:.6;vector-effect:non-scaling-stroke}
.chart .label{fill:#111;font-size:11px;pointer-events:none;paint-order:stroke;stroke:#fffc;stroke-width:2.5px}
.chart .note{fill:var(--ink);font-weight:600;font-size:11px;paint-order:stroke;stroke:var(--surface);stroke-width:3px}
.chart .level,.chart .moment,.chart .curve{fill:none;stroke-width:1.5;vector-effect:non-scaling-stroke}
.level.limit{stroke:#d55e00;stroke-width:2}.level.bound{stroke:#0072b2;stroke-dasharray:6 4}
.level.total{stroke:var(--soft);stroke-dasharray:2 3}.moment{stroke:var(--ink);stroke-dasharray:3 3}
.curve.before{stroke:#8a939c;stroke-dasharray:5 3}.curve.after{stroke:#0072b2;stroke-width:2}
.c0{fill:#56b4e9}.c1{fill:#e69f00}.c2{fill:#009e73}.c3{fill:#cc79a7}.c4{fill:#f0e442}.c5{fill:#0072b2}
.dot{fill:none;stroke-linecap:round;vector-effect:non-scaling-stroke}
.dot.c5{stroke:#0072b2}.dot.c6{stroke:#d55e00}.dot.c8{stroke:#999}
.c6{fill:#d55e00}.c7{fill:#b5a08a}.c8{fill:#999}.idle{fill:#0000}.moved{fill:var(--ink)}
.scratch{fill:#9993}.tail{fill:#7a5fa266}
"""
"""Okabe and Ito's colours, which colour-blind people tell apart; the same in light and dark."""

_DARK = (
    "@media(prefers-color-scheme:dark){.sheet{--ink:#e6e9ec;--soft:#a8b1ba;--grid:#333b44;--surface:#14181d;"
    "--plot:#1c2229}.sheet>rect{fill:#14181d}}"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A rectangle in data units. `y`: its lower edge, or its upper one if lanes run downwards. `row`: the id of the row
    that describes it, in the table behind the chart. `dot_px`: if given, a dot of this diameter at the corner (x, y) in
    place of the rectangle; its size stays the same under zoom."""

    x: float
    y: float
    width: float
    height: float
    style: str
    row: str = ""
    title: str = ""
    dot_px: float = 0.0


@dataclass(frozen=True, slots=True)
class Label:
    """Text in the middle of a rectangle, shortened to what fits into it."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A polyline through `points`."""

    points: tuple[tuple[float, float], ...]
    style: str


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line at `y`, named at its right end."""

    y: float
    text: str
    style: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A vertical line at `x`, named at its top."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """`height_px`: the height of the plot without the axes. `x` is drawn with ticks unless `bare`. `title`: the chart's
    name for screen readers. `titles`: whether every mark carries its text, for a picture without a table."""

    title: str
    x: Axis
    y: Axis
    marks: tuple[Mark, ...] = ()
    labels: tuple[Label, ...] = ()
    curves: tuple[Curve, ...] = ()
    levels: tuple[Level, ...] = ()
    moments: tuple[Moment, ...] = ()
    height_px: int = 260
    bare: bool = False

    @property
    def full_height_px(self) -> int:
        return self.height_px + TOP_PX + (6 if self.bare else BOTTOM_PX)


def chart_svg(chart: Chart, *, width_px: int = 960, top_px: float | None = None, height_px: int | None = None) -> str:
    """The chart as one `<svg>` element. `top_px`: its upper edge in an enclosing SVG."""
    view = _View(chart, width_px)
    height = chart.full_height_px if height_px is None else height_px
    place = "" if top_px is None else f' y="{_n(top_px)}" width="{width_px}" height="{height}"'
    geometry = {
        "x": [chart.x.start, chart.x.start + chart.x.extent, chart.x.unit, chart.x.label],
        "y": [chart.y.start, chart.y.start + chart.y.extent, chart.y.unit, chart.y.label],
        "names": [printable(name) for name in chart.y.names],
        "height": chart.height_px,
        "top": view.top,
        "bare": chart.bare,
    }
    curves = [_curve(chart, curve) for curve in chart.curves]
    dots = any(mark.dot_px for mark in chart.marks)  # they lie over curves, which lie over rectangles
    return "".join(
        [
            f'<svg class="chart" viewBox="0 0 {width_px} {height}"{place} role="img" tabindex="0" '
            f'aria-label="{_text(chart.title)}" data-chart="{escape(json.dumps(geometry))}">',
            f'<rect class="frame" x="{LEFT_PX}" y="{view.top}" width="{view.width}" height="{chart.height_px}"/>',
            f'<g class="axes">{_axes(chart, view)}</g>',
            f'<svg class="plot" x="{LEFT_PX}" y="{view.top}" width="{view.width}" height="{chart.height_px}" '
            f'viewBox="{_n(chart.x.start)} 0 {_n(chart.x.extent)} {_n(chart.y.extent)}" preserveAspectRatio="none">',
            *(curves if dots else ()),
            '<g class="marks">',
            *(_mark(chart, mark) for mark in chart.marks),
            "</g>",
            *(() if dots else curves),
            *(
                f'<path class="level {level.style}" d="M{_n(chart.x.start)} {_n(_down(chart, level.y))}'
                f'H{_n(chart.x.start + chart.x.extent)}"/>'
                for level in chart.levels
            ),
            *(f'<path class="moment" d="M{_n(moment.x)} 0V{_n(chart.y.extent)}"/>' for moment in chart.moments),
            "</svg>",
            f'<g class="overlay">{_overlay(chart, view)}</g>',
            "</svg>",
        ]
    )


class _View:
    """The scale from data units to pixels."""

    def __init__(self, chart: Chart, width_px: int) -> None:
        self.chart = chart
        self.top = TOP_PX
        self.width = width_px - LEFT_PX - RIGHT_PX

    def x(self, value: float) -> float:
        return LEFT_PX + (value - self.chart.x.start) / self.chart.x.extent * self.width

    def y(self, value: float) -> float:
        return self.top + _down(self.chart, value) / self.chart.y.extent * self.chart.height_px


def _down(chart: Chart, y: float) -> float:
    """The distance of `y` from the top of the plot, in data units. Lanes run downwards, all other units upwards."""
    return y - chart.y.start if chart.y.unit == "lanes" else chart.y.start + chart.y.extent - y


def _mark(chart: Chart, mark: Mark) -> str:
    top = _down(chart, mark.y if chart.y.unit == "lanes" else mark.y + mark.height)
    row = f' data-r="{mark.row}"' if mark.row else ""
    if mark.dot_px:  # a line of length 0: its round ends form a circle, as its width is not scaled
        path = f"M{_n(mark.x)} {_n(top)}h0"
        return f'<path d="{path}" class="dot {mark.style}" stroke-width="{_n(mark.dot_px)}"{row}/>'
    start = (
        f'<rect x="{_n(mark.x)}" y="{_n(top)}" width="{_n(mark.width)}" height="{_n(mark.height)}" '
        f'class="{mark.style}"{row}'
    )
    return f"{start}><title>{_text(mark.title)}</title></rect>" if mark.title else f"{start}/>"


def _curve(chart: Chart, curve: Curve) -> str:
    points = " ".join(f"{_n(x)},{_n(_down(chart, y))}" for x, y in curve.points)
    return f'<polyline class="curve {curve.style}" points="{points}"/>'


def _axes(chart: Chart, view: _View) -> str:
    parts = []
    floor = view.top + chart.height_px
    for tick in [] if chart.bare else ticks(chart.x):
        place = _n(view.x(tick))
        parts.append(f'<path class="grid" d="M{place} {view.top}V{floor}"/>')
        anchor = "start" if tick <= chart.x.start else "middle"  # beside the label of the other axis's first tick
        parts.append(f'<text x="{place}" y="{floor + 14}" text-anchor="{anchor}">{tick_text(tick, chart.x)}</text>')
    if chart.y.unit == "lanes":
        for lane, name in enumerate(chart.y.names):
            shown = _text(shortened(name, 12))
            parts.append(f'<text x="{LEFT_PX - 6}" y="{_n(view.y(lane + 0.5) + 4)}" text-anchor="end">{shown}</text>')
    else:
        for tick in ticks(chart.y):
            place = _n(view.y(tick))
            parts.append(f'<path class="grid" d="M{LEFT_PX} {place}H{LEFT_PX + view.width}"/>')
            parts.append(
                f'<text x="{LEFT_PX - 6}" y="{_n(view.y(tick) + 4)}" text-anchor="end">'
                f"{tick_text(tick, chart.y)}</text>"
            )
        middle = _n(view.top + chart.height_px / 2)
        parts.append(
            f'<text transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">{_text(chart.y.label)}</text>'
        )
    if not chart.bare:
        parts.append(
            f'<text x="{_n(LEFT_PX + view.width / 2)}" y="{floor + 30}" text-anchor="middle">'
            f"{_text(chart.x.label)}</text>"
        )
    return "".join(parts)


class _LabelRoom:
    """The free room for labels in a picture: boxes of pixels (left, top, right, bottom) that must not overlap. `lines`:
    the heights of the levels."""

    def __init__(self, view: _View, lines: Sequence[float]) -> None:
        self._view, self._lines, self._taken = view, lines, list[tuple[float, float, float, float]]()

    def take(self, x: float, y: float, wide: float) -> bool:
        """Take the room of a line of text that ends at `x` and stands on `y`, if it is free; whether it was."""
        box = (x - wide, y - 10, x, y + 3)
        inside = box[0] >= LEFT_PX and x <= LEFT_PX + self._view.width + 1
        if not inside or any(
            box[0] < right and left < box[2] and box[1] < bottom and top < box[3]
            for left, top, right, bottom in self._taken
        ):
            return False
        self._taken.append(box)
        return True

    def note(self, text: str, y: float) -> tuple[str, float, float] | None:
        """The text of a level, or its start up to a comma, with its right end and its foot. It stands above the line or
        below it, where no other line crosses it, as far to the right as there is room; None if there is no room."""
        edge = LEFT_PX + self._view.width - 4.0
        rights = (edge, *sorted((left - 8 for left, *_ in self._taken), reverse=True))
        texts = dict.fromkeys((text, text.split(", ")[0]))
        places = [(text, right, foot) for text in texts for right in rights for foot in (y - 4, y + 13)]
        places.sort(key=lambda place: any(place[2] - 10 < line < place[2] + 3 for line in self._lines))
        return next((place for place in places if self.take(place[1], place[2], 7.0 * len(place[0]))), None)


def _overlay(chart: Chart, view: _View) -> str:
    """Names of levels, moments and rectangles, in this order. Names without room are left out."""
    free, parts = _LabelRoom(view, [view.y(level.y) for level in chart.levels]), []
    for level in chart.levels:
        text, right, foot = free.note(level.text, view.y(level.y)) or ("", LEFT_PX, view.y(level.y))
        parts.append(
            f'<text class="note" x="{_n(right)}" y="{_n(foot)}" text-anchor="end" '
            f'data-y="{_n(level.y)}" data-text="{_text(level.text)}">{_text(text)}</text>'
        )
    for moment in chart.moments:
        late = moment.x > chart.x.start + 0.6 * chart.x.extent
        anchor_x, wide = view.x(moment.x) + (-5 if late else 5), 7.0 * len(moment.text)
        feet = (view.top + 12.0 + 14 * line for line in range(chart.height_px // 14))
        there = next((y for y in feet if free.take(anchor_x if late else anchor_x + wide, y, wide)), None)
        parts.append(
            f'<text class="note" x="{_n(anchor_x)}" y="{_n(view.top + 12 if there is None else there)}" '
            f'text-anchor="{"end" if late else "start"}" data-x="{_n(moment.x)}" data-text="{_text(moment.text)}">'
            f"{'' if there is None else _text(moment.text)}</text>"
        )
    for label in chart.labels:
        room = int(label.width / chart.x.extent * view.width / _CHARACTER_PX)
        high = label.height / chart.y.extent * chart.height_px
        shown = shortened(label.text, room) if room >= 6 and high >= 12 else ""
        x, y, wide = view.x(label.x), view.y(label.y) + 4, _CHARACTER_PX * len(shown)
        if shown and not free.take(x + wide / 2, y, wide):
            shown = ""
        parts.append(
            f'<text class="label" x="{_n(x)}" y="{_n(y)}" text-anchor="middle" '
            f'data-at="{_n(label.x)} {_n(label.y)} {_n(label.width)} {_n(label.height)}" '
            f'data-text="{_text(label.text)}">{_text(shown)}</text>'
        )
    return "".join(parts)


def _n(value: float) -> str:
    """A number with as few digits as its pixel needs."""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _text(text: str) -> str:
    return escape(printable(text))


def stacked(charts: Sequence[tuple[str, Chart]], *, width_px: int, top_px: float) -> tuple[str, float]:
    """Charts below each other, each under its heading, for an enclosing SVG; and the height where they end."""
    parts = []
    for heading, chart in charts:
        if heading:
            parts.append(f'<text class="heading" x="{LEFT_PX}" y="{_n(top_px + 16)}">{_text(heading)}</text>')
            top_px += 24
        parts.append(chart_svg(chart, width_px=width_px, top_px=top_px))
        top_px += chart.full_height_px + 4
    return "".join(parts), top_px


def listed(heading: str, lines: Sequence[tuple[str, str]], *, width_px: int, top_px: float) -> tuple[str, float]:
    """Lines of a name and figures below each other under a heading, and the height where they end. If a line is wider
    than the picture, the middle of its name is left out; its figures stay whole."""
    parts = [f'<text class="heading" x="{LEFT_PX}" y="{_n(top_px + 16)}">{_text(heading)}</text>']
    top_px += 24
    for name, figures in lines:
        text = _text(shortened(name, max((width_px - LEFT_PX) // 7 - len(figures), 8)) + figures)
        parts.append(f'<text x="{LEFT_PX}" y="{_n(top_px + 10)}" font-size="12">{text}</text>')
        top_px += 17
    return "".join(parts), top_px


def legend_of(shown: Mapping[str, str], *, width_px: int) -> tuple[str, float]:
    """The colours (styles of marks) with their meanings below a caption, and the height where they end."""
    parts, x, y = [], float(LEFT_PX), 44.0
    for style, meaning in shown.items():
        across = 26 + 7 * min(len(meaning), 60)
        if x + across > width_px - 10 and x > LEFT_PX:
            x, y = float(LEFT_PX), y + 18
        parts.append(f'<rect class="{style}" x="{x:g}" y="{y:g}" width="12" height="12"/>')
        parts.append(f'<text x="{x + 17:g}" y="{y + 10:g}" font-size="12">{_text(shortened(meaning, 60))}</text>')
        x += across
    return "".join(parts), y + 26


def sheet(caption: str, drawn: str, *, width_px: int, height_px: int) -> str:
    """One SVG file with a caption, light or dark as the reader's system is set."""
    title = _text(caption)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="sheet" width="{width_px}" height="{height_px}" '
        f'viewBox="0 0 {width_px} {height_px}" font-family="system-ui,sans-serif"><title>{title}</title>'
        f"<style>{STYLE}.sheet text{{fill:var(--ink,#1b1f24)}}.sheet .chart text{{fill:var(--soft)}}"
        f".sheet .chart .label{{fill:#111}}.heading{{font-size:13px;font-weight:600}}{_DARK}</style>"
        f'<rect width="{width_px}" height="{height_px}" fill="#fff"/>'
        f'<text x="{LEFT_PX}" y="26" font-size="17" font-weight="700">{title}</text>{drawn}</svg>\n'
    )
