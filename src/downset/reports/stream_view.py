"""Parts of documents about a stream: its figures next to those of its window, and the rows that it keeps."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from downset.messages import Message, Setting
from downset.reports.document import (
    ChartGroup,
    Column,
    Document,
    Facts,
    Part,
    Picture,
    Section,
    Table,
    Value,
    Verdict,
    named,
)
from downset.reports.fit_sentences import ratio_text
from downset.results.fit import Fit
from downset.results.stream_fit import HopOffers, StreamFit
from downset.text import counted, format_bytes, format_seconds, printable, shortened

__all__ = ["hops_document", "stream_data", "stream_line", "stream_parts", "stream_values"]

_NAMED = 60
_BREAKS = 5


def stream_line(fit: Fit) -> str:
    """A sentence on the gain of a stream; "" where the result is none."""
    stream = fit.stream
    if stream is None:
        return ""
    record = stream.record
    how = "measured" if fit.measured is not None else "planned"
    fitted = stream.fitted_bytes is not None and stream.fitted_bytes < stream.window_bytes
    before = stream.fitted_bytes if fitted else stream.window_bytes
    both = ", both fitted" if fitted else ""
    return (
        f"Called every {counted(record.hop, 'row')}, not on windows of {record.window}{both}: "
        f"{format_bytes(before or 0)} → {format_bytes(stream.stream_bytes)} B ({how}; ships: {fit.shipped}), "
        f"{_macs(stream.window_macs)} → {_macs(stream.macs)} a call."
    )


def stream_values(stream: StreamFit) -> tuple[Value, ...]:
    """The figures of a stream, which people see first."""
    values = []
    if stream.latency is not None and stream.window_s is not None:
        taken = f"{format_seconds(stream.window_s)} → {format_seconds(stream.latency.run_s)}"
        text = f"{taken}, {ratio_text(stream.latency)}"
        values.append(Value("window and call", text, remark="processor time, measured on this host"))
    if stream.growths is not None:
        window, call = map(format_bytes, stream.growths)
        values.append(Value("process", f"{window} → {call} B", remark="its growth, the window by default; measured"))
    return tuple(values)


_KEPT = (
    Column("state", lambda one: shortened(printable(one.state.tensor), _NAMED), left=True, key="tensor"),
    Column("rows", lambda one: f"{one.state.rows[0]} to {one.state.rows[1]} of {one.rows}"),
    Column("new rows", "new"),
    Column("age", lambda one: one.state.age, key="age"),
    Column("bytes", "nbytes", format_bytes, key="bytes"),
)


def stream_parts(stream: StreamFit) -> list[Part]:
    """The table of states, and what the caller must know."""
    nbytes = format_bytes(sum(one.nbytes for one in stream.kept))
    caption = f"kept from call to call: {nbytes} B, rows of the window's tensors"
    table = Table(_KEPT, stream.kept, caption, key="stream.states")
    return [table, *([Picture(lambda: _picture(stream))] if stream.kept else []), Facts(tuple(_facts(stream)))]


def _picture(stream: StreamFit) -> ChartGroup:
    from downset.reports.page.stream_figure import stream_figure

    return stream_figure(stream)


def _facts(stream: StreamFit) -> list[str]:
    record = stream.record
    rows = f"{record.hop} new rows of {record.input!r} along axis {record.axis}"
    lines = [
        f"give {rows} in each call; outputs count from call {record.first_exact} on (the first is 0), when all rows of "
        "a window were given, also after a reset and after rows that were lost"
    ]
    if stream.fitted_bytes is not None:
        as_it_is = f"as it is {format_bytes(stream.window_bytes)} B"
        lines.append(f"the window takes {as_it_is}, and fitted by itself {format_bytes(stream.fitted_bytes)} B")
    runs = stream.comparison
    if runs is None:
        lines.append("calls were not run against windows")
    elif runs.equal is not None and runs.runs:
        outcome = "equal bit for bit" if runs.equal else f"differ by up to {runs.max_abs_error or 0:g}"
        proof = "proven: every call computes its window; " if runs.proven else f"not proven: {runs.reason}; "
        lines.append(f"{proof}{counted(runs.runs, 'call')} against as many windows in {runs.runtime}: {outcome}")
    return lines + [
        f"shared less: {one.reason} at {one.kind} {shortened(printable(one.name), _NAMED)!r}"
        for one in stream.breaks[:_BREAKS]
    ]


def stream_data(fit: Fit) -> dict[str, Any]:
    """The stream as data."""
    stream = fit.stream
    if stream is None:
        return {"stream": None}
    values = named(
        stream, "window_bytes", "fitted_bytes", "stream_bytes", "window_macs", "macs", "kept_bytes", "window_s"
    )
    values |= named(stream.record, "window", "hop", "input", "axis", "form", "first_exact")
    latency = stream.latency
    values["call_s"] = None if latency is None else latency.run_s
    grown = stream.growths
    values["growths"] = None if grown is None else dict(zip(("window_bytes", "stream_bytes"), grown, strict=True))
    values["breaks"] = [one._asdict() for one in stream.breaks]
    values["equal"] = None if stream.comparison is None else stream.comparison.equal
    values["proven"] = None if stream.comparison is None else stream.comparison.proven
    return {f"stream.{key}": value for key, value in values.items()}


_OFFERS = (
    Column("hop", "hop", key="hop"),
    Column("MACs", "macs", lambda count: f"{count:,}", key="macs"),
    Column("bytes", "arena_bytes", format_bytes, key="arena_bytes"),
    Column("states, bytes", "state_bytes", format_bytes, key="state_bytes"),
    Column("states", "states", key="states"),
    Column("proven", "exact", lambda exact: "yes" if exact else "by runs", key="exact"),
)


def hops_document(hops: HopOffers) -> Document:
    """The hops that streams of a model could have; docs/schemas/fit.json has the keys."""
    title, how = PurePath(hops.model).name, "measured" if hops.measured else "planned"
    caption = (
        f"windows of {hops.window} rows: {_macs(hops.window_macs)}, {format_bytes(hops.window_bytes)} B fitted ({how})"
    )
    verdict = Verdict("plain", f"{counted(len(hops.offers), 'hop')} along axis {hops.axis} of {hops.input!r}.")
    lines = [Message("No file was written: with no hop a stream takes less than the window.")]
    if hops.offers:
        hop = hops.offers[len(hops.offers) // 2].hop
        lines = [Message("No file was written: name a hop, ", Setting("stream", (hop,)), ".")]
    lines += [Message(f"left out: hop {hop}, {reason}") for hop, reason in hops.left_out]
    sections = (Section("Hops", (Table(_OFFERS, hops.offers, caption, key="hops"), Facts(tuple(lines)))),)
    data = named(hops, "model", "input", "axis", "window", "window_macs", "window_bytes")
    data["hops_measured"] = hops.measured
    data["left_out"] = [{"hop": hop, "reason": reason} for hop, reason in hops.left_out]
    return Document(title, f"bytes are {how}, with the states in them", verdict, sections, (), (), data)


def _macs(count: int) -> str:
    """Multiply-adds, in millions where they are as many."""
    return f"{count / 1e6:.2f} MMACs" if count >= 100_000 else f"{count:,} MACs"
