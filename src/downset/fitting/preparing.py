"""Reads what is fitted: the int8 form of a uint8 file, the file that the runtime executes, and the original as the
runtime places and measures it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from downset.errors import InvalidPlan, LoadError, UnsupportedError, UsageError
from downset.fitting.candidates import Candidate, Original, arena_as_placed
from downset.fitting.in_place import check_target, with_states_in_place
from downset.fitting.job import FitOptions, Job, Listener, Notes, SearchTime
from downset.fitting.measuring import estimate_runs, measure
from downset.fitting.ranges import split_ranges
from downset.fitting.verdict import early_verdict
from downset.formats.onnx.data_files import (
    check_room_for_weights,
    check_stored,
    external_files,
    link_weights,
    model_files,
)
from downset.formats.onnx.mapped import check_data_file, data_name
from downset.formats.onnx.read import without_defaults
from downset.formats.reading import known_sizes, load
from downset.formats.tflite.int8_form import fault, less_128, uses_uint8, write_int8_form
from downset.formats.tflite.read import moves_between_memories, two_memories
from downset.formats.writing import WRITERS
from downset.graph.core import Graph
from downset.graph.edit import with_workspaces
from downset.messages import Message, Setting, joined
from downset.process.whole_files import check_output
from downset.runtimes import tflm
from downset.runtimes.feeds import made_feeds, read_feeds
from downset.runtimes.outputs import in_litert
from downset.runtimes.targets import TARGETS, Target
from downset.text import counted, format_bytes, shortened

__all__ = ["as_int8", "int8_note", "measure_original", "read", "refuse_moves", "start"]


def start(options: FitOptions, target: Target, scratch: Path, listener: Listener) -> Job:
    """The job, with the int8 form of the model where that is to be fitted."""
    searches = SearchTime(options.time_limit_s)
    ranges = split_ranges(options.model, options.shapes, options.dims or {})
    dims = options.dims if ranges is None else ranges.largest
    sizes = known_sizes(options.model, shapes=options.shapes, dims=dims)  # type: ignore[arg-type]
    options = replace(options, shapes=sizes.shapes)
    job = Job(Path(options.model), target, options, scratch, listener, search_time=searches, ranges=ranges)
    job.notes.add(*filter(None, [sizes.note]))
    if not options.int8:
        return job
    listener.progress("writing the int8 form")
    path, note = as_int8(job.path, scratch / "int8", seed=options.seed)
    job.notes.add(note)
    return replace(job, path=path)


def refuse_moves(path: Path) -> None:
    """Raise UnsupportedError for a `.tflite` file with moves between two memories."""
    moves = 0 if two_memories(path) is None else moves_between_memories(path)
    if moves:
        raise UnsupportedError(
            f"{path} has moves between two memories ({moves:,}), which follow its own order and offsets: fit the "
            "original that it was made from"
        )


def read(job: Job) -> Original:
    """The network in the file that the runtime executes, not yet measured. Raises where weights beside the file are
    missing or cut short, where the output has no room for them, and where the user's inputs do not fit the network."""
    if WRITERS[job.form].weights_outside:
        check_stored(job.path)
    if job.form == ".tflite":
        refuse_moves(job.path)
    executed, notes = _executed_file(job)
    try:
        graph = _load(job, executed)
    except LoadError as error:
        if executed == job.path:
            raise
        graph, executed = _as_it_is(job, error), job.path
        notes = [Message("ONNX Runtime's optimised form is left out: ", error.message)]
    check_target(job, graph)
    own = graph if executed == job.path or not graph.states else load(job.path)
    read_feeds(own, job.options.inputs)  # a mistake is told before the searches
    job.notes.add(*notes)
    output = job.options.output
    job.notes.add(*filter(None, [graph.source.note]))
    if WRITERS[job.form].weights_outside:
        link_weights(job.path, job.scratch)  # what is written there refers to them
        if output is not None:
            read_from = model_files(job.path)
            check_output(output, source=read_from)
            if job.target.sessions is not None and not job.options.one_file:
                check_data_file(Path(output), read_from)
            check_room_for_weights(job.path, Path(output))
            _check_beside(job, Path(output), read_from)
    return _placed(job, executed, graph)


def _check_beside(job: Job, output: Path, read_from: Sequence[Path]) -> None:
    """Raise UsageError where the program, or the output itself, would replace a file with weights of either model."""
    beside = {output.with_name(data_name(output)), *(output.parent / location for location in external_files(job.path))}
    if output in beside:
        raise UsageError(f"output {output} has the name of the weights that are written next to it; choose another")
    if job.options.session is not None:
        check_output(job.options.session, source=read_from)
        if Path(job.options.session).resolve() in {path.resolve() for path in beside}:
            raise UsageError(
                Setting("session"),
                f" {job.options.session} has the name of weights that are written next to {output}; choose another",
            )


def measure_original(job: Job, original: Original) -> tuple[Job, Original]:
    """(the job, its original measured in the runtime), with the workspaces of its kernels where the runtime reports
    them. A file that TFLite Micro refuses is fitted for LiteRT where that runs it, and no target was asked for."""
    measured = _measured(job, original)
    if not job.notes.not_measured:
        return job, measured
    int8_form, note = int8_note(job.path) if job.target.name == "tflm" else (False, "")
    refuses = job.target.name == "tflm" and tflm.is_installed()
    if refuses and job.options.target is not None and job.options.kernels is None:
        elsewhere = Message(
            "without ", Setting("target", "tflm"), " and a header it is fitted for a runtime that runs it"
        )
        advice = note or elsewhere
        raise UnsupportedError(Message(job.notes.not_measured, "; ", advice))
    if refuses and not int8_form and job.options.kernels is None:
        other = _in_litert(job)
        if other is not None:
            return other
    job.notes.add(*filter(None, [note]))
    job.listener.not_measured(job.notes.not_measured)
    _tell_early(job, original, note)
    return job, replace(measured, int8_form=int8_form)


def _in_litert(job: Job) -> tuple[Job, Original] | None:
    """The job for LiteRT with its original measured there; None where LiteRT does not run the file, and then the job's
    notes say so."""
    reason = job.notes.not_measured
    lines = [line for line in job.notes if reason not in line]
    other = replace(job, target=TARGETS["litert"], notes=Notes([*lines], not_in_tflm=reason))
    original = _measured(other, read(other))
    if why := other.notes.not_measured:
        job.notes.lines = lines
        job.notes.not_measured = ""
        job.notes.add_not_measured(Message(reason, "; ", why))
        return None
    _tell_early(other, original, "")
    return other, original


def _tell_early(job: Job, original: Original, note: str) -> None:
    """Tell what a verdict about the memory limit may be, where the runtime of the target does not run the file."""
    limit = job.planned_bytes if job.options.ram_bytes is None else job.options.ram_bytes
    if limit is not None:
        reason = joined("; ", filter(None, [job.notes.not_measured or job.notes.not_in_tflm, note]))
        job.listener.notice(early_verdict(original.before if job.planned_limit else None, limit, reason))


def _measured(job: Job, original: Original) -> Original:
    if job.target.measures:
        job.listener.progress(f"running the original in {job.target.name}")
    began = time.perf_counter()
    files = measure(job, [original.file])
    measured_in_s = time.perf_counter() - began
    if files[0].workspaces:
        original = _placed(job, original.executed, with_workspaces(original.graph, files[0].workspaces))
        files = [replace(files[0], arena_bytes=original.before.arena_bytes)]
        job.notes.add(_workspaces(original.graph, files[0]))
    original = replace(original, files=tuple(files), measured_in_s=measured_in_s)
    if original.file.measured is not None:
        job.listener.takes_longer(estimate_runs(job, measured_in_s, 1)[1])
    return original


def _placed(job: Job, executed: Path, graph: Graph) -> Original:
    job.listener.progress("placing the original")
    with job.search_time.running():
        before = arena_as_placed(graph, tuple(range(len(graph.ops))), job.target, job.search_time.left_s)
    return Original(executed, graph, before, (Candidate("original", job.path, before.arena_bytes),))


def _executed_file(job: Job) -> tuple[Path, list[str]]:
    """The file that is planned: for ONNX Runtime the optimised form of the model, for TFLite Micro that with its states
    in place where that is asked for, else the model; and notes about it."""
    if job.target.prepare is None:
        return with_states_in_place(job)
    prepared = job.scratch / "optimised" / job.path.name
    prepared.parent.mkdir()
    return prepared, job.target.prepare(job.path, prepared, job.options.shapes)


def _load(job: Job, executed: Path) -> Graph:
    shapes = job.options.shapes
    if executed == job.path:
        return without_defaults(load(job.path, shapes=shapes, trust=job.options.trust))
    try:
        return without_defaults(load(executed, shapes=shapes))
    except LoadError as error:  # the message names the user's file, not the one made from it
        raise LoadError(error.message.edited(lambda words: words.replace(str(executed), str(job.path)))) from None


def _as_it_is(job: Job, error: LoadError) -> Graph:
    """The network of the model, where that of its optimised form cannot be read for the reason `error`, which is raised
    where the model cannot be read either."""
    try:
        return _load(job, job.path)
    except LoadError:
        raise error from None


def _workspaces(graph: Graph, original: Candidate) -> str:
    """A note about the bytes that kernels hold while they run, with which the order was planned. `graph`: with
    workspaces; `original`: as measured."""
    most, operator = max((nbytes, operator) for operator, nbytes in original.workspaces.items())
    kernels = counted(len(original.workspaces), "kernel")
    return (
        f"planned with what {kernels} held here beyond inputs and results, up to {format_bytes(most)} B "
        f"({shortened(graph.ops[operator].name, 60)}): other versions, processors and numbers of threads hold other "
        "bytes"
    )


def as_int8(path: Path, folder: Path, *, seed: int = 0) -> tuple[Path, str]:
    """(path of the int8 form in `folder`, a note about it). Raises UsageError where the file does not compute on uint8,
    UnsupportedError where it has no exact int8 form, and InvalidPlan where the two differ in LiteRT."""
    if path.suffix.lower() != ".tflite":
        raise UsageError(f"{path}: int8 is for .tflite files")
    graph = load(path)
    if not uses_uint8(path):
        raise UsageError(f"{path} does not compute on uint8: leave int8 out")
    folder.mkdir()
    rewritten = folder / path.name
    write_int8_form(path, rewritten)
    form = "the exact int8 form of the file is fitted: its inputs and outputs are those of the file less 128"
    names = [graph.tensors[tensor].name for op in graph.ops for tensor in op.outputs if tensor >= 0]
    feeds = made_feeds(graph, seed=seed)
    try:
        ours = in_litert(path, feeds, inside=names)
        theirs = in_litert(
            rewritten, [{name: less_128(value) for name, value in run.items()} for run in feeds], inside=names
        )
    except UnsupportedError as error:
        return rewritten, Message(f"{form}; it was not compared with the file (", error.message, ")")
    pairs = [pair for runs in zip(ours.outputs, theirs.outputs, strict=True) for pair in zip(*runs, strict=True)]
    pairs += [(value, theirs.inside[name]) for name, value in ours.inside.items() if name in theirs.inside]
    if any(less_128(one).tobytes() != other.tobytes() for one, other in pairs):
        raise InvalidPlan(f"{path}: the int8 form computes something else in LiteRT; nothing written")
    return rewritten, (
        f"{form}; LiteRT's kernels compute the same for both, bit for bit, on {len(feeds)} inputs, and in "
        f"{len(ours.inside)} tensors inside"
    )


def int8_note(path: Path) -> tuple[bool, str]:
    """(whether a file that TFLite Micro refuses computes on uint8 and has an exact int8 form, a note that says so); the
    note is empty for files that do not compute on uint8."""
    if not uses_uint8(path):
        return False, ""
    reason = fault(path)
    if reason is None:
        exact = "TFLite Micro does not run uint8; the file has an exact int8 form, which "
        return True, Message(exact, Setting("int8", True), " fits")
    return False, f"TFLite Micro does not run uint8, and the file has no exact int8 form: {reason}"
