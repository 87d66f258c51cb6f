"""Describes a fit: what it gained, what is proven, and what the user can do next."""

from __future__ import annotations

from downset.memory.records import align_up
from downset.messages import Message, Setting
from downset.reports.comparisons import comparison_lines, proof_line
from downset.reports.naming import kind_name
from downset.reports.peak import peak_cause
from downset.results.fit import Fit, FrontRow, Measured
from downset.results.plans import StoppedBy
from downset.results.sessions import Latency, SessionSettings, SessionTaken
from downset.text import format_bytes, format_seconds, operator_name, shortened

__all__ = [
    "FRONT_COLUMNS",
    "SESSION_CAPTION",
    "SESSION_COLUMNS",
    "after_text",
    "fit_lines",
    "front_cells",
    "gain_line",
    "overlap_line",
    "peak_lines",
    "ratio_text",
    "session_cells",
    "stopped_by",
    "verdict_lines",
]


SESSION_COLUMNS = ("file, settings", "in use", "arena holds", "process grows by", "ms", "against default")
SESSION_CAPTION = "one thread; by settings other than file order loads differ: the most of some loads"
"""How the rows of sessions were measured."""


def session_cells(row: SessionTaken) -> tuple[str, ...]:
    """The cells of a session's row: file and settings, bytes in use, bytes held and grown by, milliseconds, ratio and
    its interval."""
    return (
        f"{row.file}, {row.settings.name}",
        format_bytes(row.in_use_bytes),
        format_bytes(row.held_bytes),
        "?" if row.process_bytes is None else format_bytes(row.process_bytes),
        *_time_cells(row.latency),
    )


def after_text(measured: Measured) -> str:
    """The bytes that the shipped file took; a range where the loads of a session differ."""
    loads = measured.loads
    if loads is None or loads.least_bytes == loads.most_bytes:
        return format_bytes(measured.after)
    return f"{format_bytes(loads.least_bytes)} to {format_bytes(loads.most_bytes)}"


def _time_cells(latency: Latency | None) -> tuple[str, str]:
    """Milliseconds, and how many times those of the original they are."""
    return ("?", "") if latency is None else (f"{1000 * latency.run_s:.2f}", ratio_text(latency))


def ratio_text(latency: Latency) -> str:
    """The ratio to the original's time with the ends of its interval: "1.05x (1.03 to 1.07)"."""
    return f"{latency.ratio:.2f}x ({latency.ratio_low:.2f} to {latency.ratio_high:.2f})"


def stopped_by(result: Fit) -> StoppedBy:
    """The limit that ended the search early, or "interrupt" for the user; "" if nothing did, or if a limit did and the
    shipped candidate is proven nevertheless."""
    joint = result.together
    if result.interrupted:
        return "interrupt"
    return "" if result.arena.proven else joint.order.evidence.stopped_by or joint.arena.evidence.stopped_by


FRONT_COLUMNS = (
    "segments",
    "arena",
    "head",
    "tail",
    "tail on Cortex-M",
    "taken",
    "more MACs",
    "operators",
    "file",
    "ms",
    "against original",
)


def front_cells(row: FrontRow) -> tuple[str, ...]:
    """The cells of a plan's row: segments (with a star if it is shipped), bytes planned and measured, arithmetic,
    operators, file, milliseconds. The tail stands twice: as measured, and as estimated for pointers of four bytes."""

    def taken(part: str) -> str:
        return format_bytes(row.measured[part]) if part in row.measured else ""

    return (
        f"{'* ' * row.ships}{len(row.segments)}",
        format_bytes(row.arena_bytes),
        taken("head_bytes"),
        taken("tail_bytes"),
        taken("cortex_m_tail_bytes"),
        taken("total_bytes"),
        f"{row.extra_share:.1%}",
        str(row.operators),
        format_bytes(row.file_bytes),
        *_time_cells(row.latency),
    )


def fit_lines(result: Fit, *, files: bool = True) -> list[str]:
    """The result of `fit`, one sentence a line: the verdict, the peak's cause, rewrites, traffic, outputs, how to run
    it, and, unless `files` is false, the file that was written."""
    lines = [*verdict_lines(result), gain_line(result)]
    if limit := stopped_by(result):
        ended = (
            "interrupted; with more time" if limit == "interrupt" else f"stopped by the {limit} limit; with more of it"
        )
        lines.append(f"The search was {ended} a better plan may come.")
    lines += peak_lines(result)
    for rewrite in result.rewrites:
        named = rewrite.short_name or operator_name(rewrite.name)
        if rewrite.kind == "row-wise":
            lines.append(f"rewritten: {named}; the peak falls by {format_bytes(rewrite.bytes_gained)} B")
            continue
        readers = f"{len(rewrite.readers)} operator{'' if len(rewrite.readers) == 1 else 's'}"
        lines.append(
            f"rewritten: {named} taken apart ({rewrite.kind}, at {readers}); without "
            f"that the peak is {format_bytes(rewrite.bytes_gained)} B higher"
        )
    for row in result.traffic:
        lines.append(
            f"off-chip traffic with {format_bytes(row.on_chip_bytes)} B on chip (simulated): "
            f"{format_bytes(row.before.total_bytes)} B before, {format_bytes(row.after.total_bytes)} B after "
            "(a dead tensor frees its room at once)"
        )
    if result.assumed_kernels is not None:
        lines.append(overlap_line(result.assumed_kernels))
    if result.not_measured:
        lines.append(Message("not measured: ", result.not_measured, "; the figures are the plan's alone"))
    if result.shipped != "original":
        lines += [line for line in comparison_lines(result.outputs) if line not in lines]
    if (line := _run_times(result)) is not None:
        lines.append(line)
    lines += [*_loads(result), *_how_to_run(result)]
    if result.output_path and files:
        lines.append(f"written: {result.output_path} ({result.shipped})")
    return lines


def peak_lines(result: Fit) -> list[str]:
    """The operator at the peak of what is shipped, and the largest tensors that live there; none without operators."""
    graph, order = result.graph, result.together.order
    steps = order.steps if result.ships_plan else range(len(graph.ops))
    cause = peak_cause(graph, steps, result.memory if result.ships_plan else result.target)
    if cause is None:
        return []
    op = graph.ops[cause.operator]
    what = f"{kind_name(graph, op)} {shortened(op.name, 60)!r}"
    return [
        f"peak at step {cause.step} of {len(graph.ops)}: {what}, where the largest live are",
        *(f"  {format_bytes(nbytes):>12} B  {shortened(name, 60)}" for name, nbytes in cause.live[:3]),
    ]


def _run_times(result: Fit) -> str | None:
    """Milliseconds of a run in TFLite Micro before and after; None if they were not measured."""
    measured = result.measured
    if measured is None or measured.before_s is None or measured.latency is None:
        return None
    before = format_seconds(measured.before_s)
    if result.shipped == "original":
        return f"one run in TFLite Micro on this host: {before} (measured)"
    return (
        f"one run in TFLite Micro on this host: {before} before, {format_seconds(measured.latency.run_s)} after, "
        f"{ratio_text(measured.latency)} (measured)"
    )


def _loads(result: Fit) -> list[str]:
    """A line about the bytes that the arena holds in loads other than the measured one."""
    loads = result.measured.loads if result.measured is not None else None
    if loads is None or result.session is None:
        return []
    if loads.at_every_load:
        return [
            f"every load holds {format_bytes(loads.most_bytes)} B: the settings fix the order of the nodes, and "
            f"{loads.processes} fresh processes that opened the file held no more"
        ]
    why = "though its settings fix the order of the nodes"
    if not result.session.follows_file:
        why = f"since by the settings {result.session.name!r} ONNX Runtime orders the nodes again at every load"
    return [
        f"loads differ: {format_bytes(loads.least_bytes)} to {format_bytes(loads.most_bytes)} B were held in "
        f"{loads.processes} fresh processes, and others may hold more, {why}"
    ]


def verdict_lines(result: Fit) -> list[str]:
    """The first lines of `fit_lines`: that a memory limit is kept, and the bytes left; and where it is not proven that
    the shipped file holds the original's network, why. Empty where there is nothing to say, or the network is not known
    to fit."""
    unproven = [] if result.outputs.proven else [proof_line(result.outputs)]
    if result.ram is None or result.ram.state != "fits":
        return unproven if result.ram is None else []
    how = f"measured in {result.measured.runtime}" if result.measured else "by the memory model"
    if result.ram.scratch_bytes:
        how += f", with up to {format_bytes(result.ram.scratch_bytes)} B more for the {result.kernels} kernels"
    fits = (
        f"fits {format_bytes(result.ram.limit_bytes)} B: {format_bytes(result.ram.needed_bytes)} B needed ({how}), "
        f"{format_bytes(result.ram.free_bytes)} B free"
    )
    return [fits, *unproven]


def overlap_line(kernels: str) -> str:
    """A sentence that names the kernels for which offsets are planned."""
    return Message(
        f"Results overlap inputs as the {kernels} kernels allow (",
        Setting("kernels"),
        "): the file is right in TFLite Micro with these kernels only, and other kernels give wrong results without a "
        "message.",
    )


def gain_line(result: Fit) -> str:
    """A sentence on the gain."""
    peak, arena = result.peak, result.arena
    if result.shipped == "original":
        if result.session is not None and result.session.arena:
            return "The file runs as it is; the gain comes from the settings of the session."
        if result.together.arena.arena_bytes < arena.after:
            return "A smaller plan exists, but the runtime takes less memory for the file as it is."
        if arena.proven:
            return (
                "The file is already optimal among all orders of its operators, each computed whole, and all "
                "placements of its tensors (proven)."
            )
        if peak.proven:
            return "The file's order is already optimal among all orders (proven); no better placement was found."
        return "No better order or placement was found."
    if peak.before == peak.after and peak.proven:
        return f"The file's order is already optimal (proven); {_other_gain(result)}"
    saved = (1 - arena.after / arena.before) if arena.before else 0.0
    text = f"Arena {saved:.1%} smaller ({result.shipped})"
    if result.session is not None and result.measured is not None and not _measures_the_same(result):
        held = 1 - result.measured.after / result.measured.before
        return f"ONNX Runtime's arena holds {held:.1%} less ({result.shipped}; by file and settings, measured)."
    if _measures_the_same(result):
        return f"{text} as planned, but the runtime takes as much for it as for the original."
    return f"{text}."


def _measures_the_same(result: Fit) -> bool:
    measured = result.measured
    return measured is not None and measured.after >= measured.before


def _other_gain(result: Fit) -> str:
    """The gain of the shipped candidate, if it does not come from the order."""
    if _measures_the_same(result):
        return "the runtime takes as much for it."
    if result.session is not None:
        return "the gain comes from the settings of the session (ONNX Runtime places tensors itself)."
    if result.arena.after < result.arena.before:
        return "the gain comes from the placement."
    return "nothing needs less."


def _how_to_run(result: Fit) -> list[str]:
    """Lines to paste that run the file as it was measured."""
    if result.target == "tflm":
        if result.measured is not None:
            name = "original" if result.shipped == "original" else result.shipped
            parts = result.measured.details[name]
            total = align_up(result.measured.after, 16)
            return [
                f"constexpr size_t kTensorArenaSize = {total};  "
                f"// head and scratch {parts['head_bytes']} + tail {parts['tail_bytes']}, as TFLite Micro reports them "
                f"here; on a Cortex-M the tail is about {parts['cortex_m_tail_bytes']}",
            ]
        return [
            f"constexpr size_t kTensorArenaSize = {align_up(result.arena.after, 16)} + TAIL;  "
            "// tensors only: TFLite Micro's scratch and tail are not known here (see the note)"
        ]
    if result.session is not None and result.session.arena:
        lines = [] if result.session.follows_file else [_not_in_order(result)]
        if result.session_path:
            return [*lines, f"opened as measured by: {result.session_path}"]
        program = Setting("session", "out.py")
        return [*lines, Message(f"open it by: {_options(result.session)} (", program, " writes the program)")]
    return []


def _not_in_order(result: Fit) -> str:
    return (
        "ONNX Runtime optimises and orders this file by itself when it loads it: peak and arena above are of the "
        f"file's own order, measured is what ran ({result.session.name if result.session else ''})"
    )


def _options(settings: SessionSettings) -> str:
    """All settings of a session, on one line."""
    options = [f"{name} = {value}" for name, value in settings.options.items()]
    config = [f"{name} = {value}" for name, value in settings.config.items()]
    arena = ", ".join(f"{name} = {value}" for name, value in settings.arena.items())
    return "; ".join([*options, *config, f"an arena of {arena} registered in the environment"])
