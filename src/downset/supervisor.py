"""The command line is two processes: one works, and the other watches it and tells how it ended.

Protobuf, PyTorch's kernels and our native code run in the working process. Where one of them crashes, or runs on when a
signal asks the command to stop, the watching process says so in one line, prints the JSON that was asked for, and
removes what was temporary. It forks before anything else is imported: that costs a fork, and no second start of Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["STOPS", "Ended", "die_with", "fill_standard_streams", "supervise", "tell"]

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a command to stop."""
_LAST_STREAM = 2
"""The number of stderr."""
_PATIENCE_S = 0.3
"""Seconds that the working process gets to answer a signal. In native code Python does not even see it."""
_LEAVES_S = 3.0
"""Seconds beyond that for one that has answered, to print what belongs on stdout: a busy machine."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the working process ended before all was printed. `signal`: what ended it, 0 where it ended by itself.
    `stopped`: the signal that asked the command to stop, 0 where none did. `leaving`: it had answered that signal.
    `answering`: it had begun to print a failure. `where`: file and line of the Python code that it was in, if known."""

    signal: int
    stopped: int
    leaving: bool
    answering: bool
    where: str


_watcher: int | None = None
"""The pipe to the watching process; None where there is none."""


def tell(word: str, value: object = "") -> None:
    """Tell the watching process, if there is one. `folder` PATH: what is temporary. `leaving`: a signal was answered.
    `grace` SECONDS: how long it may take to stop from now on; nothing: as long as by default. `answering`: a failure is
    being printed. `ended` STATUS: all is printed."""
    if _watcher is not None:
        with contextlib.suppress(OSError):
            os.write(_watcher, os.fsencode(f"{word} {value}\n"))


def supervise(work: Callable[[], Any], explain: Callable[[Ended], int]) -> None:
    """Run `work` in a fork of this process, and end this process with its status; where it ended before it told one,
    with what `explain` returns. Signals are passed on, and the fork is killed where it does not answer them. It does
    not outlive this process."""
    global _watcher
    fill_standard_streams()
    told, traces, parent = os.pipe(), os.pipe(), os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # until this process passes them on
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(told[0])
        os.close(traces[0])
        _watcher = told[1]
        die_with(parent)
        faulthandler.enable(traces[1], all_threads=False)
        work()
        return
    os.close(told[1])
    os.close(traces[1])
    end, said = _watch(worker, _Pipe(told[0]), _Pipe(traces[0]))
    status = explain(end) if isinstance(end, Ended) else end
    if folder := said.value("folder"):
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(status)


def fill_standard_streams() -> None:
    """Open nothing where a standard stream is closed: no file that is opened later gets its number, to which libraries
    print whatever it is."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        pass
    os.close(spare)


def die_with(parent: int) -> None:
    """End this process when its parent ends, even by SIGKILL; it may have ended before this is called."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_look_after, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(0)


def _look_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


class _Pipe:
    """A pipe from the working process. It is read when it is asked for."""

    def __init__(self, number: int) -> None:
        os.set_blocking(number, False)
        self._number, self._read = number, b""

    def text(self) -> str:
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._number, 1 << 12):
                self._read += piece
        return os.fsdecode(self._read)

    def value(self, word: str) -> str | None:
        """The value that was told with this word last, None where the word was not told."""
        lines = [line.partition(" ") for line in self.text().split("\n")]
        return next((value for told, space, value in reversed(lines) if told == word and space), None)


def _watch(worker: int, said: _Pipe, traces: _Pipe) -> tuple[int | Ended, _Pipe]:
    """Wait until the process ends. Its exit status, or how else it ended; and what it told."""
    asked: list[int] = []
    waited: list[float] = []

    def send(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            os.kill(worker, number)

    def forward(number: int, frame: object) -> None:
        del frame
        if not asked:
            asked.append(number)
            send(number)
            wait(_PATIENCE_S)

    def wait(least_s: float) -> None:
        waited.append(float(said.value("grace") or least_s))
        signal.setitimer(signal.ITIMER_REAL, waited[-1])

    def overdue(number: int, frame: object) -> None:
        del number, frame
        if said.value("leaving") is not None and len(waited) == 1:
            wait(_LEAVES_S)
        else:
            send(signal.SIGKILL)

    signal.signal(signal.SIGALRM, overdue)
    for number in STOPS:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    for number in (signal.SIGALRM, *STOPS):
        signal.signal(number, signal.SIG_IGN)
    if (printed := said.value("ended")) is not None:  # whatever a library did while Python ended
        return int(printed), said
    if status >= 0 and not asked:
        return status, said
    stopped = asked[0] if asked else -status if -status in STOPS else 0
    leaving, answering = (said.value(word) is not None for word in ("leaving", "answering"))
    return Ended(max(-status, 0), stopped, leaving, answering, _innermost(traces.text())), said


def _innermost(trace: str) -> str:
    """File and line of the innermost call in what faulthandler wrote."""
    call = re.search(r'^  File "([^"\n]*)", line (\d+)', trace, re.MULTILINE)
    return f"{'/'.join(Path(call[1]).parts[-2:])}, line {call[2]}" if call else ""
