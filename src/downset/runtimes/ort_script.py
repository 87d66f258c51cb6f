"""A Python program that opens a fitted file's session. It needs onnxruntime and numpy, and does not import downset.

Its function `open_session` is for the user's program. Run as a program it prints the memory and time of a session, by
the same figures of the runtime that `fit` prints, so that the user can check them; with the word `arena` behind it only
what takes little time, the bytes of the arena. The program of a stream has a class `Stream` in addition, which keeps
its states from call to call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from downset.results.processes import ProcessorBound
from downset.results.sessions import SessionTaken
from downset.results.sizes import PlannedSize
from downset.results.streams import StreamRecord
from downset.runtimes.ort_settings import session_code
from downset.text import format_bytes, printable

__all__ = ["Inputs", "OtherProcessor", "relative_parts", "session_program"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a model. `arrays`: by name the shape, and numpy's name of the element type. `planned`: the sizes
    for which the file was planned, where these are ranges; a session of the program takes no others. `stream`: the
    record of a stream, whose program keeps the states. `values`: the numbers that the user gave for inputs that may
    choose what runs, as nested lists; others are generated."""

    arrays: Mapping[str, tuple[Sequence[int], str]]
    planned: Sequence[PlannedSize] = ()
    stream: StreamRecord | None = None
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OtherProcessor:
    """The way in which a program opens a model on another processor, or with another version of ONNX Runtime, than it
    is for (`bound`): it leaves the packed weights alone, or opens the file `original`. Without one it ends in an error:
    the model from which a stream was made takes windows."""

    bound: ProcessorBound
    original: str | os.PathLike[str] | None


def session_program(
    model: str | os.PathLike[str],
    taken: SessionTaken,
    inputs: Inputs,
    *,
    program: str | os.PathLike[str],
    version: str,
    other: OtherProcessor | None = None,
) -> str:
    """Python code that opens `model` with the settings in `taken` and, run as a program, measures the session. It finds
    the model by its path relative to `program`, the path where the code will be written."""
    shown = printable(Path(model).name).replace('"""', "?").replace("\\", "?")
    return _PROGRAM.format(
        shown=shown,
        version=version,
        in_use=format_bytes(taken.in_use_bytes),
        held=format_bytes(taken.held_bytes),
        process="?" if taken.process_bytes is None else format_bytes(taken.process_bytes),
        orders=_SAME if taken.settings.follows_file else _ANEW,
        path=relative_parts(model, program),
        other="" if other is None else _elsewhere(other, program),
        checked="" if other is None else _checked(other),
        stream="" if inputs.stream is None else _stream(inputs.stream),
        of_stream="" if inputs.stream is None else _OF_STREAM,
        inputs="".join(
            f"    {name!r}: ({tuple(shape)!r}, {dtype.replace('string', 'str')!r}),\n"  # numpy's name of texts
            for name, (shape, dtype) in inputs.arrays.items()
        ),
        values=_VALUES.format(values=dict(inputs.values)) if inputs.values else "",
        others="VALUES.get(name, np.zeros(shape))" if inputs.values else "np.zeros(shape)",
        session=_within(inputs.planned),
        class_name="Session" if inputs.planned else "ort.InferenceSession",
        settings=_indented(session_code(taken.settings)),
    )


def relative_parts(model: str | os.PathLike[str], program: str | os.PathLike[str]) -> tuple[str, ...]:
    """The parts of the path of `model` from the folder of `program`. A model that is a link is named by the link."""
    folder = os.path.relpath(Path(model).parent.resolve(), Path(program).resolve().parent)
    return (Path(folder) / Path(model).name).parts


def _within(planned: Sequence[PlannedSize]) -> str:
    """A class of sessions that refuse other sizes."""
    sizes = {one.name: (one.least, one.most, one.places) for one in planned}
    return _SESSION.format(sizes="".join(f"    {name!r}: {size!r},\n" for name, size in sizes.items())) if sizes else ""


def _elsewhere(other: OtherProcessor, program: str | os.PathLike[str]) -> str:
    bound, original = other.bound, other.original
    path = "" if original is None else _ORIGINAL.format(original=relative_parts(original, program))
    return path + _MADE_FOR.format(processor=bound.processor, runtime=bound.runtime)


def _checked(other: OtherProcessor) -> str:
    """Lines of `open_session` for other processors."""
    if not other.bound.layouts:
        return _PACKED
    return _REFUSED if other.original is None else _LAYOUTS


def _stream(record: StreamRecord) -> str:
    """The class that calls a stream."""
    return _STREAM.format(
        states="".join(f"    {state.name!r}: {state.next!r},\n" for state in record.states),
        rows=record.input,
        warm_up=record.first_exact,
        hop=record.hop,
        axis=record.axis,
        window=record.window,
    )


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


_SAME = "The nodes run in the order of the file, so that every load holds the same."
_ANEW = "ONNX Runtime orders the nodes again at every load: the next one may hold less or more."
_ORIGINAL = "ORIGINAL = Path(__file__).resolve().parent.joinpath(*{original!r})\n"
_MADE_FOR = '''\
PROCESSOR, RUNTIME = {processor!r}, {runtime!r}


def made_for_another():
    """Why the model is not for this process: another processor, or version of ONNX Runtime; "" where it is."""
    if ort.__version__ != RUNTIME:
        return f"the model is for ONNX Runtime {{RUNTIME}}, this is {{ort.__version__}}"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    digest = hashlib.sha256(" ".join(sorted(flags)).encode()).hexdigest()[:16] if flags else ""
    return "" if digest == PROCESSOR else "the model is for a processor with other instructions"


'''
_SESSION = '''\
PLANNED = {{
{sizes}}}
"""Sizes for which the file was planned: the least, the most, and the axes that have it."""


class Session(ort.InferenceSession):
    """A session that refuses sizes for which the file was not planned: it was not measured or compared there."""

    def run(self, output_names, input_feed, run_options=None):
        for name, (least, most, places) in PLANNED.items():
            for value, axis in places:
                size = np.shape(input_feed[value])[axis] if value in input_feed else least
                if not least <= size <= most:
                    planned = f"the file was planned for {{least}} to {{most}}"
                    raise ValueError(f"{{name}} is {{size}}: {{planned}}; fit the model for a larger range")
        return super().run(output_names, input_feed, run_options)


'''
_VALUES = "VALUES = {values!r}  # with which it was measured\n"
_LAYOUTS = """\
    if reason := made_for_another():
        print(f"{reason}: opening {ORIGINAL} by default", file=sys.stderr)
        return ort.InferenceSession(str(ORIGINAL), providers=["CPUExecutionProvider"])
"""
_REFUSED = """\
    if reason := made_for_another():
        raise RuntimeError(f"{reason}: fit the model here, or into one file, which runs everywhere")
"""
_OF_STREAM = """
`Stream()` is for your program, too: it calls the model on the rows that are new, and keeps its states.
"""
_STREAM = '''

STATES = {{
{states}}}
"""The inputs that hold rows of earlier calls, each with the output that becomes it."""
ROWS, WARM_UP = {rows!r}, {warm_up}
"""The input of new rows, and the calls after the first rows or a reset whose outputs do not count."""


class Stream:
    """The states of one source of rows: give each source a stream of its own. They may share a session."""

    def __init__(self, session=None):
        self.session = open_session() if session is None else session
        self.outputs = [one.name for one in self.session.get_outputs() if one.name not in STATES.values()]
        self.reset()

    def reset(self):
        """Forget all rows: before those of another recording, and after rows that were lost."""
        self.calls = 0
        self.states = {{name: np.zeros(*INPUTS[name]) for name in STATES}}

    def __call__(self, rows, others=None):
        """The outputs by name for the {window} rows that end with `rows`, which are {hop} along axis {axis}. None in
        the first {warm_up} calls, before all rows of a window were given. `others`: inputs that do not move, by
        name."""
        values = self.session.run([*self.outputs, *STATES.values()], {{**(others or {{}}), ROWS: rows, **self.states}})
        self.states = dict(zip(STATES, values[len(self.outputs) :]))
        self.calls += 1
        return dict(zip(self.outputs, values)) if self.calls > WARM_UP else None
'''
_PACKED = """\
    if reason := made_for_another():
        print(f"{reason}: its packed weights are not used", file=sys.stderr)
        options.add_session_config_entry("session.disable_prepacking", "1")
"""
_PROGRAM = '''\
"""Opens {shown} in ONNX Runtime by the settings under which it was measured by downset {version}.

`open_session()` is for your program. `python` with this file prints what a session takes; when this file was written,
{in_use} B in use in the arena at most, {held} B held by it, and a process that grew by {process} B.
{orders}
{of_stream}"""

import contextlib
import ctypes
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before onnxruntime is imported
import numpy as np
import onnxruntime as ort

MODEL = Path(__file__).resolve().parent.joinpath(*{path!r})
INPUTS = {{
{inputs}}}
{values}{other}{session}

def open_session(model=MODEL, *, profile_prefix=None):
    """A session by these settings; it has an arena of its own. They are what was measured. If they say one thread, more
    threads (intra_op_num_threads, 0 for all) may run faster; bytes and times are then others."""
{settings}
{checked}    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = profile_prefix
    return {class_name}(str(model), options, providers=["CPUExecutionProvider"])
{stream}

def made_up_inputs():
    """Random floats, and zeros of other types. Put your own here if values choose what runs (If, Loop)."""
    random = np.random.default_rng(0)
    return {{
        name: np.asarray(random.standard_normal(shape) if "float" in dtype else {others}, dtype)
        for name, (shape, dtype) in INPUTS.items()
    }}


def arena_bytes(runs=3):
    """The most bytes in use in the session's arena, and the most that it held, in so many runs."""
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(profile_prefix=str(Path(folder) / "profile"))
        for _ in range(runs):
            session.run(None, made_up_inputs())
        events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [event["args"] for event in events if event["name"].endswith("_kernel_time")]
    if not any("mem_in_use_peak" in event for event in kernels):
        return 0, 0  # the session has no arena
    in_use = max(int(event["mem_in_use_peak"]) for event in kernels)
    return in_use, max(in_use, *(int(event["mem_arena_held"]) for event in kernels))


def process_bytes(runs=3):
    """By how much the resident memory of this process grows at most; None where the system does not tell (no Linux)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    inputs = made_up_inputs()
    before, session = resident(status, "VmRSS:"), open_session()
    for _ in range(runs):
        session.run(None, inputs)
    return resident(status, "VmHWM:") - before


def resident(status, key):
    return next(1024 * int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(key))


def median_s(rounds=31):
    """Seconds of a run, in the median."""
    session, inputs, taken = open_session(), made_up_inputs(), []
    for _ in range(rounds):
        begin = time.perf_counter()
        session.run(None, inputs)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


if __name__ == "__main__":
    arena_alone = sys.argv[1:] == ["arena"]
    if not arena_alone:
        print(f"process_bytes {{process_bytes()}}")  # first: memory that was freed is used again
    in_use_bytes, held_bytes = arena_bytes()
    print(f"in_use_bytes {{in_use_bytes}}")
    print(f"held_bytes {{held_bytes}}")
    if not arena_alone:
        print(f"median_ms {{1000 * median_s():.3f}}")
'''
