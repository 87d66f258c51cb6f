"""The growth of a process that opens a session of ONNX Runtime and runs it: resident memory in its parts, and processor
time. Every session has a new process, in which nothing else was opened, and sessions take turns.

What the library takes when it is imported does not count. Processor time is that of all threads, so that other
processes on the machine change it less than wall time.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.read import ELEMENT_TYPES
from downset.process.isolation import isolated
from downset.process.limits import RUNNING_S, worker_s
from downset.results.processes import ProcessGrowth
from downset.results.sessions import SessionSettings
from downset.runtimes.inputs import random_array

__all__ = ["fixed_shapes", "growth_here", "plain_sessions", "plain_settings", "process_growths"]

Named = str | os.PathLike[str]
Shapes = Mapping[str, Sequence[int]]
Inputs = Mapping[str, tuple[str, Sequence[int]]]
"""By name: numpy's element type and the shape."""

_MADE = {"float16", "float32", "float64", "bool", "str"} | {
    f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)
}
"""Element types of inputs that can be made."""
_RUNS = 3
"""Runs before those that are timed: from the second on, ONNX Runtime uses the memory pattern of the first."""
_TIMED_S, _MOST_RUNS = 0.15, 60
"""Processor seconds of runs that are timed in one process, and the most runs."""
_WATCH_S = 0.001
"""Seconds between two looks at the anonymous memory of a process that loads a session."""
_POPULATE_READ = 22
"""Linux's MADV_POPULATE_READ."""
_SETTLED = b"settled "
_FIGURES = 5
"""Figures of a process: the first fields of `ProcessGrowth`."""


def process_growths(
    sessions: Sequence[tuple[Named, SessionSettings]],
    *,
    shapes: Shapes | None = None,
    seed: int = 0,
    rounds: int = 1,
    timed: bool = True,
) -> list[list[ProcessGrowth]]:
    """The readings of each session, one for each of the `rounds`; all have the inputs of the first. In a round every
    session has its turn, every second round in reverse sequence. A session has no readings where one of its processes
    failed, and where the system does not report resident memory. Each process may take the time limit of a worker.
    Without `timed` there is one further run instead of many, and its time says little."""
    each_s = worker_s(RUNNING_S)
    inputs = _inputs(Path(sessions[0][0]), fixed_shapes(shapes)) if sessions else {}
    arguments = {"sessions": _plain_pairs(sessions), "inputs": inputs, "seed": seed}
    arguments |= {"rounds": rounds, "timed": timed, "each_s": each_s}
    most_s = each_s * (1 + rounds * len(sessions))
    arrays, _ = isolated(__name__, "growth_here", arguments, fresh=True, timeout_s=most_s)
    return [[] if np.isnan(each).any() else [_growth(*figures) for figures in each] for each in arrays["figures"]]


def _inputs(path: Path, shapes: Mapping[str, list[int]]) -> dict[str, tuple[str, list[int]]]:
    """By name: numpy's element type and the shape of an input. Raises UnsupportedError where no values can be generated
    for one."""
    graph, inputs = read_skeleton(path).graph, {}
    weights = {initializer.name for initializer in graph.initializer}
    for value in (value for value in graph.input if value.name not in weights):
        kind = value.type.tensor_type
        shape = shapes.get(value.name, [int(dim.dim_value) for dim in kind.shape.dim])
        dtype = ELEMENT_TYPES.get(kind.elem_type, "opaque").replace("string", "str")
        if not all(shape) or dtype not in _MADE:
            what = f"input {value.name!r} of type {dtype} and shape {shape}"
            raise UnsupportedError(f"{what}: no values can be generated for it")
        inputs[value.name] = (dtype, shape)
    return inputs


def _growth(peak: float, peak_anonymous: float, rest: float, rest_anonymous: float, cpu_s: float) -> ProcessGrowth:
    return ProcessGrowth(int(peak), int(peak_anonymous), int(rest), int(rest_anonymous), float(cpu_s))


def plain_sessions(
    sessions: Sequence[tuple[Named, SessionSettings]], shapes: Mapping[str, Sequence[int]] | None, seed: int
) -> dict[str, Any]:
    """Sessions as arguments of a worker."""
    return {"sessions": _plain_pairs(sessions), "shapes": fixed_shapes(shapes), "seed": seed}


def _plain_pairs(sessions: Sequence[tuple[Named, SessionSettings]]) -> list[tuple[str, Any]]:
    return [(os.fspath(path), plain_settings(settings)) for path, settings in sessions]


def plain_settings(settings: SessionSettings) -> Any:
    import msgspec

    return msgspec.to_builtins(settings)


def fixed_shapes(shapes: Mapping[str, Sequence[int]] | None) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in (shapes or {}).items()}


def growth_here(
    sessions: Sequence[tuple[str, Any]], inputs: Inputs, seed: int, rounds: int, timed: bool, each_s: float
) -> dict[str, npt.NDArray[Any]]:
    """`process_growths` inside a worker that has not imported the library: each session runs in a child, which imports
    it. Pages of the library that the parent had read would otherwise not count. Inputs are made once: they are there
    before a session is opened, and do not count."""
    importlib.import_module("downset.runtimes.ort_session")
    feeds = {
        name: random_array(shape, dtype, seed=seed, position=zlib.crc32(name.encode()))
        for name, (dtype, shape) in inputs.items()
    }
    figures = np.full((len(sessions), rounds, _FIGURES), np.nan)
    for turn in range(rounds):
        places = range(len(sessions))
        for place in places if turn % 2 == 0 else reversed(places):
            if turn and np.isnan(figures[place, 0, 0]):
                continue
            path, fields = sessions[place]
            answer = _in_child(partial(_figures, path, fields, feeds, timed), each_s)
            if answer is not None:
                figures[place, turn] = answer
    return {"figures": figures}


def _in_child(ask: Callable[[Callable[[], None]], list[float]], limit_s: float) -> list[float] | None:
    """The figures that `ask` gives in a child of this process, whose anonymous memory is watched until it calls what it
    is given; None where it fails or takes longer than the limit."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            os.write(writing, json.dumps(ask(lambda: os.write(writing, _SETTLED))).encode())  # type: ignore[arg-type]
            status = 0
        os._exit(status)
    os.close(writing)
    begin, most, content = time.monotonic(), 0, b""
    while begin + limit_s > time.monotonic():
        wait_s = _WATCH_S if not content else begin + limit_s - time.monotonic()
        if select.select([reading], [], [], wait_s)[0]:
            piece = os.read(reading, 1 << 12)
            content += piece
            if not piece:
                break
        elif not content:
            most = max(most, _resident(child).get("RssAnon", 0))
    else:
        os.kill(child, signal.SIGKILL)
        content = b""
    os.close(reading)
    os.waitpid(child, 0)
    if content in (b"", _SETTLED):
        return None
    peak, anonymous, before, *others = json.loads(content.removeprefix(_SETTLED))
    return [peak, max(anonymous, most - before), *others]


def _figures(path: str, fields: Any, feeds: Mapping[str, Any], timed: bool, settled: Callable[[], None]) -> list[float]:
    """The figures of one session in this process, with the anonymous bytes before it was opened behind the second:
    these are of runs, where all files stay mapped. `settled` is called before the runs that are timed."""
    import msgspec

    from downset.runtimes.ort_session import quiet_library
    from downset.runtimes.ort_settings import open_session

    _map_code()
    settings, library = msgspec.convert(fields, SessionSettings), quiet_library()
    _give_back()
    _forget_peak()
    before = _resident()
    session = open_session(library, path, settings)
    loaded = _resident()
    _forget_peak()
    for _ in range(_RUNS):
        session.run(None, feeds)
    ran = _resident()
    settled()
    peak = max(loaded["VmHWM"], ran["VmHWM"]) - before["VmRSS"]
    anonymous = ran["VmHWM"] - ran["RssFile"] - before["RssAnon"]
    rest = ran["VmRSS"] - before["VmRSS"], ran["RssAnon"] - before["RssAnon"]
    sizes = [max(peak, 0), max(anonymous, 0), before["RssAnon"], *(max(nbytes, 0) for nbytes in rest)]
    return [*sizes, _run_s(session, feeds, timed)]


def _give_back() -> None:
    """Give back the heap that is free, of which a fork has its parent's: a session that uses it would not grow. Only
    glibc has this."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _map_code() -> None:
    """Map the code that this process shares with its parent, which a process that was not forked has read itself before
    it opens a session: else it would count where it is read again. It is skipped before Linux 5.14."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        for line in Path("/proc/self/maps").read_text().splitlines():
            parts = line.split()
            if len(parts) > 5 and parts[5].startswith("/") and parts[1].startswith("r-"):
                begin, end = (int(address, 16) for address in parts[0].split("-"))
                libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _POPULATE_READ)


def _run_s(session: Any, feeds: Mapping[str, Any], timed: bool) -> float:
    """Processor seconds of a run, in the mean of as many as `_TIMED_S` allows."""
    begin, runs = time.process_time(), 0
    while runs == 0 or (timed and runs < _MOST_RUNS and time.process_time() - begin < _TIMED_S):
        session.run(None, feeds)
        runs += 1
    return (time.process_time() - begin) / runs


def _forget_peak() -> None:
    """Reset VmHWM to what is resident now; where that fails, the peak is that of the process's whole life."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _resident(process: int | None = None) -> dict[str, int]:
    """Bytes of this process, or of another, by the system's names: resident now (VmRSS, with its parts RssAnon and
    RssFile), and at most (VmHWM). Nothing of a process that has ended."""
    try:
        lines = Path(f"/proc/{process or 'self'}/status").read_text().splitlines()
    except OSError:
        if process is not None:
            return {}
        raise UnsupportedError("the system does not report resident memory") from None
    parts = (line.split() for line in lines if line.startswith(("VmRSS:", "VmHWM:", "RssAnon:", "RssFile:")))
    return {name.rstrip(":"): 1024 * int(kilobytes) for name, kilobytes, _ in parts}
