"""Tells candidates whose session holds the same bytes at every load, and tries that in fresh processes. The verdict
about a memory limit rests on this.

A session that runs the nodes in the file's order asks its arena for the same bytes in the same sequence at every load.
So a first region that was large enough is always large enough. Where ONNX Runtime orders nodes by itself, nothing that
was measured holds at another load. Runs of the written program never supply the number; they can refute it.
"""

from __future__ import annotations

from dataclasses import replace

from downset.errors import DownsetError
from downset.fitting.candidates import Candidate, Job
from downset.fitting.choosing import Narrowed
from downset.fitting.measuring import taken_of
from downset.fitting.shipping import program_code
from downset.fitting.strips import taken_bytes
from downset.messages import Message
from downset.results.fit import Fit, LoadsHeld
from downset.runtimes import ort
from downset.text import format_bytes

__all__ = ["PROCESSES", "other_loads", "run_program", "stays_within", "within_in_some_loads"]

PROCESSES = 5
"""Fresh processes in which the written program is run."""


def stays_within(file: Candidate, limit_bytes: int, beside_bytes: int, narrowed: Narrowed) -> bool:
    """Whether the runtime takes no more than `limit_bytes` for the candidate at every load; without a measurement
    whether the arena plus `beside_bytes` is no more."""
    if file.settings is None or file.measured is None:
        return taken_bytes(file, beside_bytes) <= limit_bytes
    if not file.settings.follows_file or file.measured["in_use_bytes"] > limit_bytes:
        return False
    return taken_bytes(narrowed(file), beside_bytes) <= limit_bytes


def run_program(job: Job, chosen: Candidate, result: Fit) -> Fit:
    """The result with what the program that opens the chosen file holds in fresh processes. If one of them held more
    than was measured, that is what the file takes, and it does not hold at every load. Nothing is run for targets
    without sessions, and where nothing was measured."""
    measured = result.measured
    if measured is None or chosen.settings is None:
        return result
    program = job.scratch / "opened.py"
    program.write_text(program_code(result, taken_of(chosen), chosen.path, program))
    try:
        printed = ort.program_bytes(program, PROCESSES)
    except DownsetError as error:
        note = Message("the program that opens the file did not run: ", error.message)
        return replace(result, notes=(*result.notes, note))
    most_in_use = max(in_use for in_use, _ in printed)
    held = [measured.after, *(nbytes for _, nbytes in printed)]
    loads = LoadsHeld(PROCESSES, min(held), max(held), chosen.settings.follows_file and max(held) == measured.after)
    rows = tuple(
        replace(row, in_use_bytes=max(row.in_use_bytes, most_in_use), held_bytes=max(held))
        if (row.file, row.settings) == (chosen.name, chosen.settings)
        else row
        for row in measured.rows
    )
    return replace(result, measured=replace(measured, after=max(held), rows=rows, loads=loads))


def other_loads(result: Fit) -> str:
    """Why the measured bytes of a session may not be those of every load; empty where they are, and where no session
    was measured."""
    if result.session is None or result.measured is None:
        return ""
    loads = result.measured.loads
    if loads is None:
        return "the program that opens it did not run"
    if loads.at_every_load:
        return ""
    said = f"{loads.processes} fresh processes that opened the file held up to {format_bytes(loads.most_bytes)} B"
    if result.session.follows_file:
        return f"{said}, others {format_bytes(loads.least_bytes)}"
    return f"{said}, and by the settings {result.session.name!r} ONNX Runtime orders nodes again at every load"


def within_in_some_loads(result: Fit, limit_bytes: int) -> list[str]:
    """A line for a session that held no more than the limit when it was measured, though other loads may hold more;
    none where there is none."""
    front = result.measured.front if result.measured is not None else ()
    rows = [row for row in front if not row.settings.follows_file and row.held_bytes <= limit_bytes]
    if not rows:
        return []
    row = min(rows, key=lambda row: row.held_bytes)
    return [
        f"{row.file}, {row.settings.name}, held {format_bytes(row.held_bytes)} B where measured, but other loads "
        "may hold more"
    ]
