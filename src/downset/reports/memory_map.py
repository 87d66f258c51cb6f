"""Draws an arena: time to the right, offsets upwards, one rectangle for each record. The result is one SVG file without
scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from downset.errors import UsageError
from downset.reports.arena_view import ArenaView, kind_styles, moved_steps, record_view
from downset.reports.axes import Axis
from downset.reports.charts import Chart, Curve, Label, Level, Mark, Moment, legend_of, listed, sheet, stacked
from downset.results.plans import Arena
from downset.text import format_bytes, format_size, printable

__all__ = [
    "MOVED",
    "Scale",
    "arena_chart",
    "largest_records",
    "live_chart",
    "memory_map",
    "scale_of",
    "steps_axis",
    "strip_chart",
]

MOVED = ("moved", "moved operator (bar above the strip)")
"""The style of operators that moved, and what a legend says of it."""
_NAMED = 5
"""The largest records, whose names stand in the picture."""


def largest_records(arena: Arena) -> list[int]:
    """The indices of the few records that are named, the largest first."""
    return sorted(range(len(arena.records)), key=lambda place: -arena.records[place].nbytes)[:_NAMED]


def memory_map(
    arenas: Sequence[tuple[str, Arena] | ArenaView],
    *,
    caption: str = "Memory map",
    limit_bytes: int | None = None,
    width_px: int = 960,
    height_px: int = 260,
    arenas_only: bool = False,
) -> str:
    """SVG text of the arenas below each other on one scale of bytes, each with its heading, and of the live bytes at
    each step.

    `arenas`: (heading, arena), or views that also know operators and tensors. `limit_bytes`: drawn as a horizontal
    line. `height_px`: of each arena. `arenas_only`: leave out the live bytes and the list of the largest tensors.
    Hovering over a record shows its name. A kind of operator has one colour in all arenas; the legend names the kinds.
    Raises UsageError for `arenas` of another form."""
    views = _views(arenas)
    styles = kind_styles(views)
    scale = scale_of(views, limit_bytes)
    charts: list[tuple[str, Chart]] = []
    legend = _named(styles)
    for place, view in enumerate(views):
        chart = arena_chart(view, styles, scale, height_px=height_px, titled=True)
        charts.append((f"{view.heading}: {_sizes(view)}", chart))
        if view.operators:
            moved = moved_steps(views[0].operators, view.operators) if place else frozenset[int]()
            legend |= dict([MOVED]) if moved else {}
            charts.append(("", strip_chart(view, styles, moved=moved, titled=True)))
    if views and not arenas_only:
        charts.append(("Live bytes", live_chart(views)))
    if charts and scale.limit_text:
        heading, chart = charts[0]
        charts[0] = (f"{heading}. {scale.limit_text}", chart)
    drawn_legend, top = legend_of(legend, width_px=width_px)
    drawn, bottom = stacked(charts, width_px=width_px, top_px=top)
    if (
        views
        and not arenas_only
        and (records := [views[-1].arena.records[place] for place in largest_records(views[-1].arena)])
    ):
        lines = [
            (printable(record.id), f": {format_bytes(record.nbytes)} B, steps {record.start} to {record.stop}")
            for record in records
        ]
        names, bottom = listed("Largest tensors", lines, width_px=width_px, top_px=bottom)
        drawn += names
    return sheet(caption, drawn_legend + drawn, width_px=width_px, height_px=int(bottom) + 8)


@dataclass(frozen=True, slots=True)
class Scale:
    """The common scale of views, up to `most_bytes`, and a limit of bytes, which is drawn where it lies within."""

    most_bytes: int
    limit_bytes: int | None = None

    @property
    def limit_text(self) -> str:
        """Text on a limit that lies too far above the picture to be drawn; "" for any other."""
        limit, most = self.limit_bytes, self.most_bytes
        if limit is None or limit <= most:
            return ""
        return f"The limit of {format_bytes(limit)} B is {limit / most:.3g} times as high, and not drawn."


def scale_of(views: Sequence[ArenaView], limit_bytes: int | None) -> Scale:
    """A scale for these views, with the limit unless that lies far above them."""
    most = max([1, *(view.total_bytes for view in views)])
    within = limit_bytes is not None and limit_bytes <= 3 * most
    return Scale(max(most, limit_bytes) if limit_bytes is not None and within else most, limit_bytes)


def arena_chart(
    view: ArenaView,
    styles: Mapping[str, str],
    scale: Scale,
    *,
    rows: Mapping[str, str] | None = None,
    height_px: int = 260,
    titled: bool = False,
) -> Chart:
    """Records at their offsets over the steps of their lifetimes, with the runtime's memory above them, the bound and
    the limit. `rows`: by name of a record the id of the table row that describes it. `titled`: rectangles carry their
    text."""
    arena, x = view.arena, steps_axis(view)
    marks, labels = [], []
    largest = largest_records(arena)
    for index, (record, offset) in enumerate(zip(arena.records, arena.offsets, strict=True)):
        facts = view.tensors.get(record.id)
        style = styles.get(facts.kind, "c8") if facts is not None else f"c{index % 9}"
        title = ""
        if titled:
            shape = f" {facts.shape}, {facts.kind}" if facts is not None else ""
            title = (
                f"{record.id}{shape}: {format_bytes(record.nbytes)} B at {format_bytes(offset)}, "
                f"steps {record.start} to {record.stop}"
            )
        row = (rows or {}).get(record.id, "")
        for start, stop in record.active():
            marks.append(Mark(start, offset, stop - start, record.nbytes, style, row, title))
        if index in largest:
            middle = ((record.start + record.stop) / 2, offset + record.nbytes / 2)
            labels.append(Label(*middle, record.stop - record.start, record.nbytes, _short(record.id)))
    top = arena.arena_bytes
    proven = f", {view.proven}" if view.proven else ""
    levels = [Level(top, f"arena {format_bytes(top)} B{proven}", "total")]
    for name, nbytes in (("scratch", view.scratch_bytes), ("tail", view.tail_bytes)):
        if nbytes:
            text = f"{name}: {format_bytes(nbytes)} B, as the runtime reports it" if titled else ""
            marks.append(Mark(x.start, top, x.extent, nbytes, name, "", text))
            labels.append(Label(x.start + x.extent / 2, top + nbytes / 2, x.extent, nbytes, name))
            top += nbytes
    if view.bound < arena.arena_bytes:
        levels.append(Level(view.bound, f"bound {format_bytes(view.bound)} B", "bound"))
    if top > arena.arena_bytes:
        levels.append(Level(top, f"in all {format_bytes(top)} B", "total"))
    if scale.limit_bytes is not None and not scale.limit_text:
        levels.append(Level(scale.limit_bytes, f"limit {format_bytes(scale.limit_bytes)} B", "limit"))
    y = Axis(0, 1.04 * scale.most_bytes, "bytes", "bytes")
    return Chart(
        f"Memory map, {view.heading}",
        x,
        y,
        tuple(marks),
        tuple(labels),
        (),
        tuple(levels),
        (Moment(view.peak_step + 0.5, "peak"),),
        height_px,
        bare=bool(view.operators),
    )


def _short(name: str) -> str:
    """The last part of a name's path, which distinguishes it."""
    return printable(name).rstrip("/").rsplit("/", 1)[-1]


def steps_axis(view: ArenaView) -> Axis:
    return Axis(view.start, view.stop, "step: one operator after another", "steps")


def strip_chart(
    view: ArenaView,
    styles: Mapping[str, str],
    *,
    rows: Sequence[str] = (),
    moved: frozenset[int] = frozenset(),
    titled: bool = False,
) -> Chart:
    """The operators as a strip in their order. Steps in `moved` have a bar above them."""
    marks = []
    for step, operator in enumerate(view.operators):
        title = f"step {step}: {operator.kind} {operator.name}, {format_bytes(operator.live_bytes)} B live"
        row = rows[step] if rows else ""
        marks.append(Mark(step, 0, 1, 0.75, styles.get(operator.kind, "c8"), row, title if titled else ""))
        if step in moved:
            marks.append(Mark(step, 0.8, 1, 0.2, "moved", row, ""))
    y = Axis(0, 1, "", "lanes", ("operators",))
    flipped = tuple(Mark(m.x, 1 - m.y - m.height, m.width, m.height, m.style, m.row, m.title) for m in marks)
    return Chart(f"Operators, {view.heading}", steps_axis(view), y, flipped, height_px=30)


def live_chart(views: Sequence[ArenaView]) -> Chart:
    """Live bytes while each operator runs: the first view with a dashed line, the last one with a solid line."""
    tallest = max([1, *(nbytes for view in views for nbytes in view.live_bytes)])
    curves = [
        Curve(_stairs(view), "after" if place == len(views) - 1 else "before") for place, view in enumerate(views)
    ]
    x = Axis(min(view.start for view in views), max(view.stop for view in views), "step", "steps")
    y = Axis(0, 1.12 * tallest, "live bytes", "bytes")
    last = views[-1]
    peak = max(last.live_bytes, default=0)
    levels = (Level(peak, f"peak {format_bytes(peak)} B", "total"),)
    moment = Moment(last.peak_step + 0.5, "peak")
    return Chart("Live bytes by step", x, y, (), (), tuple(curves), levels, (moment,), 110)


def _stairs(view: ArenaView) -> tuple[tuple[float, float], ...]:
    points: list[tuple[float, float]] = []
    for place, nbytes in enumerate(view.live_bytes):
        if not points or points[-1][1] != nbytes:
            points.append((view.start + place, nbytes))
            if len(points) > 1:
                points.insert(-1, (view.start + place, points[-2][1]))
    return (*points, (view.stop, points[-1][1])) if points else ()


def _sizes(view: ArenaView) -> str:
    parts = [f"arena {format_bytes(view.arena.arena_bytes)} B"]
    if view.scratch_bytes:
        parts.append(f"scratch {format_bytes(view.scratch_bytes)} B")
    if view.tail_bytes:
        parts.append(f"tail {format_bytes(view.tail_bytes)} B")
    if len(parts) > 1:
        parts.append(f"in all {format_bytes(view.total_bytes)} B ({format_size(view.total_bytes)})")
    if view.proven:
        parts.append(view.proven)
    return ", ".join(parts)


def _views(arenas: object) -> list[ArenaView]:
    views = []
    for item in arenas if isinstance(arenas, Sequence) else (arenas,):
        match item:
            case ArenaView():
                views.append(item)
            case (str(heading), Arena() as arena):
                views.append(record_view(heading, arena))
            case _:
                raise UsageError(f'memory_map takes a list of (heading, arena), as [("after", arena)], not {item!r}')
    return views


def _named(styles: Mapping[str, str]) -> dict[str, str]:
    """The kind of operator for each colour."""
    shown: dict[str, str] = {}
    for kind, style in styles.items():
        shown.setdefault(style, kind if style != "c8" else "other kinds")
    return shown
