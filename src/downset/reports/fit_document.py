"""The document of a fit: whether it fits, what it gained, what is proven, and its memory map.

A new figure is one line here, and terminal, page and JSON have it: a `Value` in `_figures`, or a `Column` of a table.
Its key is described in docs/schemas/fit.json.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from downset.messages import Message, Setting, joined
from downset.reports.arena_view import ArenaView, arena_view, moved_steps
from downset.reports.comparisons import comparison_data, proof_line
from downset.reports.document import (
    EVERYWHERE,
    JSON_ONLY,
    PAGE,
    TERMINAL,
    ChartGroup,
    Code,
    Column,
    Document,
    Facts,
    Part,
    Picture,
    Section,
    Steps,
    Table,
    Value,
    Verdict,
    named,
    versions_value,
)
from downset.reports.fit_sentences import (
    after_text,
    done_lines,
    fits_line,
    gain_line,
    growth_line,
    how_to_run,
    ratio_text,
    stopped_by,
    target_line,
    traded_line,
)
from downset.reports.fit_steps import fit_next_steps
from downset.reports.fit_tables import FRONT, SESSIONS, candidates_picture, front_picture, latency_data, settings_text
from downset.reports.gaps import bound_text, gap_of, gap_text
from downset.reports.naming import shape_text
from downset.reports.peak import peak_cause, peak_table, peak_values
from downset.reports.process_view import process_data, process_line, process_note, process_tables
from downset.reports.stream_view import stream_data, stream_line, stream_parts, stream_values
from downset.results.fit import Fit, RamVerdict
from downset.results.sessions import Latency
from downset.text import counted, format_bytes, format_seconds, printable, shortened

__all__ = ["fit_document", "fit_title", "fit_views", "further_notes"]

_INPUTS = 4
"""Inputs that the line below the title names."""
_LARGEST = 3
"""Tensors at the peak that people see; JSON has all."""
_TARGETS = {"tflm": "TFLite Micro", "litert": "LiteRT", "ort": "ONNX Runtime", "torch": "PyTorch"}
_TIMED = {
    "tflm": "processor time, measured with reference kernels; a microcontroller takes other times",
    "litert": "processor time, measured on one thread without delegates; other processors take other times",
}
_SESSION_CAPTION = "one thread; by settings other than file order loads differ: the most of some loads"
"""How the rows of sessions were measured."""


def fit_document(fit: Fit) -> Document:
    """The result of `fit`; docs/schemas/fit.json has its keys."""
    views = fit_views(fit)
    peak = peak_cause(fit.graph, fit.shipped_steps, fit.shipped_memory)
    notes = tuple(Message("note: ", note) for note in further_notes(fit))
    sections = (
        Section("Memory", (Picture(lambda: _memory(fit, views)),)),
        Section("Stream", tuple([] if fit.stream is None else stream_parts(fit.stream))),
        Section("Processes", tuple(process_tables(fit))),
        Section("Figures", (_bytes_table(fit), *peak_table(peak, most=_LARGEST), *_sessions(fit), *_strips(fit))),
        Section("What was done", (Facts((_moved(views), *done_lines(fit))), Facts(notes, PAGE))),
        Section("What could be done next", (Steps(tuple(fit_next_steps(fit))),)),
        Section("How to run it", _run(fit)),
    )
    return Document(
        fit_title(fit),
        _subtitle(fit),
        _verdict(fit),
        sections,
        _figures(fit),
        _foot(fit),
        _data(fit) | peak_values(peak) | process_data(fit) | stream_data(fit),
    )


def fit_title(fit: Fit) -> str:
    """The model's file and its target, as the heading of documents and pictures."""
    return f"{PurePath(fit.model).name} on {_TARGETS.get(fit.target, fit.target)}"


def fit_views(fit: Fit) -> list[ArenaView]:
    """The arena before and the shipped arena; only one if both are the same."""
    graph = fit.original or fit.graph
    of_window = fit.stream is not None and fit.ships_plan
    same = not of_window and not fit.rewrites and len(graph.ops) == len(fit.graph.ops)  # whose bound it is
    before = arena_view(
        "before",
        graph,
        range(len(graph.ops)),
        fit.before,
        memory=fit.target,
        bound_bytes=fit.arena.bound if same else None,
    )
    before = _with_runtime(fit, "window" if of_window else "original", before)
    if not fit.ships_plan:
        return [replace(before, heading="as the file is")]
    plan = fit.together
    after = arena_view("after", fit.graph, plan.order.steps, plan.arena, memory=fit.memory, bound_bytes=fit.arena.bound)
    return [before, _with_runtime(fit, fit.shipped, after)]


def _with_runtime(fit: Fit, name: str, view: ArenaView) -> ArenaView:
    """The view of a candidate's arena with the scratch and the tail that TFLite Micro reports, if it was measured."""
    parts = fit.measured.details.get(name, {}) if fit.measured is not None else {}
    if "head_bytes" not in parts:
        return view
    scratch_bytes = max(0, parts["head_bytes"] - view.arena.arena_bytes)
    return replace(view, scratch_bytes=scratch_bytes, tail_bytes=parts["tail_bytes"])


def _subtitle(fit: Fit) -> str:
    inputs = [fit.graph.tensors[tensor] for tensor in fit.graph.inputs]
    names = [f"{shortened(printable(item.name), 40)} {shape_text(item)}".strip() for item in inputs[:_INPUTS]]
    more = [f"{len(inputs) - _INPUTS} more"] if len(inputs) > _INPUTS else []
    return f"{counted(len(fit.graph.ops), 'operator')}, inputs: {', '.join(names + more) or 'none'}"


def _verdict(fit: Fit) -> Verdict:
    ram, gain = fit.ram, stream_line(fit) or process_line(fit) or gain_line(fit)
    lines: list[str] = [*filter(None, [target_line(fit), traded_line(fit)])]
    lines += [] if fit.outputs.proven else [proof_line(fit.outputs)]
    if fit.process is not None:
        lines = [*filter(None, [process_note(fit), gain_line(fit)]), *lines]
    if fit.not_measured:
        lines.append(Message("Not measured: ", fit.not_measured, "; the figures are the plan's alone"))
    if growth := growth_line(fit):
        lines.append(growth)
    if ram is None:
        good = fit.arena.after < fit.arena.before or fit.arena.proven or fit.stream is not None
        if fit.process is not None:
            good = fit.process.shipped != fit.process.default
        return Verdict("good" if good else "plain", gain, joined("\n", lines))
    if ram.state == "fits":
        return Verdict("good", fits_line(fit, ram), joined("\n", [*lines, gain]))
    limit = f"{format_bytes(ram.limit_bytes)} B"
    if ram.state == "does not fit":
        least = f"{_least(ram, rewritten=bool(fit.rewrites))} at least {format_bytes(ram.least_bytes)} B"
        return Verdict("bad", f"Does not fit {limit}: {least}", ram.reason)
    return Verdict("unknown", f"Not known whether it fits {limit}", ram.reason)


def _least(ram: RamVerdict, *, rewritten: bool) -> str:
    if ram.least_of == "inputs or outputs alone":
        return "its inputs or outputs alone need"
    return f"every order{' of the rewritten network' if rewritten else ''} needs"


def _figures(fit: Fit) -> tuple[Value, ...]:
    """The most important figures. Those of bytes are a table on a terminal."""
    figures = [] if fit.stream is None else [*stream_values(fit.stream)]
    for row in _byte_rows(fit):
        bound = bound_text(f"{format_bytes(row.bound or 0)} B", gap_of(row.after, row.bound or 0))
        of_space = f" of {row.space}" if _in_strips(fit) else ""
        remark = row.remark or f"analytic, {'proven least' if row.proven else bound}{of_space}"
        text = f"{row.after_text} B" if row.before == row.after else f"{format_bytes(row.before)} → {row.after_text} B"
        figures.append(Value(row.title, text, remark=remark, on=PAGE))
    measured = fit.measured
    if measured is not None and measured.before_s is not None and measured.latency is not None:
        times = _times(measured.before_s, measured.latency, same=fit.shipped == "original")
        runtime = _TARGETS.get(fit.target, fit.target)
        figures.append(Value(f"one run in {runtime} on this host", times, remark=_TIMED.get(fit.target, "measured")))
    if fit.taken is not None and fit.taken.latency is not None:
        before = measured.rows[0].latency if measured is not None and measured.rows else None
        times = _times(None if before is None else before.run_s, fit.taken.latency)
        figures.append(Value("one run, measured", times, on=PAGE))
    return tuple(figures)


def _times(before_s: float | None, latency: Latency, *, same: bool = False) -> str:
    """Seconds of a run before and after, and their ratio. `same`: the original is what runs."""
    if same and before_s is not None:
        return format_seconds(before_s)
    before = "" if before_s is None else f"{format_seconds(before_s)} → "
    return f"{before}{format_seconds(latency.run_s)}, {ratio_text(latency)}"


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A row of the table of bytes. `space`: the plans for which the bound holds. `remark`: how it is measured."""

    title: str
    before: int
    after: int
    after_text: str
    bound: int | None = None
    proven: bool | None = None
    key: str = ""
    space: str = ""
    remark: str = ""


_BYTES = (
    Column("bytes", "title", left=True),
    Column("before", "before", format_bytes, key="before"),
    Column("", "after", key="after", on=JSON_ONLY),
    Column("after", "after_text"),
    Column("lower bound", "bound", format_bytes, key="bound"),
    Column("gap", lambda row: None if row.bound is None else gap_of(row.after, row.bound), gap_text, key="gap"),
    Column("proven", "proven", lambda proven: "yes" if proven else "no", key="proven"),
    Column("", "space", key="space", on=JSON_ONLY),
)


_STRIPS = "every plan in this order, with segments whole or in strips of rows"
"""The space for which a bound holds where strips ship (`partial.least_peak`)."""


def _in_strips(fit: Fit) -> bool:
    return any(rewrite.kind == "row-wise" for rewrite in fit.rewrites)


def _byte_rows(fit: Fit) -> list[_Bytes]:
    spaces = ("every order of the network that ships", "every order and placement of the network that ships")
    figures = (("peak of live bytes", fit.peak, "peak_bytes"), ("arena", fit.arena, "arena_bytes"))
    rows = [
        _Bytes(title, one.before, one.after, format_bytes(one.after), one.bound, one.proven, key, space)
        for (title, one, key), space in zip(figures, (_STRIPS, _STRIPS) if _in_strips(fit) else spaces, strict=True)
    ]
    if fit.measured is not None:
        how = "held" if fit.measured.rows else "measured"
        remark = f"by the settings {fit.session.name!r}" if fit.session is not None else "head, scratch and tail"
        title = f"{how} in {_TARGETS.get(fit.measured.runtime, fit.measured.runtime)}"
        rows.append(_Bytes(title, fit.measured.before, fit.measured.after, after_text(fit.measured), remark=remark))
        if any(fit.measured.kernel_bytes):
            before, after = fit.measured.needed
            remark = "measured, and scratch by formula"
            rows.append(_Bytes(f"with {fit.kernels}", before, after, format_bytes(after), remark=remark))
    return rows


def _bytes_table(fit: Fit) -> Table:
    legend = f"the lower bound holds for {_STRIPS}" if _in_strips(fit) else ""
    return Table(_BYTES, _byte_rows(fit), row_key=lambda row: row.key, legend=legend, on=TERMINAL)


def _sessions(fit: Fit) -> list[Part]:
    """Tables of the gains of file and settings, and of the other candidates, which a page draws."""
    measured = fit.measured
    if measured is None:
        return []
    title = f"what the file gains, and what its session's settings gain (bytes; measured; {_SESSION_CAPTION})"
    rows = Table(SESSIONS, measured.rows, title, key="measured.rows", on=JSON_ONLY if fit.process else EVERYWHERE)
    front = Table(SESSIONS, measured.front, key="measured.front", on=JSON_ONLY)
    if len(measured.front) < 2 or not measured.rows:
        return [rows, front]
    others = [row for row in measured.front if row not in measured.rows]
    caption = "other candidates, which none beats in both memory and time on one thread"
    picture = Picture(lambda: candidates_picture(fit, measured))
    return [rows, front, Table(SESSIONS, others, caption, on=TERMINAL), picture]


def _strips(fit: Fit) -> list[Part]:
    marked = frozenset(place for place, row in enumerate(fit.front) if row.ships)
    caption = "segments in strips: memory against work (* ships)"
    table = Table(FRONT, fit.front, caption, key="front", marked=marked, on=TERMINAL)
    return [table, *([Picture(lambda: front_picture(fit))] if fit.front else [])]


def _memory(fit: Fit, views: list[ArenaView]) -> ChartGroup:
    from downset.reports.page.memory_figure import memory_figure

    note = ""
    if not fit.ships_plan and fit.arena.proven:
        note = (
            "Already optimal (proven) among all orders of the operators, each computed whole, and all placements of "
            "the tensors."
        )
    elif fit.ships_plan and fit.peak.before == fit.peak.after and fit.peak.proven:
        note = "The file's order is already optimal (proven): what changes is where tensors lie."
    planned = fit.ram is not None and fit.ram.of == "plan"
    return memory_figure(views, limit_bytes=fit.ram.limit_bytes if fit.ram is not None and planned else None, note=note)


def _moved(views: list[ArenaView]) -> str:
    if len(views) > 1 and (moved := len(moved_steps(views[0].operators, views[1].operators))):
        return f"{moved} of {len(views[1].operators)} operators are new or run at another place in the order"
    return "the order is the file's"


def further_notes(fit: Fit) -> tuple[str, ...]:
    """The notes, but not why nothing was measured, which the verdict says."""
    return tuple(note for note in fit.notes if not fit.not_measured or fit.not_measured not in note)


def _run(fit: Fit) -> tuple[Part, ...]:
    written: list[str]
    if fit.output_path:
        written = [f"written: {fit.output_path} ({fit.shipped})"]
    elif fit.ram is not None and fit.ram.state != "fits":
        written = [
            "No file was written, as none is known to fit.",
            Message(
                "Without ",
                Setting(fit.ram.setting),
                " the file of least memory within the limits of time and file size is written.",
            ),
        ]
        if fit.shipped.startswith("strips"):
            asks = (Setting("max_recompute", 1.0), ", without ", Setting(fit.ram.setting), ", asks for that.")
            written.append(Message("The least found is in strips of rows: ", *asks))
    else:
        written = [Message("No file was written: give ", Setting("output"), " to write it.")]
    if fit.session_path:
        written.append(f"{fit.session_path} opens it by the settings that were measured")
    text = how_to_run(fit)
    return (Facts(tuple(written), PAGE), *([Code("As it was measured:", text)] if text else []))


def _foot(fit: Fit) -> tuple[Value, ...]:
    """The network, and the conditions of the figures: limits, settings, the command and the versions."""
    limit = None if fit.time_limit_s == math.inf else fit.time_limit_s
    return (
        Value("model", fit.model, key="model"),
        Value("target", fit.target, lambda target: _TARGETS.get(target, target), key="target"),
        Value("operators", f"{len(fit.graph.ops):,}"),
        Value("memory model", fit.shipped_memory),
        Value("shipped", fit.shipped, key="shipped"),
        Value("right with the kernels", fit.assumed_kernels, key="kernels"),
        Value("time limit", "none" if limit is None else format_seconds(limit)),
        Value("work limit", fit.work_limit, lambda work: f"{work:,}"),
        Value("seed", str(fit.seed or "")),
        Value("session", fit.session, settings_text, key="session"),
        Value("command", None if fit.command is None else Message(fit.command)),
        versions_value(fit.versions, key="versions"),
    )


def _data(fit: Fit) -> dict[str, Any]:
    """The shipped file as data: its order, the places of its tensors, what the runtime keeps, and more."""
    arena = fit.together.arena if fit.ships_plan else fit.before
    measured, ram = fit.measured, fit.ram
    parts = measured.details.get(fit.shipped, {}) if measured is not None else {}
    head = parts.get("head_bytes")
    limits = ("state", "limit_bytes", "needed_bytes", "least_bytes", "least_of", "least_in_order_bytes", "of")
    measurement: dict[str, Any] = {"measured": None}
    if measured is not None:
        values = named(measured, "runtime", "before", "after", "before_s", "latency", "loads")
        values |= {"latency": latency_data(measured.latency), "after_s": measured.latency and measured.latency.run_s}
        needed = dict(zip(("before", "after"), measured.needed, strict=True))
        values["with_kernels"] = {"kernels": fit.kernels, **needed} if any(measured.kernel_bytes) else None
        measurement = {f"measured.{key}": value for key, value in values.items()}
    return {
        **measurement,
        "ram": None if ram is None else named(ram, *limits, "free_bytes", "scratch_bytes"),
        "order": [fit.graph.ops[step].name for step in fit.shipped_steps],
        "offsets": [
            {"name": one.id, "offset": offset, "bytes": one.nbytes, "start": one.start, "stop": one.stop}
            for one, offset in zip(arena.records, arena.offsets, strict=True)
        ],
        "parts": {
            "head_bytes": head,
            "scratch_bytes": None if head is None else max(0, head - arena.arena_bytes),
            "tail_bytes": parts.get("tail_bytes"),
        },
        "not_measured": fit.not_measured or None,
        "not_in_tflm": fit.not_in_tflm or None,
        "policy": {**named(fit.policy, "slower", "larger"), "beyond": fit.beyond_policy},
        "disk_bytes": dict(zip(("before", "after"), fit.disk_bytes, strict=True)),
        "stopped_by": stopped_by(fit) or None,
        "outputs": comparison_data(fit.outputs),
        "open_axes": [named(axis, "name", "size") for axis in fit.open_axes],
        "growth": [
            named(one, "name", "size", "in_use_bytes", "other_size", "other_bytes", "bytes_each", "curve")
            for one in fit.growth
        ],
        "rewrites": [named(rewrite, "name", "kind", "bytes_gained", "readers") for rewrite in fit.rewrites],
        **named(fit, "session_path", "output_path", "notes"),
    }
