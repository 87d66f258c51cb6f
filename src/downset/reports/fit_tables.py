"""The tables of a fit's candidates, sessions of ONNX Runtime and plans in strips, and their pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from downset.reports.document import JSON_ONLY, ChartGroup, Column, Table, columns, named
from downset.reports.fit_sentences import ratio_text
from downset.results.fit import Fit, FrontRow, Measured
from downset.results.sessions import Latency, SessionSettings, SessionTaken
from downset.text import format_bytes

__all__ = ["FRONT", "SESSIONS", "candidates_picture", "front_picture", "latency_data", "settings_text"]


def latency_data(latency: Latency | None) -> dict[str, Any] | None:
    """`latency` in docs/schemas/fit.json."""
    if latency is None:
        return None
    return named(latency, "run_s", "median_s", "rounds", "ratio", "ratio_low", "ratio_high")


def settings_text(settings: SessionSettings) -> str:
    """All settings of a session, on one line."""
    parts = (settings.options, settings.config, settings.arena, settings.malloc)
    return ", ".join([settings.name, *(f"{name}={value}" for part in parts for name, value in part.items())])


def _ms(latency: Latency) -> str:
    return f"{1000 * latency.run_s:.2f}"


def _latency(row: SessionTaken | FrontRow) -> dict[str, Any] | None:
    return latency_data(row.latency)


SESSIONS = (
    Column("file, settings", lambda row: f"{row.file}, {row.settings.name}", left=True),
    Column("", "file", key="file", on=JSON_ONLY),
    Column("", "settings", key="settings", on=JSON_ONLY),
    Column("in use", "in_use_bytes", format_bytes, key="in_use_bytes"),
    Column("arena holds", "held_bytes", format_bytes, key="held_bytes"),
    Column("process grows by", "process_bytes", format_bytes, key="process_bytes"),
    Column("ms", "latency", _ms),
    Column("against default", "latency", ratio_text),
    Column("", _latency, key="latency", on=JSON_ONLY),
)
"""The columns of rows of `SessionTaken`."""


def _part(title: str, name: str) -> Column:
    return Column(title, lambda row: row.measured.get(name), format_bytes)


FRONT = (
    Column("segments", "segments", lambda segments: str(len(segments)), key="segments"),
    Column("", "peak_bytes", key="peak_bytes", on=JSON_ONLY),
    Column("arena", "arena_bytes", format_bytes, key="arena_bytes"),
    _part("head", "head_bytes"),
    _part("tail", "tail_bytes"),
    _part("tail on Cortex-M", "cortex_m_tail_bytes"),
    _part("taken", "total_bytes"),
    Column("", "measured", key="measured", on=JSON_ONLY),
    Column("", "extra_macs", key="extra_macs", on=JSON_ONLY),
    Column("more MACs", "extra_share", lambda share: f"{share:.1%}", key="extra_share"),
    Column("operators", "operators", key="operators"),
    Column("file", "file_bytes", format_bytes, key="file_bytes"),
    Column("", "before_s", key="before_s", on=JSON_ONLY),
    Column("", lambda row: row.latency and row.latency.run_s, key="after_s", on=JSON_ONLY),
    Column("ms", "latency", _ms),
    Column("against original", "latency", ratio_text),
    Column("", _latency, key="latency", on=JSON_ONLY),
    Column("", "ships", key="ships", on=JSON_ONLY),
)
"""The columns of rows of `FrontRow`. The tail is there as measured, and as estimated for pointers of four bytes."""


def candidates_picture(fit: Fit, measured: Measured) -> ChartGroup:
    """Memory against time of the front, with the original with default settings, which other candidates may beat."""
    from downset.reports.page.trade_figure import TradeAxes, TradePoint, trade_figure

    default = measured.rows[0]
    shown = [row for row in (*measured.front, default) if row.latency is not None]
    shown = [row for place, row in enumerate(shown) if _candidate(row) not in map(_candidate, shown[:place])]

    def role(row: SessionTaken) -> Literal["chosen", "other", "original"]:
        if _candidate(row) == (fit.shipped, fit.session):
            return "chosen"
        return "original" if _candidate(row) == _candidate(default) else "other"

    points = [TradePoint(row.latency.run_s, row.held_bytes, role(row)) for row in shown if row.latency is not None]
    title = (
        "Memory against time: candidates that no other beats in both, and the original by default (measured). Bytes "
        "are those that the arena holds, which is what decides between candidates whose process grows alike."
    )
    return trade_figure(title, points, Table(SESSIONS, shown, "Candidates"), TradeAxes("one run", "s", "arena holds"))


def _candidate(row: SessionTaken) -> tuple[str, SessionSettings]:
    """The file and the settings of a candidate, which name it."""
    return row.file, row.settings


def front_picture(fit: Fit) -> ChartGroup:
    """Memory against arithmetic of plans that compute segments in strips."""
    from downset.reports.page.trade_figure import TradeAxes, TradePoint, trade_figure

    measured = fit.measured is not None and all("head_bytes" in row.measured for row in fit.front)
    whole = fit.measured if measured and fit.measured is not None else fit.arena
    what = "head and tail, measured" if measured else "arena, planned"
    points = [
        TradePoint(
            row.extra_share,
            row.measured["total_bytes"] if measured else row.arena_bytes,
            "chosen" if row.ships else "other",
        )
        for row in fit.front
    ]
    shown = [column for column in FRONT if column.title]
    rows: list[Sequence[str]] = [[column.text(row) for column in shown] for row in fit.front]
    points.append(TradePoint(0.0, whole.before, "original"))
    rows.append(["as the file is", *[""] * (len(shown) - 1)])
    if fit.ships_plan and not any(row.ships for row in fit.front):
        points.append(TradePoint(0.0, whole.after, "chosen"))
        rows.append([f"{fit.shipped}, nothing in strips", *[""] * (len(shown) - 1)])
    figure = trade_figure(
        f"Memory against arithmetic: segments in strips ({what}).",
        points,
        Table(columns(*(column.title for column in shown)), rows, "Plans in strips"),
        TradeAxes("more multiply-adds", "share", "bytes"),
    )
    if fit.ram is not None and fit.ram.state == "fits" and not any(row.ships for row in fit.front):
        return replace(figure, note="What ships fits the limit without strips, so that nothing is computed in strips.")
    return figure
