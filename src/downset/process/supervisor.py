"""The command line runs as two processes: one works, and the other watches it and reports how it ended.

Protobuf, PyTorch's kernels and downset's native code run in the working process. If one of them crashes, or does not
stop when a signal asks the command to, the watching process prints one line and the JSON that was asked for, and
removes temporary files. It forks before other modules are imported, so that Python does not start twice.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = [
    "INTERRUPT",
    "INTERRUPT_AGAIN",
    "Ended",
    "die_with",
    "fill_standard_streams",
    "leave_watcher",
    "outliving_process",
    "stopping_signals",
    "supervise",
    "tell",
    "watched",
]

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_STREAM = 2
"""The number of stderr."""
INTERRUPT, INTERRUPT_AGAIN = signal.SIGUSR1, signal.SIGUSR2
"""How the first SIGINT is passed on to a process that is not to stop at it, and the second to the same process."""
_PATIENCE_S = 0.3
"""Seconds that the working process has to handle a signal. While native code runs, Python does not see signals."""
_LEAVES_S = 3.0
"""Further seconds for a process that has handled the signal, to print to stdout on a busy machine."""


class Ended(NamedTuple):
    """How the working process ended before it had printed everything. `signal`: the signal that ended it, 0 where it
    ended by itself, with the exit status `status`. `stopped`: the signal that asked the command to stop, 0 where none
    did. `leaving`: whether it had handled that signal. `answering`: whether it had begun to print a failure. `where`:
    file and line of the Python code that ran, if known. `ending`: why a library ends it, if that is known.
    `unfinished`: the file that names what it was writing, if there is one."""

    signal: int
    stopped: int
    leaving: bool
    answering: bool
    where: str
    status: int = 0
    ending: str = ""
    unfinished: str = ""


_watcher: int | None = None
"""The pipe to the watching process; None where there is none."""
_watching: int | None = None
"""The watching process; None where there is none."""
_status: int | None = None
"""The exit status of this process, once everything is printed."""


def stopping_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask a command to stop: SIGINT, SIGTERM and SIGHUP, without those that this process was started
    to ignore, as `nohup` and shells that start jobs in the background ask for."""
    return tuple(number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN)


def outliving_process() -> int:
    """The process that removes what this one leaves: the watching process, or this one where there is none."""
    return _watching or os.getpid()


def watched() -> bool:
    """Whether another process watches this one."""
    return _watcher is not None


def leave_watcher() -> None:
    """Tell the watching process nothing from now on: this is a fork of the process that it watches."""
    global _watcher
    _watcher = None


def tell(word: str, value: object = "") -> None:
    """Send a word to the watching process, if there is one. `folder` PATH: the folder of temporary files. `leaving`: a
    signal was handled. `interruptible` ANYTHING: the first SIGINT from now on does not stop it (no value: it does).
    `grace` SECONDS: how long stopping may take from now on (no value: the default). `answering`: a
    failure is being printed. `ending` WHY: the reason if a library ends this process from now on (no value: none is
    known). `unfinished` PATH: the file that names what is being written (no value: nothing). `ended` STATUS: everything
    is printed."""
    global _status
    if _watcher is not None:
        if word == "ended":
            _status = int(str(value))
        with contextlib.suppress(OSError):
            os.write(_watcher, os.fsencode(f"{word} {value}\n"))


def supervise(work: Callable[[], Any], explain: Callable[[Ended], int]) -> None:
    """Run `work` in a fork of this process, and end this process with the status of the fork. If the fork ended before
    it sent one, the status is what `explain` returns. Signals are passed on, and a fork that does not handle them is
    killed. The fork does not outlive this process."""
    global _watcher, _watching
    fill_standard_streams()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, nobody learns how a process ended
    told, traces, parent = os.pipe(), os.pipe(), os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # until this process passes them on
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(told[0])
        os.close(traces[0])
        _watcher, _watching = told[1], parent
        die_with(parent)
        faulthandler.enable(traces[1], all_threads=False)
        atexit.register(_leave)  # runs after all that are registered later
        work()
        return
    os.close(told[1])
    os.close(traces[1])
    end, said = _watch(worker, _Pipe(told[0]), _Pipe(traces[0]))
    status = explain(end) if isinstance(end, Ended) else end
    if folder := said.value("folder"):
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    os._exit(status)


def _leave() -> None:
    """End this process where everything is printed: Python would first free all that it holds, object by object."""
    if _status is not None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(_status)


def fill_standard_streams() -> None:
    """Open the null device in place of a closed standard stream. Otherwise a file opened later would get its number,
    and libraries would print into that file."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        pass
    os.close(spare)


def die_with(parent: int) -> None:
    """End this process when its parent ends, even by SIGKILL; it may have ended before this is called."""
    if sys.platform == "linux":
        import ctypes

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
    """A pipe from the working process, which is read when a value is looked up."""

    def __init__(self, number: int) -> None:
        os.set_blocking(number, False)
        self._number, self._read = number, b""

    def text(self) -> str:
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._number, 1 << 12):
                self._read += piece
        return os.fsdecode(self._read)

    def value(self, word: str) -> str | None:
        """The value that was last sent with this word; None where the word was not sent."""
        lines = [line.partition(" ") for line in self.text().split("\n")]
        return next((value for told, space, value in reversed(lines) if told == word and space), None)


def _watch(worker: int, said: _Pipe, traces: _Pipe) -> tuple[int | Ended, _Pipe]:
    """Wait until the process ends. Returns its exit status or how else it ended, and the pipe of its words."""
    asked: list[int] = []
    interrupts: list[int] = []
    waited: list[float] = []

    def send(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            os.kill(worker, number)

    def forward(number: int, frame: object) -> None:
        del frame
        if number == signal.SIGINT and not interrupts and said.value("interruptible"):
            interrupts.append(number)
            send(INTERRUPT)
        elif not asked:
            asked.append(number)
            send(INTERRUPT_AGAIN if interrupts and number == signal.SIGINT else number)
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
    for number in stopping_signals():
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    for number in (signal.SIGALRM, *_STOPS):
        signal.signal(number, signal.SIG_IGN)
    if (printed := said.value("ended")) is not None:  # whatever a library did while Python ended
        return int(printed), said
    leaving, answering = (said.value(word) is not None for word in ("leaving", "answering"))
    if status >= 0 and not asked and (status == 0 or answering):
        return status, said
    stopped = asked[0] if asked else -status if -status in _STOPS else 0
    ending, unfinished = (said.value(word) or "" for word in ("ending", "unfinished"))
    where = _innermost(traces.text())
    return Ended(max(-status, 0), stopped, leaving, answering, where, max(status, 0), ending, unfinished), said


def _innermost(trace: str) -> str:
    """File and line of the innermost call in what faulthandler wrote."""
    import re

    call = re.search(r'^  File "([^"\n]*)", line (\d+)', trace, re.MULTILINE)
    return f"{'/'.join(call[1].split('/')[-2:])}, line {call[2]}" if call else ""
