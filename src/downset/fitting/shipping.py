"""Writes the files of a fit: the model with its metadata, its weights, and the program that opens it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from downset import __version__
from downset.errors import UnsupportedError
from downset.fitting.candidates import Candidate
from downset.fitting.job import Job
from downset.fitting.measuring import taken_of
from downset.formats.onnx.data_files import weights_brought
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.mapped import write_mapped
from downset.formats.onnx.metadata import add_metadata, write_metadata
from downset.formats.onnx.written import copy_model
from downset.formats.stream_records import record_of
from downset.formats.writing import WRITERS
from downset.process.file_ranges import check_copy
from downset.process.whole_files import copy_whole, write_whole
from downset.results.fit import Fit
from downset.results.sessions import DEFAULT
from downset.runtimes.feeds import read_feeds
from downset.runtimes.ort_native_script import PROGRAMS, native_program
from downset.runtimes.ort_script import Inputs, OtherProcessor, session_program

__all__ = ["program_code", "ship"]

_FEW = 16
"""The most elements of an input that a program states."""


def ship(job: Job, chosen: Candidate, result: Fit) -> Fit:
    """The result, with the chosen file written to the output, and to `session` the program that opens it with the
    measured settings, as far as these are asked for. Each file is written whole or not at all. An original that is
    opened with default settings is copied unchanged."""
    if job.options.output is None:
        return result
    output = Path(job.options.output)
    session = None if job.options.session is None else Path(job.options.session)
    program = _program(job, chosen, result) if session is not None else None
    _write_model(job, chosen, output, result)
    if program is not None and session is not None:
        write_whole(session, program.encode(), source=job.path)
    return replace(result, output_path=str(output), session_path=None if session is None else str(session))


def _write_model(job: Job, chosen: Candidate, output: Path, result: Fit) -> None:
    if chosen.mapped:
        model = read_skeleton(chosen.path)
        add_metadata(model, _metadata(job, chosen, result))
        write_mapped(chosen.path, model, output)
        return
    if not WRITERS[job.form].weights_outside:
        copy_whole(chosen.path, output, check=lambda part: check_copy(chosen.path, part, output))
        return
    with weights_brought(chosen.path, source=job.path, output=output):
        if chosen.name != "original" or (result.session or DEFAULT) != DEFAULT:
            write_metadata(chosen.path, output, _metadata(job, chosen, result))
        else:
            copy_model(chosen.path, output)


def _metadata(job: Job, chosen: Candidate, result: Fit) -> dict[str, str]:
    graph = result.graph
    sizes = (
        f"{graph.tensors[tensor].name}={','.join(map(str, graph.tensors[tensor].shape))}" for tensor in graph.inputs
    )
    entries = {"version": __version__, "target": job.target.name, "file": chosen.name, "inputs": " ".join(sizes)}
    if result.session is not None:
        entries["session"] = result.session.name
        if result.session.region_bytes is not None:
            entries["region_bytes"] = str(result.session.region_bytes)
        if result.session.cap_bytes is not None:
            entries["arena_bytes"] = str(result.session.cap_bytes)
    if chosen.bound is not None:
        entries |= {"processor": chosen.bound.processor, "runtime": chosen.bound.runtime}
        entries["form"] = "layouts" if chosen.bound.layouts else "packed weights"
    return entries


def _program(job: Job, chosen: Candidate, result: Fit) -> str:
    """The program that `session` names, in the language of its suffix."""
    if result.taken is None or result.session is None:
        reason = ("not measured: ", result.not_measured) if result.not_measured else ("nothing was measured",)
        raise UnsupportedError("no session is written: ", *reason)
    assert job.options.output is not None
    assert job.options.session is not None
    output, session = Path(job.options.output), Path(job.options.session)
    if session.suffix.lower() in PROGRAMS:
        return native_program(
            output,
            result.session,
            program=session,
            version=__version__,
            other=_other(job, chosen),
            planned=() if job.ranges is None else job.ranges.planned(),
        )
    return program_code(job, chosen, result, (output, session))


def program_code(job: Job, chosen: Candidate, result: Fit, files: tuple[Path, Path]) -> str:
    """The Python program that opens a model, by the settings of the chosen candidate. `files`: the paths of the model
    and of the program."""
    model, program = files
    taken = result.taken or taken_of(chosen)
    tensors = [result.graph.tensors[tensor] for tensor in result.graph.inputs]
    arrays = {tensor.name: (tensor.shape, tensor.dtype) for tensor in tensors}
    stream = record_of(chosen.path) if job.options.stream is not None else None
    planned = () if job.ranges is None else job.ranges.planned()
    inputs = Inputs(arrays, planned, stream, _chosen_values(job, result))
    return session_program(model, taken, inputs, program=program, version=__version__, other=_other(job, chosen))


def _chosen_values(job: Job, result: Fit) -> dict[str, object]:
    """The user's integers and booleans that are few, by the inputs' names: they may choose what runs."""
    if job.options.stream is not None or not job.options.inputs:
        return {}
    (given,) = read_feeds(result.graph, job.options.inputs[:1])
    few = {name: array for name, array in given.items() if array.dtype.kind in "biu" and array.size <= _FEW}
    return {name: array.tolist() for name, array in few.items()}


def _other(job: Job, chosen: Candidate) -> OtherProcessor | None:
    """The way of a program on other processors. The model of a stream takes windows: it cannot stand in for it."""
    if chosen.bound is None:
        return None
    return OtherProcessor(chosen.bound, None if job.options.stream is not None else job.options.model)
