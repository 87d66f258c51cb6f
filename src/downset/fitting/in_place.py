"""The file that TFLite Micro runs with its states in place, in place of one that keeps them in variables."""

from __future__ import annotations

from pathlib import Path

from downset.arenas.plan import plan_arena
from downset.errors import UnsupportedError
from downset.fitting.job import Job
from downset.formats.reading import load
from downset.formats.tflite.states_in_place import write_in_place
from downset.formats.tflite.write import export_tflite
from downset.graph.core import Graph
from downset.text import counted, format_bytes

__all__ = ["check_target", "with_states_in_place"]


def with_states_in_place(job: Job) -> tuple[Path, list[str]]:
    """(the file with its states in place, notes about it), where that is asked for; else the job's own file. Raises
    UnsupportedError where it has to be and no state can."""
    states = job.options.states
    if states == "variables" or job.form != ".tflite" or not job.target.offsets:
        return job.path, []
    kept_so = bool(load(job.path).states)
    folder = job.scratch / "in_place"
    folder.mkdir(exist_ok=True)
    written = folder / f"without_offsets_{job.path.name}"
    form = write_in_place(job.path, written)
    stay = [f"state {name!r} stays a variable: {reason}" for name, reason in form.kept.items()]
    if not form.moved:
        if states == "in-place" and not kept_so:
            reason = "; ".join(stay) or "it keeps no variables"
            raise UnsupportedError(f"{job.path}: no state can be kept in place: {reason}")
        return job.path, stay
    job.listener.progress("moving the states in place")
    graph, path = load(written), folder / job.path.name
    arena = plan_arena(graph, range(len(graph.ops)), method="greedy_by_size", memory="tflm")
    export_tflite(path, graph, range(len(graph.ops)), offsets=arena.tensor_offsets)
    nbytes = sum(graph.tensors[state.read].nbytes for state in graph.states)
    moved = f"{counted(len(form.moved), 'state')} in place ({format_bytes(nbytes)} B): for TFLite Micro only"
    caller = "the caller initialises them, also after a reset, and sets the other inputs alone"
    return path, [f"{moved}; {caller} (a header of the file says how)", *stay]


def check_target(job: Job, graph: Graph) -> None:
    """Raise UnsupportedError for states in place where the target does not follow offsets."""
    if graph.states and not job.target.offsets:
        raise UnsupportedError(
            f"{job.path} keeps {counted(len(graph.states), 'state')} in place, which only TFLite Micro does: "
            f"{job.target.name} ignores offsets, and would lose them"
        )
