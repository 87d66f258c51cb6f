"""The document of a fit to two memories: the bytes to and from slow memory, what lies where, and what was checked."""

from __future__ import annotations

import math
from operator import itemgetter
from pathlib import PurePath
from typing import Any

from downset.messages import Message, Setting
from downset.reports.comparisons import comparison_data, comparison_lines
from downset.reports.document import (
    JSON_ONLY,
    PAGE,
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
    versions_value,
)
from downset.reports.gaps import bound_text, gap_of
from downset.reports.plan_documents import bytes_text
from downset.results.memories_fit import MemoriesFit, OtherPlan
from downset.results.two_memories import TwoMemories
from downset.text import counted, format_bytes, format_seconds, printable, shortened

__all__ = ["memories_document", "memories_title"]

_NAMED = 40
_METHODS = {
    "file_order": "file order",
    "least_peak": "order of least peak",
    "belady": "clairvoyant replacement of whole tensors",
}


def memories_document(fit: MemoriesFit) -> Document:
    """The result of `fit_memories`; docs/schemas/fit.json has its keys."""
    notes = tuple(Message("note: ", note) for note in fit.notes)
    sections = (
        Section("Both memories", (Picture(lambda: _picture(fit)),)),
        Section("Figures", (_memories_table(fit), _others_table(fit), *_moves(fit))),
        Section("What was done", (Facts(tuple(_facts(fit))), Facts(notes, PAGE))),
        Section("What must hold on the board", (Facts(tuple(_on_the_board(fit))),)),
    )
    return Document(
        memories_title(fit),
        f"{counted(len(fit.graph.ops), 'operator')}, {counted(len(fit.moves), 'move')}",
        _verdict(fit),
        sections,
        _figures(fit),
        _foot(fit),
        _data(fit),
    )


def memories_title(fit: MemoriesFit) -> str:
    return f"{PurePath(fit.model).name} in two memories"


def _picture(fit: MemoriesFit) -> ChartGroup:
    from downset.reports.page.memories_figure import memories_figure

    return memories_figure(fit)


def _verdict(fit: MemoriesFit) -> Verdict:
    plan, evidence = fit.plan, fit.plan.evidence
    moved, direct = map(format_bytes, (plan.moved_bytes, plan.direct_bytes))
    first = (
        f"{format_bytes(fit.slow_traffic_bytes)} B to and from slow memory in a run: {moved} moved, {direct} accessed "
        "there directly."
    )
    if not fit.slow_traffic_bytes:
        first = "All of it stays in fast memory: no byte goes to or comes from slow memory."
    if fit.memories.slow_persistent_bytes:
        first += " TFLite Micro's persistent part lies in slow memory; its accesses are not counted."
    every = "this network in strips" if fit.original_operators else "every order"
    unit = " B" if fit.cost is None else ""
    bound = bound_text(f"{format_bytes(evidence.bound)}{unit}", gap_of(int(evidence.value), int(evidence.bound)))
    how = f"{'proven least' if evidence.proven else f'{bound},'} for {every}"
    lines = [
        f"By the prices given a run costs {fit.cost:,.6g} ({how})."
        if fit.cost is not None
        else f"{how[0].upper()}{how[1:]}."
    ]
    before = _file_order(fit)
    if before is not None and before.moved_bytes + before.direct_bytes > fit.slow_traffic_bytes:
        total = format_bytes(before.moved_bytes + before.direct_bytes)
        lines.append(f"The file's order with the best residency takes {total} B.")
    return Verdict("good", first, "\n".join(lines))


def _file_order(fit: MemoriesFit) -> OtherPlan | None:
    return next((one for one in fit.others if one.method == "file_order"), None)


def _figures(fit: MemoriesFit) -> tuple[Value, ...]:
    return (
        Value("bytes moved", fit.plan.moved_bytes, bytes_text, on=PAGE),
        Value("accessed directly", fit.plan.direct_bytes, bytes_text, on=PAGE),
        Value("cost", fit.cost, lambda cost: f"{cost:,.6g}", on=PAGE),
    )


def _memories_table(fit: MemoriesFit) -> Table:
    memories = fit.memories
    rows = [
        (
            "fast",
            memories.fast_bytes,
            fit.plan.fast_bytes,
            memories.fast_scratch_bytes,
            memories.fast_persistent_bytes,
            fit.fast_taken_bytes,
        ),
        (
            "slow",
            memories.slow_bytes,
            fit.plan.slow_bytes,
            memories.slow_scratch_bytes,
            memories.slow_persistent_bytes,
            fit.slow_taken_bytes,
        ),
    ]
    titles = ("memory", "bytes", "tensors", "scratch", "persistent", "taken")
    keys = ("memory", "bytes", "tensors_bytes", "scratch_bytes", "persistent_bytes", "taken_bytes")
    columns = tuple(
        Column(title, itemgetter(place), str if not place else format_bytes, key=key, left=not place)
        for place, (title, key) in enumerate(zip(titles, keys, strict=True))
    )
    return Table(columns, rows, "what is where, in bytes", key="memories.places")


def _others_table(fit: MemoriesFit) -> Table:
    ours = OtherPlan("written", fit.plan.moved_bytes, fit.plan.direct_bytes)
    columns = (
        Column("plan", _plan_name, left=True),
        Column("", "method", key="method", on=JSON_ONLY),
        Column("moved", "moved_bytes", format_bytes, key="moved_bytes"),
        Column("accessed directly", "direct_bytes", format_bytes, key="direct_bytes"),
    )
    caption = "bytes to and from slow memory, by plan"
    return Table(columns, [ours, *fit.others], caption, key="memories.plans", marked=frozenset({0}))


def _plan_name(one: OtherPlan) -> str:
    return "this file" if one.method == "written" else _METHODS.get(one.method, one.method)


def _moves(fit: MemoriesFit) -> list[Part]:
    columns = (
        Column("move", lambda one: shortened(printable(one.name), _NAMED), left=True, key="tensor"),
        Column("step", "step", key="step"),
        Column("memory", lambda one: "fast" if one.into_fast else "slow", key="to"),
        Column("bytes", "nbytes", format_bytes, key="bytes"),
    )
    rest = "more moves: the page and JSON have them all"
    return [
        Table(columns, fit.moves, "moves, each a RESHAPE to the same shape", key="memories.moves", most=8, rest=rest)
    ]


def _facts(fit: MemoriesFit) -> list[str]:
    lines: list[str] = [*comparison_lines(fit.outputs)]
    memories = fit.memories
    between = abs(memories.distance) - (memories.fast_bytes if memories.distance > 0 else memories.slow_bytes)
    apart = format_bytes(between)
    if fit.ran_at is None:
        lines.append(f"run in TFLite Micro on this host with {apart} B between the memories")
    else:
        lines.append(
            f"run in TFLite Micro on this host at a distance of {fit.ran_at:,} B, as {apart} B between the memories "
            "are too many here: all else is the same"
        )
    if fit.original_operators:
        counts = f"{fit.original_operators:,} → {len(fit.graph.ops):,} operators"
        lines.append(
            f"segments are computed in strips of rows, which are copied into fast memory one by one: {counts}, "
            f"{fit.extra_macs:+.1%} arithmetic"
        )
    before, after = fit.disk_bytes
    lines.append(f"the file has {format_bytes(before)} → {format_bytes(after)} B on disk")
    if fit.plan.evidence.stopped_by:
        lines.append(f"the {fit.plan.evidence.stopped_by} limit ended the search; with more a better plan may come")
    return lines


def _on_the_board(fit: MemoriesFit) -> list[str]:
    memories = fit.memories
    lower, higher = ("fast", "slow") if memories.distance > 0 else ("slow", "fast")
    sizes = f"{format_bytes(memories.lower_bytes)} B from there"
    lines: list[str] = [
        "nothing of this ran on a board",
        f"{higher} memory begins {abs(memories.distance):,} B above {lower} memory, both at multiples of 16; TFLite "
        f"Micro's arena begins at {lower} memory ({sizes}) and spans both",
        f"the kernels are those of {fit.kernels!r}: they ask for at most {format_bytes(memories.scratch_bytes)} B of "
        f"scratch each, which lie at the beginning of {lower} memory",
        _persistent(memories),
        "while tensors are allocated, TFLite Micro's own planner takes all of the arena for its notes, with what lies "
        "between the memories: the header bounds that",
    ]
    if fit.output_path is None:
        lines.append(Message("no file was written: give ", Setting("output"), " to write it"))
    return lines


def _persistent(memories: TwoMemories) -> str:
    kept = (
        f"TFLite Micro keeps at most {format_bytes(memories.persistent_bytes)} B from run to run, at the end of "
        f"{memories.persistent_in} memory (measured on this host; fewer on a 32-bit board)"
    )
    return kept + ": operators read them there, which the bytes above leave out" * bool(memories.slow_persistent_bytes)


def _foot(fit: MemoriesFit) -> tuple[Value, ...]:
    limit = None if fit.time_limit_s == math.inf else fit.time_limit_s
    return (
        Value("model", fit.model, key="model"),
        Value("target", "tflm", lambda _: "TFLite Micro", key="target"),
        Value("operators", f"{len(fit.graph.ops):,}"),
        Value("kernels", fit.kernels, key="kernels"),
        Value("distance", fit.memories.distance, lambda distance: f"{distance:,} B"),
        Value("time limit", "none" if limit is None else format_seconds(limit)),
        Value("work limit", fit.work_limit, lambda work: f"{work:,}"),
        Value("seed", str(fit.seed or "")),
        Value("command", None if fit.command is None else Message(fit.command)),
        versions_value(fit.versions, key="versions"),
    )


def _data(fit: MemoriesFit) -> dict[str, Any]:
    plan, evidence, memories = fit.plan, fit.plan.evidence, fit.memories
    values: dict[str, Any] = {
        **named(plan, "moved_bytes", "direct_bytes", "fast_bytes", "slow_bytes"),
        **named(memories, "distance", "scratch_bytes", "persistent_bytes", "persistent_in"),
        **named(evidence, "value", "bound", "proven", "method"),
        "cost": fit.cost,
        "in_strips": fit.original_operators > 0,
        "extra_macs": fit.extra_macs,
        "tail_bytes": fit.tail_bytes,
        "ran_at": fit.ran_at,
        "copies": [one._asdict() for one in fit.spans],
    }
    return {
        **{f"memories.{key}": value for key, value in values.items()},
        "order": [fit.graph.ops[step].name for step in plan.order],
        "stopped_by": evidence.stopped_by or None,
        "outputs": comparison_data(fit.outputs),
        "disk_bytes": dict(zip(("before", "after"), fit.disk_bytes, strict=True)),
        **named(fit, "output_path", "notes"),
    }
