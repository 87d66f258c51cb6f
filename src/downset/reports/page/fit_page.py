"""The page of a fit: whether it fits, what it gained, what is proven, and its memory map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from downset.messages import Message, Setting, joined
from downset.reports.arena_view import ArenaView, arena_view
from downset.reports.fit import (
    FRONT_COLUMNS,
    SESSION_CAPTION,
    SESSION_COLUMNS,
    after_text,
    fit_lines,
    front_cells,
    gain_line,
    ratio_text,
    session_cells,
)
from downset.reports.gaps import gap_cell
from downset.reports.memory_map import moved_steps
from downset.reports.naming import shape_text
from downset.reports.next_steps import next_steps
from downset.reports.page.elements import (
    ChartGroup,
    Choice,
    Code,
    Facts,
    Page,
    Section,
    Table,
    Verdict,
    versions_fact,
)
from downset.reports.page.memory_figure import memory_figure
from downset.reports.page.next_section import next_section
from downset.reports.page.trade_figure import trade_figure
from downset.results.fit import Fit, RamVerdict
from downset.results.sessions import SessionSettings, SessionTaken
from downset.text import counted, format_bytes, format_seconds, format_size, printable, shortened

__all__ = ["fit_page", "fit_views", "page_title"]

_INPUTS = 4
"""Inputs that the line below the title names."""
_TARGETS = {"tflm": "TFLite Micro", "litert": "LiteRT", "ort": "ONNX Runtime", "torch": "PyTorch"}


def fit_page(fit: Fit) -> Page:
    """The page of `downset fit --report`."""
    target = _TARGETS.get(fit.target, fit.target)
    views = fit_views(fit)
    limit = None if fit.ram is None else fit.ram.limit_bytes
    sections = [
        Section("Memory", (memory_figure(views, limit_bytes=limit, note=_already(fit)),)),
        Section("Figures", (_figures(fit), *_sessions(fit), *([_strips(fit)] if fit.front else []))),
        Section("What was done", (Facts(tuple(_done(fit, views))),)),
        next_section(next_steps(fit)),
        *_traffic(fit),
        Section("How to run it", _run(fit)),
    ]
    model = fit.memory if fit.ships_plan else fit.target
    facts = (
        ("model", fit.model),
        ("target", target),
        ("operators", f"{len(fit.graph.ops):,}"),
        ("memory model", model),
        ("shipped", fit.shipped),
        ("right with the kernels", fit.assumed_kernels or ""),
        *_conditions(fit),
    )
    shown = tuple(fact for fact in facts if fact[1])
    return Page(page_title(fit), _subtitle(fit), _verdict(fit), tuple(sections), shown)


def _conditions(fit: Fit) -> tuple[tuple[str, str], ...]:
    """The conditions of the figures: limits of the searches, the session's settings, the command and the versions."""
    limit = "none" if fit.time_limit_s == math.inf else format_seconds(fit.time_limit_s)
    settings = fit.session
    session = (
        ""
        if settings is None
        else ", ".join(
            [
                settings.name,
                *(
                    f"{name}={value}"
                    for part in (settings.options, settings.config, settings.arena)
                    for name, value in part.items()
                ),
            ]
        )
    )
    return (
        ("time limit", limit),
        ("work limit", "" if fit.work_limit is None else f"{fit.work_limit:,}"),
        ("seed", str(fit.seed or "")),
        ("session", session),
        ("command", "" if fit.command is None else Message(fit.command)),
        versions_fact(fit.versions),
    )


def page_title(fit: Fit) -> str:
    """The model's file and its target, as the heading of pages and pictures."""
    return f"{PurePath(fit.model).name} on {_TARGETS.get(fit.target, fit.target)}"


def fit_views(fit: Fit) -> list[ArenaView]:
    """The arena before and the shipped arena; only one if both are the same."""
    graph = fit.original or fit.graph
    same = not fit.rewrites and len(graph.ops) == len(fit.graph.ops)  # the bound is that of the shipped graph
    before = arena_view(
        "before",
        graph,
        range(len(graph.ops)),
        fit.before,
        memory=fit.target,
        beside=_beside(fit, "original", fit.before.arena_bytes),
        bound_bytes=fit.arena.bound if same else None,
    )
    if not fit.ships_plan:
        return [replace(before, heading="as the file is")]
    plan = fit.together
    after = arena_view(
        "after",
        fit.graph,
        plan.order.steps,
        plan.arena,
        memory=fit.memory,
        beside=_beside(fit, fit.shipped, plan.arena.arena_bytes),
        bound_bytes=fit.arena.bound,
    )
    return [before, after]


def _beside(fit: Fit, name: str, arena_bytes: int) -> tuple[int, int]:
    """Scratch and tail of a candidate, as TFLite Micro reports them; 0 if they were not measured."""
    taken = fit.measured.details.get(name, {}) if fit.measured is not None else {}
    if "head_bytes" not in taken:
        return 0, 0
    return max(0, taken["head_bytes"] - arena_bytes), taken["tail_bytes"]


def _subtitle(fit: Fit) -> str:
    inputs = [fit.graph.tensors[tensor] for tensor in fit.graph.inputs]
    named = [f"{shortened(printable(item.name), 40)} {shape_text(item)}".strip() for item in inputs[:_INPUTS]]
    more = [f"{len(inputs) - _INPUTS} more"] if len(inputs) > _INPUTS else []
    return f"downset fit: {counted(len(fit.graph.ops), 'operator')}, inputs: {', '.join(named + more) or 'none'}"


def _verdict(fit: Fit) -> Verdict:
    numbers = [
        _number("peak of live bytes", fit.peak.before, fit.peak.after, fit.peak.bound, proven=fit.peak.proven),
        _number("arena", fit.arena.before, fit.arena.after, fit.arena.bound, proven=fit.arena.proven),
    ]
    measured = fit.measured
    if measured is not None:
        how = "held" if measured.rows else "measured"
        name = f"{how} in {_TARGETS.get(measured.runtime, measured.runtime)}"
        remark = f"by the settings {fit.session.name!r}" if fit.session is not None else "head, scratch and tail"
        numbers.append((name, _arrow(measured.before, measured.after, after_text(measured)), remark))
    if measured is not None and measured.before_s is not None and measured.latency is not None:
        times, remark = format_seconds(measured.before_s), "reference kernels; a microcontroller takes other times"
        if fit.shipped != "original":
            times = f"{times} → {format_seconds(measured.latency.run_s)}"
            remark = f"{ratio_text(measured.latency)}; {remark}"
        numbers.append(("one run on this host, measured", times, remark))
    if fit.taken is not None and fit.taken.latency is not None:
        latency = fit.taken.latency
        first = measured.rows[0].latency if measured is not None and measured.rows else None
        before = f"{format_seconds(first.run_s)} → " if first is not None else ""
        numbers.append(("one run, measured", f"{before}{format_seconds(latency.run_s)}", ratio_text(latency)))
    gained = gain_line(fit)
    if fit.ram is None:
        return Verdict(
            "good" if fit.arena.after < fit.arena.before or fit.arena.proven else "plain",
            gained,
            fit.not_measured and Message("Not measured: ", fit.not_measured),
            tuple(numbers),
        )
    ram = fit.ram
    if ram.state == "fits":
        head = (
            f"Fits {format_size(ram.limit_bytes)}: {format_bytes(ram.needed_bytes)} B needed, "
            f"{format_bytes(ram.free_bytes)} B free"
        )
        return Verdict("good", head, gained, tuple(numbers))
    proven = ram.state == "does not fit"
    head = (
        f"Does not fit {format_size(ram.limit_bytes)}: {_least(ram, rewritten=bool(fit.rewrites))} at least "
        f"{format_bytes(ram.least_bytes)} B"
        if proven
        else f"Not known whether it fits {format_size(ram.limit_bytes)}"
    )
    return Verdict("bad" if proven else "unknown", head, ram.reason, tuple(numbers))


def _least(ram: RamVerdict, *, rewritten: bool) -> str:
    if ram.least_of == "inputs or outputs alone":
        return "its inputs or outputs alone need"
    return f"every order{' of the rewritten network' if rewritten else ''} needs"


def _number(name: str, before: int, after: int, bound: int, *, proven: bool) -> tuple[str, str, str]:
    remark = "proven least" if proven else f"bound {format_bytes(bound)} B"
    return name, _arrow(before, after), remark


def _arrow(before: int, after: int, shown: str = "") -> str:
    """Bytes before and after. `shown`: how those after are written, such as a range."""
    shown = shown or format_bytes(after)
    if before == after:
        return f"{shown} B"
    return f"{format_bytes(before)} → {shown} B"


def _already(fit: Fit) -> str:
    if not fit.ships_plan and fit.arena.proven:
        return (
            "Already optimal (proven) among all orders of the operators, each computed whole, and all placements of "
            "the tensors."
        )
    if fit.ships_plan and fit.peak.before == fit.peak.after and fit.peak.proven:
        return "The file's order is already optimal (proven): what changes is where tensors lie."
    return ""


def _figures(fit: Fit) -> Table:
    rows = [
        (
            name,
            format_bytes(figure.before),
            format_bytes(figure.after),
            format_bytes(figure.bound),
            gap_cell(figure.after, figure.bound),
            "yes" if figure.proven else "no",
            "analytic, by the memory model",
        )
        for name, figure in (("peak of live bytes", fit.peak), ("arena", fit.arena))
    ]
    if fit.measured is not None:
        what = "held" if fit.measured.rows else "measured"
        rows.append(
            (
                f"{what} in {fit.measured.runtime}",
                format_bytes(fit.measured.before),
                after_text(fit.measured),
                "",
                "",
                "",
                "measured",
            )
        )
    columns = ("bytes", "before", "after", "lower bound", "gap", "proven", "how it is known")
    return Table(columns, tuple(rows), numeric=frozenset({1, 2, 3, 4}))


def _sessions(fit: Fit) -> list[Choice]:
    if fit.measured is None or not fit.measured.rows:
        return []
    caption = f"What the file gains, and what its session's settings gain (bytes; measured; {SESSION_CAPTION})"
    tables: list[Choice] = [_session_table(fit.measured.rows, caption)]
    if len(fit.measured.front) > 1:
        tables.append(_front(fit))
    return tables


def _session_table(rows: Sequence[SessionTaken], caption: str) -> Table:
    numeric = frozenset(range(1, len(SESSION_COLUMNS)))
    return Table(SESSION_COLUMNS, tuple(map(session_cells, rows)), numeric=numeric, caption=caption)


def _front(fit: Fit) -> ChartGroup:
    """Memory against time of the front, with the original with default settings, which other candidates may beat."""
    assert fit.measured is not None
    default = fit.measured.rows[0]
    shown = [row for row in (*fit.measured.front, default) if row.latency is not None]
    shown = [row for place, row in enumerate(shown) if _named(row) not in map(_named, shown[:place])]
    points = [(row.latency.run_s, float(row.held_bytes)) for row in shown if row.latency is not None]
    chosen = [place for place, row in enumerate(shown) if _named(row) == (fit.shipped, fit.session)]
    table = _session_table(shown, "Candidates")
    title = (
        "Memory against time: candidates that no other beats in both, and the original by default (measured). Bytes "
        "are those that the arena holds, which is what decides between candidates whose process grows alike."
    )
    places = (place for place, row in enumerate(shown) if _named(row) == _named(default))
    return trade_figure(
        title, points, table, chosen=chosen, original=next(places), cost=("one run", "s"), held="arena holds"
    )


def _named(row: SessionTaken) -> tuple[str, SessionSettings]:
    """The file and the settings of a candidate, which name it."""
    return row.file, row.settings


def _strips(fit: Fit) -> ChartGroup:
    """Memory against arithmetic of plans that compute segments in strips."""
    measured = fit.measured is not None and all("head_bytes" in row.measured for row in fit.front)
    whole = fit.measured if measured and fit.measured is not None else fit.arena
    what = "head and tail, measured" if measured else "arena, planned"
    points = [
        (row.extra_share, float(row.measured["total_bytes"] if measured else row.arena_bytes)) for row in fit.front
    ]
    cells = [front_cells(row) for row in fit.front]
    chosen = [place for place, row in enumerate(fit.front) if row.ships]
    points.append((0.0, float(whole.before)))
    cells.append(("as the file is", *[""] * (len(FRONT_COLUMNS) - 1)))
    if not chosen and fit.ships_plan:
        chosen = [len(points)]
        points.append((0.0, float(whole.after)))
        cells.append((f"{fit.shipped}, nothing in strips", *[""] * (len(FRONT_COLUMNS) - 1)))
    table = Table(
        FRONT_COLUMNS, tuple(cells), numeric=frozenset(range(1, len(FRONT_COLUMNS))), caption="Plans in strips"
    )
    figure = trade_figure(
        f"Memory against arithmetic: segments in strips ({what}).",
        points,
        table,
        chosen=chosen,
        original=len(fit.front),
        cost=("more multiply-adds", "share"),
        held="bytes",
    )
    if fit.ram is not None and fit.ram.state == "fits" and not any(row.ships for row in fit.front):
        return replace(figure, note="What ships fits the limit without strips, so that nothing is computed in strips.")
    return figure


def _done(fit: Fit, views: list[ArenaView]) -> list[str]:
    lines: list[str] = []
    for line in fit_lines(fit):
        if line.startswith("  ") and lines:  # a tensor at the peak
            lines[-1] += (": " if lines[-1].endswith("live are") else ", ") + " ".join(line.split())
        elif not line.startswith(("constexpr", "open it by")):
            lines.append(line)
    if len(views) > 1:
        moved = len(moved_steps(views[0].operators, views[1].operators))
        placed = f"{moved} of {len(views[1].operators)} operators are new or run at another place in the order"
        lines.insert(1, placed if moved else "the order is the file's")
    # Why nothing was measured is a line already.
    return lines + [
        Message("note: ", note) for note in fit.notes if not fit.not_measured or fit.not_measured not in note
    ]


def _traffic(fit: Fit) -> list[Section]:
    if not fit.traffic:
        return []
    rows = tuple(
        (format_bytes(row.on_chip_bytes), format_bytes(row.before.total_bytes), format_bytes(row.after.total_bytes))
        for row in fit.traffic
    )
    table = Table(
        ("on chip, bytes", "moved before", "moved after"),
        rows,
        numeric=frozenset({0, 1, 2}),
        caption="Bytes that move between the chip and the memory outside it (simulated)",
    )
    return [Section("Off-chip traffic", (table,))]


def _run(fit: Fit) -> tuple[Choice, ...]:
    lines = [line for line in fit_lines(fit) if line.startswith(("constexpr", "open it by"))]
    written: list[str]
    if fit.output_path:
        written = [f"written: {fit.output_path}"]
    elif fit.ram is not None and fit.ram.state != "fits":
        written = [
            "No file was written, as none is known to fit.",
            Message(
                "Without ",
                Setting("ram_bytes"),
                " the file of least memory is written in which every operator is computed whole.",
            ),
        ]
        if fit.shipped.startswith("strips"):
            asks = (Setting("max_recompute", 1.0), ", without ", Setting("ram_bytes"), ", asks for that.")
            written.append(Message("The least found is in strips of rows: ", *asks))
    else:
        written = [Message("No file was written: give ", Setting("output"), " to write it.")]
    if fit.session_path:
        written.append(f"{fit.session_path} opens it by the settings that were measured")
    if lines:
        return (Facts(tuple(written)), Code("As it was measured:", joined("\n", lines)))
    return (Facts(tuple(written)),)
