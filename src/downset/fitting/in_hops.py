"""The stream of a window's network, which is then fitted in its place, and what it is held against: its window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from downset.errors import DownsetError, InvalidPlan, UnsupportedError, UsageError
from downset.fitting.candidates import Candidate, Original
from downset.fitting.job import FitOptions, Job
from downset.fitting.moving_axis import breaks_of, broken, check_gains, chosen_rows, hop_of
from downset.fitting.preparing import measure_original, read
from downset.fitting.trials import disk_bytes
from downset.formats.onnx.read import without_defaults
from downset.formats.reading import load
from downset.formats.stream_files import carry_certificate, write_stream
from downset.formats.stream_records import record_of
from downset.memory.liveness import order_problem, peak_bytes
from downset.memory.models import memory_model, without_overlaps
from downset.messages import Message, Setting
from downset.partial.stream_rows import StreamRows
from downset.partial.streams import stream_of
from downset.results.fit import Fit
from downset.results.sessions import Latency, SessionTaken
from downset.results.stream_fit import KeptState, StreamFit
from downset.results.streams import StreamRecord
from downset.rewrites.tflite_form import tflite_form
from downset.runtimes.compare import compare
from downset.text import format_bytes

__all__ = [
    "InHops",
    "bytes_of_window",
    "in_hops",
    "least_to_beat",
    "measured_window",
    "window_options",
    "with_stream",
    "written_stream",
]

_ANY_ARENA = 1 << 40
"""A limit that no arena reaches: with one, the arena decides and no process is measured."""


@dataclass(frozen=True, slots=True)
class InHops:
    """A stream that is fitted. `window`: the window's network as it was measured; `rows`: what a call computes;
    `shapes`: the stated shapes of the window's inputs."""

    window: Original
    rows: StreamRows
    shapes: Mapping[str, tuple[int, ...]] | None


def in_hops(job: Job) -> tuple[Job, InHops | None]:
    """(the job that fits the stream in place of the model, the stream), where one is asked for; else the job itself.
    Raises UsageError for a hop that does not fit, and UnsupportedError where nothing is shared from window to window,
    naming the operators."""
    if job.options.stream is None:
        return job, None
    ask = hop_of(job.options.stream)
    if job.form not in (".tflite", ".onnx"):
        raise UsageError(
            Message(Setting("stream", job.options.stream), f" is for .tflite and .onnx files, not for {job.form}")
        )
    graph = without_defaults(load(job.path, shapes=job.options.shapes))
    rows = chosen_rows(graph, ask)
    check_gains(rows)
    job, window = measured_window(job)
    job.listener.progress("writing the stream")
    return written_stream(job, rows), InHops(window, rows, job.options.shapes)


def measured_window(job: Job) -> tuple[Job, Original]:
    """(the job for the target that runs the window, the window's network as it was measured)."""
    window_job = replace(job, scratch=_folder(job, "window"), options=replace(job.options, states="variables"))
    measured_job, window = measure_original(window_job, read(window_job))
    return replace(job, target=measured_job.target), window


def written_stream(job: Job, rows: StreamRows) -> Job:
    """The job that fits the stream of these rows, which is written, in place of the model."""
    stream = stream_of(rows, "states" if job.form == ".onnx" else "variables")
    path = _folder(job, "stream") / job.path.name
    write_stream(path, tflite_form(stream.graph), stream.record)
    options = replace(job.options, shapes=None, dims=None)
    return replace(job, path=path, options=options, ranges=None, asked_for=job.stated)


def _folder(job: Job, name: str) -> Path:
    folder = job.scratch / name
    folder.mkdir()
    return folder


def window_options(job: Job, shapes: Mapping[str, tuple[int, ...]] | None) -> FitOptions:
    """The options of the window's own fit, with which its stream is compared: nothing is written. `shapes`: those that
    were stated."""
    return replace(
        job.options,
        shapes=shapes,
        stream=None,
        output=None,
        session=None,
        states="variables",
        ram_bytes=None,
        arena_bytes=None if job.target.sessions is None else _ANY_ARENA,
        front=False,
    )


def with_stream(job: Job, asked: InHops, chosen: Candidate, result: Fit, fitted: Fit | None) -> Fit:
    """The result with what the stream takes beside its window: the figures before are the window's. `fitted`: the
    window's own fit. Raises UnsupportedError where the stream takes no less than the window (`least_to_beat`), and
    InvalidPlan where one of its hops differs from it."""
    rows, window = asked.rows, asked.window
    job.listener.progress("holding hops against windows")
    record = record_of(chosen.path)
    assert record is not None
    carry_certificate(job.path, chosen.path)
    runtime = job.target.name if window.file.measured is not None else None
    comparison = compare(window.file.path, chosen.path, runtime=runtime, shapes=asked.shapes, seed=job.options.seed)
    if not comparison.agrees():
        raise InvalidPlan(
            f"{job.options.model}: in {comparison.runtime} a hop differs from its window by up to "
            f"{comparison.max_abs_error or 0:g} of {comparison.largest:g}; nothing written"
        )
    before, fitted_bytes = bytes_of_window(window, fitted)
    after = chosen.measured_bytes() or chosen.arena_bytes
    window_s, latency = _times(job, asked, chosen)
    least = least_to_beat(before, fitted_bytes, job.planned_bytes)
    if after >= least:
        raise UnsupportedError(*_takes_no_less(job, asked, result, after, (before, least)))
    if fitted_bytes is not None and after >= fitted_bytes:
        job.notes.add(f"the window fitted by itself takes {format_bytes(fitted_bytes)} B, which is less")
    figures = StreamFit(
        record=record,
        window_bytes=before,
        fitted_bytes=fitted_bytes,
        stream_bytes=after,
        window_macs=rows.window_macs,
        macs=rows.macs,
        kept_bytes=rows.kept_bytes,
        kept=tuple(_kept_states(rows, record)),
        window_s=window_s,
        latency=latency,
        growths=_growths(job, asked, chosen),
        breaks=tuple(breaks_of(rows)),
        comparison=comparison,
    )
    result = _before_as_window(job, window, result)
    if result.measured is not None and result.measured.latency is not None and latency is not None:
        result = replace(result, measured=replace(result.measured, before_s=window_s, latency=latency))
    return replace(result, stream=figures, notes=tuple(job.notes))


def bytes_of_window(window: Original, fitted: Fit | None) -> tuple[int, int | None]:
    """The bytes of the window as it is, and after its own fit (None where that failed): measured, else planned."""
    before = window.file.measured_bytes() or window.before.arena_bytes
    if fitted is None:
        return before, None
    return before, fitted.arena.after if fitted.measured is None else fitted.measured.after


def least_to_beat(before: int, fitted_bytes: int | None, limit: int | None) -> int:
    """The bytes below which a stream is written: those of its window, fitted where that takes less. With a memory limit
    that its window keeps to only fitted, those of the window as it is: within it a stream is chosen for its time."""
    if fitted_bytes is None or (limit is not None and fitted_bytes <= limit):
        return before
    return min(before, fitted_bytes)


def _takes_no_less(
    job: Job, asked: InHops, result: Fit, after: int, window: tuple[int, int]
) -> tuple[str | Message, ...]:
    """The error of a stream that takes no less than its window, with what may ship it. `window`: the bytes of the
    window as it is, and those to beat."""
    before, least = window
    fitted = ", fitted," if least < before else ""
    told = (
        f"the stream takes {format_bytes(after)} B, and its window{fitted} {format_bytes(least)} B: nothing is written"
    )
    why = broken(asked.rows)
    less = job.target.offsets and not result.graph.states
    other = Message("; ", Setting("states", "in-place"), " may take less") if less else Message()
    limit = _least_limit(job, result, after)
    if job.planned_bytes is None and limit is not None and limit < before:
        name = "ram_bytes" if job.target.sessions is None else "arena_bytes"
        other = Message(other, "; ", Setting(name, limit), " ships it for its arithmetic")
    return told, other, f" ({why})" if why else ""


def _least_limit(job: Job, result: Fit, after: int) -> int | None:
    """The least memory limit that a stream which takes `after` bytes keeps to: in ONNX Runtime only by settings by
    which all loads run one order. None where it was measured by no such settings."""
    if job.target.sessions is None or result.measured is None:
        return after
    rows = (*result.measured.front, *result.measured.rows)
    return min((row.held_bytes for row in rows if row.settings.follows_file), default=None)


def _before_as_window(job: Job, window: Original, result: Fit) -> Fit:
    """The result whose figures before are those of the window, in place of those of the stream that was fitted."""
    problem = order_problem(window.graph, without_overlaps(memory_model(job.target.memory)))
    peak_before, measured, taken = (
        peak_bytes(problem, range(len(window.graph.ops))),
        result.measured,
        window.file.measured,
    )
    if measured is not None and taken is not None:
        rows = measured.rows
        if rows and window.file.settings is not None:
            rows = (SessionTaken("window", window.file.settings, taken["in_use_bytes"], taken["held_bytes"]), *rows)
        kernels = (taken.get("kernel_bytes", 0), measured.kernel_bytes[1])
        details = {"window": taken, **measured.details}
        measured = replace(measured, before=taken["total_bytes"], details=details, kernel_bytes=kernels, rows=rows)
    if result.ships_plan:  # else these are the arena and the network of what ships
        result = replace(result, before=window.before, original=window.graph)
    return replace(
        result,
        measured=measured,
        peak=replace(result.peak, before=peak_before),
        arena=replace(result.arena, before=window.before.arena_bytes),
        disk_bytes=(disk_bytes(Path(job.stated.model)), result.disk_bytes[1]),
    )


def _kept_states(rows: StreamRows, record: StreamRecord) -> Iterator[KeptState]:
    """The states of a record, with the rows that a call computes."""
    form, names = rows.moving.form, {meta.name: place for place, meta in enumerate(rows.moving.graph.tensors)}
    for state in record.states:
        tensor, (first, stop) = names[state.tensor], state.rows
        new = sum(end - begin for begin, end in rows.computed[tensor])
        yield KeptState(state, form.rows[tensor], new, form.bytes_per_row[tensor] * (stop - first))


def _times(job: Job, asked: InHops, chosen: Candidate) -> tuple[float | None, Latency | None]:
    """(seconds of a run of the window, the latency of a call with its ratio to that), where the runtime is timed."""
    window, target, seed = asked.window.file, job.target, job.options.seed
    if window.measured is None or not target.times:
        return None, None
    try:
        if target.sessions is not None:
            pairs = [(window.path, window.settings), (chosen.path, chosen.settings)]
            first, second = target.sessions.time(pairs, shapes=asked.shapes, seed=seed)
        else:
            assert target.time is not None
            first, second = target.time([window.path, chosen.path], seed=seed)
    except DownsetError as error:
        job.notes.add(Message("the window was not timed: ", error.message))
        return None, None
    return first.usual_s, second


def _growths(job: Job, asked: InHops, chosen: Candidate) -> tuple[int, int] | None:
    """The growth of a process for the window by default and for the stream as it ships, where sessions have one."""
    window, sessions, seed = asked.window.file, job.target.sessions, job.options.seed
    if sessions is None or window.measured is None:
        return None
    try:
        (first,) = sessions.processes([(window.path, window.settings)], shapes=asked.shapes, seed=seed)
        (second,) = sessions.processes([(chosen.path, chosen.settings)], shapes=None, seed=seed)
    except DownsetError as error:
        job.notes.add(Message("processes of window and stream were not measured: ", error.message))
        return None
    return None if first is None or second is None else (first, second)
