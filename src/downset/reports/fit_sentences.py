"""Describes a fit in sentences: what it gained, what was done, and how to run it."""

from __future__ import annotations

from downset.memory.kernel_needs import kernel_needs
from downset.memory.records import align_up
from downset.messages import Message, Setting
from downset.reports.comparisons import comparison_lines
from downset.results.fit import Fit, Measured, RamVerdict
from downset.results.plans import StoppedBy
from downset.results.policy import LARGER, SLOWER
from downset.results.sessions import DEFAULT, Latency, SessionSettings
from downset.text import counted, format_bytes, format_size, operator_name, shortened

__all__ = [
    "after_text",
    "done_lines",
    "fits_line",
    "gain_line",
    "growth_line",
    "how_to_run",
    "overlap_line",
    "planned_sizes",
    "ratio_text",
    "stopped_by",
    "target_line",
    "traded_line",
]

_AS_LARGE = 1.005
"""Files of up to this many times the bytes are said to have the same size."""


def ratio_text(latency: Latency) -> str:
    """The ratio to the original's time with the ends of its interval: "1.05x (1.03 to 1.07)"."""
    return f"{latency.ratio:.2f}x ({latency.ratio_low:.2f} to {latency.ratio_high:.2f})"


def after_text(measured: Measured) -> str:
    """The bytes that the shipped file took; a range where the loads of a session differ."""
    loads = measured.loads
    if loads is None or loads.least_bytes == loads.most_bytes:
        return format_bytes(measured.after)
    return f"{format_bytes(loads.least_bytes)} to {format_bytes(loads.most_bytes)}"


def stopped_by(result: Fit) -> StoppedBy:
    """The limit that ended the search early, or "interrupt" for the user; "" if nothing did, or if a limit did and the
    shipped candidate is proven nevertheless."""
    joint = result.together
    if result.interrupted:
        return "interrupt"
    return "" if result.arena.proven else joint.order.evidence.stopped_by or joint.arena.evidence.stopped_by


def traded_line(result: Fit) -> str:
    """A sentence on the time of a run here and the bytes on disk that the shipped file costs, against the original; ""
    where it runs the same operators from a file of the same size, and where what was measured of processes says it."""
    before, after = result.disk_bytes
    larger = after / before if before else 1.0
    if result.process is not None or not result.ships_plan or not (result.rewrites or larger > _AS_LARGE):
        return ""
    timed = result.taken or result.measured
    latency = None if timed is None else timed.latency
    time = "" if latency is None else f"{ratio_text(latency)} the time of a run on this host, "
    untimed = "; its time was not measured" if latency is None else ""
    costs = f"{time}{larger:.2f}x the bytes on disk{untimed}"
    if not result.beyond_policy:
        return f"It costs {costs}."
    limits = (Setting("slower", SLOWER), " and ", Setting("larger", LARGER))
    return Message("Nothing within the limits of time and file size (", *limits, f") fits; it costs {costs}.")


def target_line(result: Fit) -> str:
    """Why the file is fitted for LiteRT, where TFLite Micro refuses it; "" elsewhere."""
    return Message("Fitted for LiteRT: ", result.not_in_tflm) if result.not_in_tflm else ""


def done_lines(result: Fit) -> list[str]:
    """Sentences on what was done and how it is known, one a line: the search, rewrites, kernels, outputs and loads."""
    lines = []
    if limit := stopped_by(result):
        ended = (
            "interrupted; with more time" if limit == "interrupt" else f"stopped by the {limit} limit; with more of it"
        )
        lines.append(f"The search was {ended} a better plan may come.")
    for rewrite in result.rewrites:
        name = rewrite.short_name or operator_name(rewrite.name)
        if rewrite.kind == "row-wise":
            lines.append(f"rewritten: {name}; the peak falls by {format_bytes(rewrite.bytes_gained)} B")
            continue
        readers = counted(len(rewrite.readers), "operator")
        lines.append(
            f"rewritten: {name} taken apart ({rewrite.kind}, at {readers}); without "
            f"that the peak is {format_bytes(rewrite.bytes_gained)} B higher"
        )
    if result.assumed_kernels is not None:
        lines.append(overlap_line(result.assumed_kernels))
    lines += _overruns(result)
    if result.shipped != "original":
        kept = result.ram is None or result.ram.state == "fits"  # then the verdict tells what is not proven
        in_verdict = int(kept and result.outputs.proof is not None and not result.outputs.proven)
        lines += comparison_lines(result.outputs)[in_verdict:]
    lines += _loads(result)
    if result.session is not None and result.session.arena and not result.session.follows_file:
        lines.append(
            "ONNX Runtime optimises and orders this file by itself when it loads it: peak and arena above are of the "
            f"file's own order, measured is what ran ({result.session.name})"
        )
    return lines


def _overruns(result: Fit) -> list[str]:
    """A line about kernels of the named library that may write beyond the scratch that they ask for."""
    operators = kernel_needs(result.graph, result.kernels).overruns
    if not operators:
        return []
    more = f" and {len(operators) - 1} more" if len(operators) > 1 else ""
    return [
        f"by the source of {result.kernels} the kernel of {shortened(operators[0], 60)}{more} may write beyond the "
        "scratch that it asks for, over other tensors (issue 30 of ESP-NN): take a version in which that is mended"
    ]


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
    if loads.least_bytes == loads.most_bytes:
        held = f"{format_bytes(loads.most_bytes)} B were held in each of {loads.processes} fresh processes"
        return [f"{held}, and other loads may hold more, {why}"]
    return [
        f"loads differ: {format_bytes(loads.least_bytes)} to {format_bytes(loads.most_bytes)} B were held in "
        f"{loads.processes} fresh processes, and others may hold more, {why}"
    ]


def fits_line(result: Fit, ram: RamVerdict) -> str:
    """That a memory limit is kept, and the bytes left."""
    how = f"measured in {result.measured.runtime}" if result.measured else "by the memory model"
    if ram.of == "process" and result.process is not None:
        how = f"the most by which {result.process.shipped.growth.processes} processes grew, measured"
    if ram.scratch_bytes:
        how += f", with up to {format_bytes(ram.scratch_bytes)} B more for the {result.kernels} kernels"
    return (
        f"Fits {format_bytes(ram.limit_bytes)} B: {format_bytes(ram.needed_bytes)} B needed ({how}), "
        f"{format_bytes(ram.free_bytes)} B free"
    )


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
            if result.measured is not None and result.measured.is_least():
                return "A smaller plan exists, but the runtime takes less memory for the file as it is."
            return "A smaller plan exists, beyond the limits of time and file size."
        if arena.proven:
            return (
                "The file is already optimal among all orders of its operators, each computed whole, and all "
                f"placements of its tensors ({_proven(result)})."
            )
        if peak.proven:
            return (
                f"The file's order is already optimal among all orders ({_proven(result)}); no better placement was "
                "found."
            )
        return "No better order or placement was found."
    if peak.before == peak.after and peak.proven:
        return f"The file's order is already optimal ({_proven(result)}); {_other_gain(result)}"
    saved = (1 - arena.after / arena.before) if arena.before else 0.0
    text = f"Arena {saved:.1%} smaller ({result.shipped})"
    if result.session is not None and result.measured is not None and not _measures_the_same(result):
        less = 1 - result.measured.after / result.measured.before
        return f"ONNX Runtime's arena holds {less:.1%} less ({result.shipped}; by file and settings, measured)."
    if _measures_the_same(result):
        return f"{text} as planned, but the runtime takes as much for it as for the original."
    return f"{text}."


def _proven(result: Fit) -> str:
    """The word, with the sizes for which it holds where the file leaves sizes open."""
    return f"proven for {planned_sizes(result)}" if result.open_axes else "proven"


def planned_sizes(result: Fit) -> str:
    """The planned sizes of what the file leaves open."""
    return ", ".join(f"{axis.name} = {axis.size}" for axis in result.open_axes)


def growth_line(result: Fit) -> str:
    """How the bytes in use grow with each open axis; "" where that was not measured."""
    if not result.growth:
        return ""
    if any(one.curve for one in result.growth):
        curves = (
            ", ".join(f"{format_size(nbytes)} at {one.name} = {size}" for size, nbytes in one.curve)
            for one in result.growth
        )
        return f"Bytes in use: {'; '.join(curves)}"
    each = [f"{format_size(one.bytes_each)} for each {one.name}" for one in result.growth]
    to = ", ".join(f"{one.name} = {one.other_size}" for one in result.growth)
    first = result.growth[0]
    rest = first.in_use_bytes - first.bytes_each * first.size
    if len(each) > 1 or rest < 0:  # less than nothing is left where bytes grow more than in proportion
        planned = f"{format_size(first.in_use_bytes)} at {planned_sizes(result)}"
        return f"Bytes in use: {planned}, and from there {', '.join(each)} (measured up to {to}, one at a time)"
    return f"Bytes in use: {format_size(rest)} + {each[0]} (measured at {first.name} = {first.size} and {to})"


def _measures_the_same(result: Fit) -> bool:
    measured = result.measured
    return measured is not None and measured.needed[1] >= measured.needed[0]


def _other_gain(result: Fit) -> str:
    """The gain of the shipped candidate, if it does not come from the order."""
    if _measures_the_same(result):
        return "the runtime takes as much for it."
    if result.session is not None:
        return "the gain comes from the settings of the session (ONNX Runtime places tensors itself)."
    if result.arena.after < result.arena.before:
        return "the gain comes from the placement."
    return "nothing needs less."


def how_to_run(result: Fit) -> str:
    """The line to paste so that the file runs as it was measured; "" if it needs nothing."""
    if result.target == "tflm":
        if result.measured is not None:
            parts = result.measured.details[result.shipped]
            total, more = align_up(result.measured.needed[1], 16), ""
            if result.measured.kernel_bytes[1]:
                more = f" + {result.measured.kernel_bytes[1]} for the {result.kernels} kernels by formula"
            return (
                f"constexpr size_t kTensorArenaSize = {total};  "
                f"// head and scratch {parts['head_bytes']} + tail {parts['tail_bytes']}, as TFLite Micro reports them "
                f"here{more}; on a Cortex-M the tail is about {parts['cortex_m_tail_bytes']}"
            )
        return (
            f"constexpr size_t kTensorArenaSize = {align_up(result.arena.after, 16)} + TAIL;  "
            "// tensors only: TFLite Micro's scratch and tail are not known here (see the note)"
        )
    if result.session is not None and result.session != DEFAULT and not result.session_path:
        program = Setting("session", "out.py")
        return Message(f"open it by: {_options(result.session)} (", program, " writes the program)")
    return ""


def _options(settings: SessionSettings) -> str:
    """All settings of a session, on one line."""
    options = [f"{name} = {value}" for part in (settings.options, settings.config) for name, value in part.items()]
    arena, malloc = (
        ", ".join(f"{name} = {value}" for name, value in part.items()) for part in (settings.arena, settings.malloc)
    )
    options += [f"an arena of {arena} registered in the environment"] if arena else []
    return "; ".join([*options, *([f"mallopt of glibc with {malloc}"] if malloc else [])])
