"""The growth of a process that loads a model and runs it: resident memory in its parts, and processor time. Every file
has a new process, in which nothing else was opened, and files take turns.

What the library takes when it is imported does not count. Processor time is that of all threads, so that other
processes on the machine change it less than wall time.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.results.processes import ProcessGrowth

__all__ = ["FIGURES", "Ask", "figures_of", "growths_of", "in_turns"]

_RUNS = 3
"""Runs before those that are timed: from the second on, ONNX Runtime uses the memory pattern of the first."""
_TIMED_S, _MOST_RUNS = 0.15, 2000
"""Processor seconds of runs that are timed in one process, and the most runs."""
_WATCH_S = 0.001
"""Seconds between two looks at the anonymous memory of a process that loads a model."""
_POPULATE_READ = 22
"""Linux's MADV_POPULATE_READ."""
_MARK = b" "
"""Written by a child when it begins to load a model, and again when it has; JSON may begin with it."""
FIGURES = 5
"""Figures of a process: the first fields of `ProcessGrowth`."""

Ask = Callable[[Callable[[], None]], list[float]]
"""Gives the figures of one file in the process that calls it; calls what it is given before the model is loaded, and
before the runs that are timed."""


def growths_of(figures: npt.NDArray[np.float64]) -> list[list[ProcessGrowth]]:
    """By file: the readings of all rounds; none where one of its processes failed."""
    return [[] if np.isnan(each).any() else [_growth(*one) for one in each] for each in figures]


def _growth(peak: float, peak_anonymous: float, rest: float, rest_anonymous: float, cpu_s: float) -> ProcessGrowth:
    return ProcessGrowth(int(peak), int(peak_anonymous), int(rest), int(rest_anonymous), float(cpu_s))


def in_turns(asked: Sequence[Ask], *, rounds: int, limit_s: float) -> npt.NDArray[np.float64]:
    """The figures by file, round and figure, each of a child of this process. In a round every file has its turn, every
    second round in reverse sequence. NaN where a child failed. This process has imported no library: pages that it had
    read would not count."""
    figures = np.full((len(asked), rounds, FIGURES), np.nan)
    for turn in range(rounds):
        places = range(len(asked))
        for place in places if turn % 2 == 0 else reversed(places):
            if turn and np.isnan(figures[place, 0, 0]):
                continue
            answer = _in_child(asked[place], limit_s)
            if answer is not None:
                figures[place, turn] = answer
    return figures


def _in_child(ask: Ask, limit_s: float) -> list[float] | None:
    """The figures that `ask` gives in a child of this process, whose anonymous memory is watched between the two calls
    of what it is given: before, it has what this process had, and what the import of the library takes. None where it
    fails or takes longer than the limit."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            _give_back()
            _map_code()
            os.write(writing, json.dumps(ask(lambda: os.write(writing, _MARK))).encode())  # type: ignore[arg-type]
            status = 0
        os._exit(status)
    os.close(writing)
    begin, most, content = time.monotonic(), 0, b""
    while begin + limit_s > time.monotonic():
        loads = content == _MARK
        wait_s = _WATCH_S if loads else begin + limit_s - time.monotonic()
        if select.select([reading], [], [], wait_s)[0]:
            piece = os.read(reading, 1 << 12)
            content += piece
            if not piece:
                break
        elif loads:
            most = max(most, _resident(child).get("RssAnon", 0))
    else:
        os.kill(child, signal.SIGKILL)
        content = b""
    os.close(reading)
    os.waitpid(child, 0)
    if not content.strip():
        return None
    peak, anonymous, before, *others = json.loads(content)
    return [peak, max(anonymous, most - before), *others]


def figures_of(opened: Callable[[], Callable[[], object]], *, timed: bool, mark: Callable[[], None]) -> list[float]:
    """The figures of one model in this process, with the anonymous bytes before it was opened behind the second: these
    are of runs, where all files stay mapped. `opened` loads the model and returns what runs it; what it imports is
    imported before. The results of a run are kept while the next one runs, as programs do: a session's results lie in
    its arena. `mark` is called before the model is loaded, and before the runs that are timed."""
    _forget_peak()
    before = _resident()
    mark()
    run = opened()
    loaded = _resident()
    _forget_peak()
    kept = [run()]
    for _ in range(1, _RUNS):
        kept[:] = [run()]  # the results of the last run are there until those of this one take their place
    ran = _resident()
    mark()
    peak = max(loaded["VmHWM"], ran["VmHWM"]) - before["VmRSS"]
    anonymous = ran["VmHWM"] - ran["RssFile"] - before["RssAnon"]
    rest = ran["VmRSS"] - before["VmRSS"], ran["RssAnon"] - before["RssAnon"]
    sizes = [max(peak, 0), max(anonymous, 0), before["RssAnon"], *(max(nbytes, 0) for nbytes in rest)]
    return [*sizes, _run_s(run, timed)]


def _give_back() -> None:
    """Give back the heap that is free, of which a fork has its parent's: a model that uses it would not grow. What the
    import of the library leaves free stays, as in any process. Only glibc has this."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _map_code() -> None:
    """Map the code that this process shares with its parent, which a process that was not forked has read itself before
    it loads a model: else it would count where it is read again. It is skipped before Linux 5.14."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        for line in Path("/proc/self/maps").read_text().splitlines():
            parts = line.split()
            if len(parts) > 5 and parts[5].startswith("/") and parts[1].startswith("r-"):
                begin, end = (int(address, 16) for address in parts[0].split("-"))
                libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _POPULATE_READ)


def _run_s(run: Callable[[], object], timed: bool) -> float:
    """Processor seconds of a run, in the mean of as many as `_TIMED_S` allows."""
    kept: list[object] = []
    begin, runs = time.process_time(), 0
    while runs == 0 or (timed and runs < _MOST_RUNS and time.process_time() - begin < _TIMED_S):
        kept[:] = [run()]
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
