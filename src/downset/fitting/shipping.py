"""Writes the files of a fit: the model with its metadata, its weights, and the program that opens it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from downset import __version__
from downset.errors import UnsupportedError
from downset.fitting.candidates import Candidate, Job
from downset.formats.onnx.data_files import bring_weights
from downset.formats.onnx.metadata import foreign_operators, write_metadata
from downset.formats.writing import WRITERS
from downset.graph.core import Graph
from downset.process.whole_files import copy_whole, write_whole
from downset.results.fit import Fit
from downset.results.sessions import DEFAULT, SessionTaken
from downset.runtimes.ort_script import session_program
from downset.text import counted, format_bytes, shortened

__all__ = ["note_file_size", "note_operators", "note_workspaces", "program_code", "ship"]


def ship(job: Job, chosen: Candidate, result: Fit, *, output: Path, session: Path | None) -> Fit:
    """Write the chosen file to `output`, and with `session` the program that opens it with the measured settings. Each
    file is written whole or not at all. An original that is opened with default settings is copied unchanged."""
    program = _program(result, output, session) if session is not None else None
    if WRITERS[job.form].weights_outside:
        bring_weights(chosen.path, source=job.path, output=output)
    file = chosen.path
    if job.form == ".onnx" and (chosen.name != "original" or (result.session or DEFAULT) != DEFAULT):
        file = job.scratch / f"shipped{job.form}"
        write_metadata(chosen.path, file, _metadata(job, chosen, result))
    copy_whole(file, output)
    if program is not None and session is not None:
        write_whole(session, program.encode(), source=job.path)
    return replace(result, output_path=str(output), session_path=None if session is None else str(session))


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
    return entries


def _program(result: Fit, output: Path, session: Path) -> str:
    if result.taken is None:
        why = next((note for note in result.notes if note.startswith("not ")), "nothing was measured")
        raise UnsupportedError(f"no session is written: {why}")
    return program_code(result, result.taken, output, session)


def program_code(result: Fit, taken: SessionTaken, model: Path, program: Path) -> str:
    """The program, to be written to the path `program`, that opens `model` with the settings in `taken`."""
    graph = result.graph
    inputs = {
        graph.tensors[tensor].name: (graph.tensors[tensor].shape, graph.tensors[tensor].dtype)
        for tensor in graph.inputs
    }
    return session_program(model, taken, inputs, program=program, version=__version__)


_LARGER = 1.05
"""A file that is at least this many times as large as the original is reported."""


def note_file_size(job: Job, chosen: Candidate) -> list[str]:
    """A note where the shipped file is larger than the original."""
    before, after = job.path.stat().st_size, chosen.path.stat().st_size
    if after < _LARGER * before:
        return []
    return [
        f"the file is {after / before:.2f} times as large as the original: {format_bytes(after)} B in place of "
        f"{format_bytes(before)}"
    ]


def note_workspaces(graph: Graph, original: Candidate) -> str:
    """A note about the bytes that kernels hold while they run, with which the order was planned. `graph`: with
    workspaces; `original`: as measured."""
    most, operator = max((nbytes, operator) for operator, nbytes in original.workspaces.items())
    kernels = counted(len(original.workspaces), "kernel")
    return (
        f"planned with what {kernels} held here beyond inputs and results, up to {format_bytes(most)} B "
        f"({shortened(graph.ops[operator].name, 60)}): other versions, processors and numbers of threads hold other "
        "bytes"
    )


def note_operators(job: Job, chosen: Candidate) -> list[str]:
    """A note where the shipped file holds operators of ONNX Runtime that are not standard ONNX and not in the
    original."""
    if job.form != ".onnx" or chosen.name == "original":
        return []
    had = foreign_operators(job.path)
    has = {kind: count for kind, count in foreign_operators(chosen.path).items() if kind not in had}
    if not has:
        return []
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(has.items()))
    return [f"the file holds operators of ONNX Runtime's own, which other runtimes do not read: {listed}"]
