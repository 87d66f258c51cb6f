"""Child processes for code of other projects: parsers and runtimes may print to C's stdout, abort, hang, or crash on
bad files. A worker (`isolated_worker`) runs named functions of this package under limits of time and memory, and never
outlives its parent.

A worker is not a sandbox: it has all rights of the user. It keeps crashes, hangs and leaks out of this process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset import errors
from downset.errors import DownsetError, LimitReached, UnsupportedError, UsageError
from downset.messages import Setting, of_plain
from downset.process.leftovers import owned_prefix
from downset.text import brief, format_bytes

__all__ = [
    "PARSING_S",
    "RUNNING_S",
    "Limits",
    "isolated",
    "limits",
    "machine_bytes",
    "parsed",
    "reusing",
    "stop_parser",
    "warm_parser",
]

PARSING_S = 10.0
"""The smallest time limit of a parser, in seconds. Starting Python and importing a library take part of it."""
RUNNING_S = 30.0
"""The smallest time limit of a run in another project's runtime, in seconds."""

_NAMES = {
    "inference": "ONNX's shape inference",
    "checker": "ONNX's checker",
    "parse_here": "the reader of .onnx files",
    "interpreter": "LiteRT",
    "litert": "LiteRT",
    "ort_session": "ONNX Runtime",
    "tflm": "TFLite Micro",
    "flatbuffer": "the reader of .tflite files",
    "litert_here": "LiteRT",
    "ort_here": "ONNX Runtime",
    "tflm_here": "TFLite Micro",
    "ort_timed": "ONNX Runtime",
    "torch_eager": "PyTorch",
}
_BUSY = 6
"""A worker's time limit does not count the time in which other processes have the processor, up to this many times the
limit."""
_CAUSES = ("Didn't find op", "Failed to get registration", "not supported")
"""Words in the line by which TFLite Micro names an operator that it does not run."""
_LONGEST_S = 1e6
"""The longest time that is waited for, in seconds: operating systems have a limit."""
_LEAST_BYTES = 1 << 28
"""Python and numpy alone take about this much address space."""

Answer = tuple[dict[str, npt.NDArray[Any]], str]
"""The arrays that the function returned, and everything that it printed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of every worker of a command. `time_s` None: PARSING_S or RUNNING_S. `memory_bytes` None: half of the
    machine's memory. It limits address space. CUDA reserves far more, so code that uses CUDA runs in no worker."""

    time_s: float | None = None
    memory_bytes: int | None = None


_LIMITS: ContextVar[Limits] = ContextVar("limits", default=Limits())  # noqa: B039  frozen


@contextlib.contextmanager
def limits(*, time_s: float | None = None, memory_bytes: int | None = None) -> Iterator[None]:
    """Set the limits of workers inside this context; None keeps the present limit. Raises UsageError for a memory limit
    that is too small to start a worker."""
    if memory_bytes is not None and memory_bytes < _LEAST_BYTES:
        raise UsageError(f"a worker needs at least {format_bytes(_LEAST_BYTES)} bytes of memory to start")
    before = _LIMITS.get()
    token = _LIMITS.set(
        Limits(
            before.time_s if time_s is None else time_s, before.memory_bytes if memory_bytes is None else memory_bytes
        )
    )
    try:
        yield
    finally:
        _LIMITS.reset(token)


def machine_bytes() -> int:
    """Bytes of memory of this machine, or of the container if that has less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError):
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(limits)


class _Reused:
    """A worker that is used several times. It is started again if it has ended or the memory limit has changed."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None

    def worker(self) -> _Worker:
        memory_bytes = _memory_bytes()
        if self._worker is None or not self._worker.alive or self._worker.memory_bytes != memory_bytes:
            self.stop()
            self._worker = _Worker(memory_bytes)
        return self._worker

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()


_REUSED: ContextVar[_Reused | None] = ContextVar("reused", default=None)


@contextlib.contextmanager
def reusing() -> Iterator[None]:
    """A context in which calls of `isolated` with `reuse` share one process, which ends with the context. An inner
    context uses the process of the outer one."""
    if _REUSED.get() is not None:
        yield
        return
    reused = _Reused()
    token = _REUSED.set(reused)
    try:
        yield
    finally:
        _REUSED.reset(token)
        reused.stop()


def isolated(
    module: str, function: str, arguments: Mapping[str, Any], *, timeout_s: float | None = None, reuse: bool = False
) -> Answer:
    """Call `module.function(**arguments)` in a new process, which ends after the call: for runs and measurements. With
    `reuse` and inside `reusing` the call uses the shared process.

    Raises what the function raised where that is a DownsetError, UnsupportedError where it failed or crashed,
    LimitReached where it took more time (`timeout_s`; by default the time limit, at least RUNNING_S) or memory.
    """
    shared = _REUSED.get() if reuse else None
    worker = _Worker(_memory_bytes()) if shared is None else shared.worker()
    try:
        return worker.ask(module, function, arguments, timeout_s or _time_s(RUNNING_S))
    finally:
        if shared is None:
            worker.stop()


def parsed(module: str, function: str, arguments: Mapping[str, Any], *, more_s: float = 0.0) -> Answer:
    """`isolated` in the one process that does all parsing, which is started again if it has ended or the memory limit
    has changed. The call may take the time limit, at least PARSING_S, plus `more_s` for a large file."""
    return _parser().ask(module, function, arguments, _time_s(PARSING_S) + more_s)


def warm_parser(module: str) -> None:
    """Start the parsing process and let it import `module`, without waiting for it."""
    _parser().send({"module": module})


def _time_s(floor_s: float) -> float:
    return max(_LIMITS.get().time_s or 0.0, floor_s)


def _memory_bytes() -> int:
    return _LIMITS.get().memory_bytes or max(machine_bytes() // 2, _LEAST_BYTES)


class _Worker:
    """One child process, which runs one call at a time."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  it stays open as long as the process
        # -P: the current folder is not on the path, where a json.py may lie beside a model
        command = [sys.executable, "-P", "-m", "downset.process.worker", str(os.getpid()), str(memory_bytes)]
        self._process = _start(
            lambda: subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed,
                start_new_session=True,
                env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"},
            )
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died: the caller that waits for the answer learns it
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def ask(self, module: str, function: str, arguments: Mapping[str, Any], timeout_s: float) -> Answer:
        with self._lock, tempfile.TemporaryDirectory(prefix=owned_prefix(), ignore_cleanup_errors=True) as folder:
            result = Path(folder) / "result.npz"
            self._printed.seek(0)
            self._printed.truncate()
            request = {"module": module, "function": function, "arguments": dict(arguments), "result": str(result)}
            with contextlib.suppress(OSError):  # a folder that is gone
                request["folder"] = str(Path.cwd())
            try:
                self.send(request)
                reply = self._reply(timeout_s)
            except BaseException:  # an interrupt too: nobody will ask for the answer
                self.stop()
                raise
            name = _NAMES.get(function, _NAMES.get(module.rpartition(".")[2], module))
            if reply is None and self.alive:
                self.stop()
                raise LimitReached(
                    f"{name} took longer than {timeout_s:g} s and was stopped; give a longer ", Setting("time_s")
                )
            printed = self._text()
            if not reply:
                status = self._process.wait()
                self.stop()
                raise UnsupportedError(_crash(name, status, printed))
            said = json.loads(reply)
            if "error" in said:
                raise _raised(name, said, printed, self.memory_bytes)
            with np.load(result, allow_pickle=False) as arrays:
                return dict(arrays), printed

    def _reply(self, seconds: float) -> bytes | None:
        """The worker's reply, one line. None if the time limit passed first; empty if the process ended before."""
        assert self._process.stdout is not None
        pipe, line = self._process.stdout.fileno(), b""
        begin, queued_s = time.monotonic(), self._queued_s()
        while not line.endswith(b"\n"):
            kept_s = min(self._queued_s() - queued_s, (_BUSY - 1) * seconds)
            left_s = begin + seconds + kept_s - time.monotonic()
            if left_s <= 0:
                return None
            if not select.select([pipe], [], [], min(max(left_s, 0.05), _LONGEST_S))[0]:
                continue
            piece = os.read(pipe, 1 << 16)
            if not piece:
                return b""
            line += piece
        return line

    def _queued_s(self) -> float:
        """Seconds in which the worker was ready to run but had no processor; 0 where the system does not report it."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[1]) / 1e9
        return 0.0

    def _text(self) -> str:
        self._printed.seek(0)
        return self._printed.read().decode(errors="replace")

    def stop(self) -> None:
        """Kill the worker's group of processes, and wait until it has ended."""
        if self.alive:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._printed):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]


_PARSERS: dict[int, _Worker] = {}
"""The parsing process by the number of the process that started it, since a fork must not use its parent's."""
_PARSERS_LOCK = threading.Lock()


def _parser() -> _Worker:
    with _PARSERS_LOCK:
        worker, memory_bytes = _PARSERS.get(os.getpid()), _memory_bytes()
        if worker is None or not worker.alive or worker.memory_bytes != memory_bytes:
            stop_parser()
            _PARSERS[os.getpid()] = worker = _Worker(memory_bytes)
        return worker


@atexit.register
def stop_parser() -> None:
    worker = _PARSERS.pop(os.getpid(), None)
    if worker is not None:
        worker.stop()


_STARTS: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = queue.SimpleQueue()


def _start(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Call `start` in a thread that lasts: Linux reports the parent's end to a child when the *thread* that made the
    child ends."""
    if threading.current_thread() is threading.main_thread():
        return start()
    name = "downset-starts-workers"
    if not any(thread.name == name for thread in threading.enumerate()):
        threading.Thread(target=_serve_starts, name=name, daemon=True).start()
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
    _STARTS.put((start, answer))
    result = answer.get()
    if isinstance(result, BaseException):
        raise result
    started: subprocess.Popen[bytes] = result
    return started


def _serve_starts() -> None:
    while True:
        start, answer = _STARTS.get()
        try:
            answer.put(start())
        except BaseException as error:
            answer.put(error)


def _crash(name: str, status: int, printed: str) -> str:
    how = f"crashed (signal {-status})" if status < 0 else f"ended with status {status}"
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("INFO", "Traceback", "File "))]
    return f"{name} {how}: {brief(telling[-1]) if telling else 'no reason given'}"


def _raised(name: str, said: Mapping[str, Any], printed: str, memory_bytes: int) -> DownsetError:
    """The error that the function raised, as a DownsetError."""
    if said["error"] == "MemoryError":
        return LimitReached(
            f"{name} needs more memory than the {format_bytes(memory_bytes)} bytes that a worker may take; give a "
            "larger ",
            Setting("memory_bytes"),
        )
    kind = getattr(errors, said["error"], None)
    if kind is None:
        return UnsupportedError(f"{name} failed: {said['error']} ({brief(of_plain(said['message']))})")
    lines = [line.strip() for line in printed.splitlines()]
    cause = next((line for line in lines if any(words in line for words in _CAUSES)), None)
    error: DownsetError = kind(of_plain(said["message"]), f" ({brief(cause)})" if cause else "")
    return error
