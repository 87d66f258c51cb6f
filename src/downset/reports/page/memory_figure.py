"""The memory map as a figure of a page: arenas before and after on one scale, operators in their order, live bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from downset.reports.arena_view import ArenaView, Operator, kind_styles, moved_steps
from downset.reports.document import ChartGroup, Table, columns
from downset.reports.memory_map import (
    MOVED,
    arena_chart,
    largest_records,
    live_chart,
    scale_of,
    strip_chart,
)
from downset.text import format_bytes, shortened

__all__ = ["largest_tensors", "legend_of", "memory_figure", "moved_steps", "order_figure"]


def memory_figure(
    views: Sequence[ArenaView], *, limit_bytes: int | None = None, note: str = "", drawn: str = "tensor"
) -> ChartGroup:
    """The arenas of these views. If there are two, the first is the arena before. `drawn`: what a rectangle stands
    for."""
    styles = kind_styles(views)
    tensors, tensor_rows = _tensor_table(views, drawn)
    operators, operator_rows = _operator_table([view.operators for view in views])
    scale = scale_of(views, limit_bytes)
    charts = []
    for place, view in enumerate(views):
        rows = {record.id: tensor_rows[record.id] for record in view.arena.records}
        chart = arena_chart(view, styles, scale, rows=rows)
        charts.append((f"Memory {view.heading}", chart))
        if view.operators:
            moved = moved_steps(views[0].operators, view.operators) if place else frozenset[int]()
            names = [operator_rows[operator.name, operator.kind] for operator in view.operators]
            charts.append(("", strip_chart(view, styles, rows=names, moved=moved)))
    charts.append(("Live bytes", live_chart(views)))
    tables = (tensors, operators) if operator_rows else (tensors,)
    legend = legend_of(styles) if operator_rows else ()
    if any(moved_steps(views[0].operators, view.operators) for view in views[1:]):
        legend = (*legend, MOVED)
    notes = (note, scale.limit_text, largest_tensors(views[-1], drawn))
    return ChartGroup(
        f"Memory map: each rectangle is a {drawn}, as wide as its lifetime and as high as its bytes.",
        tuple(charts),
        legend,
        tables,
        " ".join(filter(None, notes)),
    )


def largest_tensors(view: ArenaView, drawn: str = "tensor") -> str:
    """Text on the largest tensors of an arena, because not every label finds room in its rectangle."""
    ranked = [view.arena.records[index] for index in largest_records(view.arena)]
    named = ", ".join(f"{shortened(record.id, 60)} ({format_bytes(record.nbytes)} B)" for record in ranked)
    return f"The largest {drawn}s: {named}." if named else ""


def order_figure(views: Sequence[ArenaView], *, first: str = "the file's order") -> ChartGroup:
    """Orders without offsets: operators as strips, and live bytes. `first`: a name for the first of several orders."""
    styles = kind_styles(views)
    operators, operator_rows = _operator_table([view.operators for view in views])
    charts = []
    for place, view in enumerate(views):
        moved = moved_steps(views[0].operators, view.operators) if place else frozenset[int]()
        names = [operator_rows[operator.name, operator.kind] for operator in view.operators]
        charts.append((f"Operators {view.heading}".strip(), strip_chart(view, styles, rows=names, moved=moved)))
    charts.append((f"Live bytes (dashed: {first})" if len(views) > 1 else "Live bytes", live_chart(views)))
    legend = legend_of(styles)
    if any(moved_steps(views[0].operators, view.operators) for view in views[1:]):
        legend = (*legend, MOVED)
    return ChartGroup(
        "Operators in their order, and the bytes that live while each runs.", tuple(charts), legend, (operators,)
    )


def legend_of(styles: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The colours and the kinds of operators that have them."""
    shown: dict[str, str] = {}
    for kind, style in styles.items():
        shown.setdefault(style, "other kinds" if style == "c8" else kind)
    return tuple(shown.items())


def _tensor_table(views: Sequence[ArenaView], drawn: str) -> tuple[Table, dict[str, str]]:
    """A table with a row for each tensor or record, as `drawn` says (where and when each view holds it), and the row's
    id by its name."""
    names = list(dict.fromkeys(record.id for view in views for record in view.arena.records))
    ids = {name: f"t{place}" for place, name in enumerate(names)}
    places_of: list[dict[str, tuple[str, str, int]]] = [
        {
            record.id: (format_bytes(offset), f"{record.start}-{record.stop}", record.nbytes)
            for record, offset in zip(view.arena.records, view.arena.offsets, strict=True)
        }
        for view in views
    ]
    has_tensors = any(view.tensors for view in views)
    rows = []
    for name in names:
        facts = next((view.tensors[name] for view in views if name in view.tensors), None)
        nbytes = next(item[name][2] for item in places_of if name in item)
        described = (facts.shape, facts.kind) if facts is not None else ("", "")
        places = [item.get(name, ("", "", 0))[:2] for item in places_of]
        rows.append(
            (name, *(described if has_tensors else ()), format_bytes(nbytes), *(part for two in places for part in two))
        )
    headings = [f" {view.heading}" if len(views) > 1 else "" for view in views]
    titles = (
        drawn,
        *(("shape", "made by") if has_tensors else ()),
        "bytes",
        *(part for heading in headings for part in (f"offset{heading}", f"steps{heading}")),
    )
    first = 3 if has_tensors else 1
    caption = f"{drawn}s".capitalize()
    return Table(columns(*titles, left=first), rows, caption, ids=tuple(ids.values())), ids


def _operator_table(orders: Sequence[Sequence[Operator]]) -> tuple[Table, dict[tuple[str, str], str]]:
    """A table with a row for each operator (its step and live bytes in each order), and the row's id by name, kind."""
    keys = list(dict.fromkeys((operator.name, operator.kind) for order in orders for operator in order))
    ids = {key: f"o{place}" for place, key in enumerate(keys)}
    cells = [
        {
            (operator.name, operator.kind): (str(step), format_bytes(operator.live_bytes))
            for step, operator in enumerate(order)
        }
        for order in orders
    ]
    rows = tuple((*key, *(part for order in cells for part in order.get(key, ("", "")))) for key in keys)
    headings = ("",) if len(orders) == 1 else (" before", " after")
    titles = ("operator", "kind", *(part for heading in headings for part in (f"step{heading}", f"live{heading}")))
    return Table(columns(*titles, left=2), rows, "Operators", ids=tuple(ids.values())), ids
