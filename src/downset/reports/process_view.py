"""The gain of a fit for the whole process in ONNX Runtime: its sentence, its table, and its keys in JSON."""

from __future__ import annotations

import math
from typing import Any

from downset.reports.document import JSON_ONLY, TERMINAL, Column, Part, Table
from downset.results.fit import Fit
from downset.results.processes import ProcessFit, ProcessRow
from downset.text import format_bytes, format_size

__all__ = ["process_data", "process_line", "process_note", "process_tables"]


def process_line(fit: Fit) -> str:
    """The growth of the process before and after, the part that cannot be taken back, and the time; "" where processes
    did not decide."""
    process = fit.process
    if process is None:
        return ""
    before, after = process.default.growth, process.shipped.growth
    anonymous = f"{format_size(after.peak_anonymous_bytes)} that cannot be taken back"
    if process.shipped == process.default:
        return (
            f"Process at the peak {format_size(after.peak_bytes)}, of it {anonymous}: no other file or setting "
            f"takes {format_size(0.03 * after.peak_bytes)} less at the same time."
        )
    return (
        f"Process at the peak {format_size(before.peak_bytes)} -> {format_size(after.peak_bytes)}, of it {anonymous} "
        f"({format_size(before.peak_anonymous_bytes)} before); the best by hand {_of_hand(process)}; "
        f"{after.cpu_s / before.cpu_s:.2f}x the processor time (measured)."
    )


def _of_hand(process: ProcessFit) -> str:
    if process.by_hand == process.default:
        return "is the default"
    return format_size(process.by_hand.growth.peak_bytes)


def process_note(fit: Fit) -> str:
    """The cost of a file on disk that is larger than the original; "" where it has none."""
    process = fit.process
    if process is None or process.shipped.file_bytes <= 1.05 * process.default.file_bytes:
        return ""
    larger, shown = process.shipped.file_bytes / process.default.file_bytes, format_size(process.shipped.file_bytes)
    return (
        f"The files are {larger:.2f} times as large as the original ({shown}): weights lie there as kernels read them, "
        f"too. They are mapped and stay clean; up to {process.larger:g} times is allowed."
    )


def process_tables(fit: Fit) -> list[Part]:
    """The rows of processes: the original by default, the best by hand and what ships; in JSON all of them."""
    process = fit.process
    if process is None:
        return _in_litert(fit)
    chosen = list(dict.fromkeys(_place(process, row) for row in (process.default, process.by_hand, process.shipped)))
    shown = [process.rows[place] for place in chosen]
    marked = frozenset(place for place, row in enumerate(shown) if _same(row, process.shipped))
    caption = (
        "growth of a new process (bytes; measured, VmHWM and between runs; processor time of all threads, with the "
        f"least and most of {process.shipped.growth.processes} processes; one thread; * ships)"
    )
    return [
        Table(_ROWS, shown, caption, marked=marked, on=TERMINAL),
        Table(_ROWS, process.rows, key="process.rows", on=JSON_ONLY),
    ]


def _in_litert(fit: Fit) -> list[Part]:
    """The rows of LiteRT's processes, which are measured in addition to the arena."""
    if fit.measured is None:
        return []
    caption = (
        "growth of a new process in LiteRT (bytes; measured, VmHWM and between runs; one thread); XNNPACK, the "
        "default, orders and places what it runs by itself"
    )
    return [Table(_LITERT_ROWS, fit.measured.processes, caption, key="measured.processes")]


def _place(process: ProcessFit, row: ProcessRow) -> int:
    return next(place for place, other in enumerate(process.rows) if _same(other, row))


def _same(one: ProcessRow, other: ProcessRow) -> bool:
    return (one.file, one.settings.name) == (other.file, other.settings.name)


def process_data(fit: Fit) -> dict[str, Any]:
    """`process` in docs/schemas/fit.json, without its rows."""
    process = fit.process
    if process is None:
        return {"process": None}
    return {
        "process.shipped": _place(process, process.shipped),
        "process.by_hand": _place(process, process.by_hand),
        "process.slower": None if process.slower == math.inf else process.slower,
        "process.larger": process.larger,
    }


def _growth(name: str) -> Any:
    return lambda row: getattr(row.growth, name)


def _cpu_ms(row: ProcessRow) -> str:
    growth = row.growth
    return f"{1000 * growth.cpu_s:.2f} ({1000 * growth.low_s:.2f} to {1000 * growth.high_s:.2f})"


_GROWTH = (
    Column("at the peak", _growth("peak_bytes"), format_bytes, key="peak_bytes"),
    Column("anonymous", _growth("peak_anonymous_bytes"), format_bytes, key="peak_anonymous_bytes"),
    Column("at rest", _growth("rest_bytes"), format_bytes, key="rest_bytes"),
    Column("", _growth("rest_anonymous_bytes"), key="rest_anonymous_bytes", on=JSON_ONLY),
)
_LITERT_ROWS = (
    Column("file, kernels", lambda row: f"{row.file}, {row.kernels}", left=True),
    Column("", "file", key="file", on=JSON_ONLY),
    Column("", "kernels", key="kernels", on=JSON_ONLY),
    *_GROWTH,
    Column("CPU ms", lambda row: f"{1000 * row.growth.cpu_s:.2f}"),
    Column("", _growth("cpu_s"), key="cpu_s", on=JSON_ONLY),
)
_ROWS = (
    Column("file, settings", lambda row: f"{row.file}, {row.settings.name}", left=True),
    Column("", "file", key="file", on=JSON_ONLY),
    Column("", "settings", key="settings", on=JSON_ONLY),
    Column("", "by_hand", key="by_hand", on=JSON_ONLY),
    *_GROWTH,
    Column("CPU ms", _cpu_ms),
    Column("", _growth("cpu_s"), key="cpu_s", on=JSON_ONLY),
    Column("", _growth("low_s"), key="low_s", on=JSON_ONLY),
    Column("", _growth("high_s"), key="high_s", on=JSON_ONLY),
    Column("", _growth("processes"), key="processes", on=JSON_ONLY),
    Column("", _growth("most_bytes"), key="most_bytes", on=JSON_ONLY),
    Column("on disk", "file_bytes", format_bytes, key="file_bytes"),
)
