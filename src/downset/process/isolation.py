"""Child processes for code of other projects: parsers and runtimes may print to C's stdout, abort, hang, or crash on
bad files. A worker (`worker`) runs named functions of this package under limits of time and memory, and never outlives
its parent.

Every call has a process of its own. A server, which has imported the libraries and opened no file, forks it: that takes
milliseconds, where a new interpreter takes a second for some libraries (docs/decisions/0026). A command forks the
server from itself before it opens a file (`fork_server`); otherwise the server is a new interpreter.

A worker is not a sandbox: it has all rights of the user. It keeps crashes, hangs and leaks out of this process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from downset import errors
from downset.budget import BUSY
from downset.errors import DownsetError, LimitReached, UnsupportedError
from downset.messages import Setting, of_plain
from downset.process.leftovers import owned_prefix
from downset.process.limits import PARSING_S, RUNNING_S, worker_bytes, worker_s
from downset.text import brief, format_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Worker", "fork_server", "isolated", "parsed", "warm_workers"]

_SCHEMA, _INPUTS = "ai_edge_litert.schema_py_generated", "numpy.random"
_ONNX, _ORT, _TORCH = ("onnx",), ("onnxruntime", _INPUTS), ("torch", _INPUTS)
_LITERT, _TFLM = ("ai_edge_litert.interpreter", _SCHEMA, _INPUTS), ("tflite_micro", _SCHEMA, _INPUTS)
_CODE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "inference": ("ONNX's shape inference", _ONNX),
    "checker": ("ONNX's checker", _ONNX),
    "parse_here": ("the reader of .onnx files", _ONNX),
    "interpreter": ("LiteRT", _LITERT),
    "litert": ("LiteRT", _LITERT),
    "litert_process": ("LiteRT", _LITERT),
    "ort_session": ("ONNX Runtime", _ORT),
    "run_types": ("ONNX Runtime", _ORT),
    "tflm": ("TFLite Micro", _TFLM),
    "flatbuffer": ("the reader of .tflite files", ("ai_edge_litert.tools.flatbuffer_utils",)),
    "litert_here": ("LiteRT", _LITERT),
    "ort_here": ("ONNX Runtime", _ORT),
    "tflm_here": ("TFLite Micro", _TFLM),
    "torch_here": ("PyTorch", _TORCH),
    "ort_timed": ("ONNX Runtime", _ORT),
    "ort_process": ("ONNX Runtime", _ORT),
    "ort_forms": ("ONNX Runtime", _ORT),
    "torch_eager": ("PyTorch", _TORCH),
}
"""By function or module: what it calls, for messages, and the libraries that the server imports for it."""
_CAUSES = ("Didn't find op", "Failed to get registration", "not supported")
"""Words in the line by which TFLite Micro names an operator that it does not run."""
_STOPPING_S = 0.5
"""Seconds that the server has to end, and a worker that is killed."""
_LOOK_S = 0.002
"""How often to look whether the server has ended that was asked to."""
_LONGEST_S = 1e6
"""The longest time that is waited for, in seconds: operating systems have a limit."""

Answer = tuple[dict[str, "npt.NDArray[Any]"], str]
"""The arrays that the function returned, and everything that it printed."""


def isolated(
    module: str, function: str, arguments: Mapping[str, Any], *, timeout_s: float | None = None, fresh: bool = False
) -> Answer:
    """Call `module.function(**arguments)` in a process in which nothing else has run, and which ends after the call.
    With `fresh` that is a fork of a new interpreter, which has imported no library: for what measures resident memory,
    or what may differ from process to process.

    Raises what the function raised where that is a DownsetError, UnsupportedError where it failed or crashed,
    LimitReached where it took more time (`timeout_s`; by default the time limit, at least RUNNING_S) or memory.
    """
    server = _Server() if fresh else _server()
    try:
        with contextlib.closing(Worker(module, function, server=server, libraries=not fresh)) as worker:
            return worker.ask(function, arguments, timeout_s=timeout_s)
    finally:
        if fresh:
            server.stop()


def parsed(module: str, function: str, arguments: Mapping[str, Any], *, more_s: float = 0.0) -> Answer:
    """`isolated` for a parser. The call may take the time limit, at least PARSING_S, plus `more_s` for a large file."""
    return isolated(module, function, arguments, timeout_s=worker_s(PARSING_S) + more_s)


def warm_workers(module: str, function: str = "") -> None:
    """Start the server and let it import `module` and the libraries of the function, without waiting for it."""
    _server().connect({"module": module, "libraries": _code(module, function)[1]}).close()


def fork_server() -> None:
    """Fork the server from this process: what this one imported is not imported again. For a command of our own, before
    it opens a file. Where this process has several threads or the system does not tell, nothing is forked, and the
    server is a new interpreter."""
    with contextlib.suppress(OSError):  # and with no lock: it would stay locked in the fork
        if not _SHARED and len(os.listdir("/proc/self/task")) == 1:  # noqa: PTH208
            _SHARED.append(_Server(forked=True))


def _code(module: str, function: str) -> tuple[str, Sequence[str]]:
    return _CODE.get(function) or _CODE.get(module.rpartition(".")[2]) or (module, ())


class _Fork:
    """A fork of this process that is the server, with what `subprocess.Popen` has for others."""

    def __init__(self, requests: int, printed: int) -> None:
        from downset.process.worker import serve_forked

        self._status: int | None = None
        parent = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the fork has no handlers yet
        try:
            self.pid = os.fork()
            if self.pid == 0:
                os.environ.update(_environment())
                serve_forked(parent, requests, printed, mask)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def poll(self) -> int | None:
        return self._waited(os.WNOHANG)

    def wait(self, timeout_s: float = math.inf) -> int:
        end = time.monotonic() + timeout_s
        while (status := self._waited(0 if timeout_s == math.inf else os.WNOHANG)) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("", timeout_s)
            time.sleep(_LOOK_S)
        return status

    def kill(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)

    def _waited(self, options: int) -> int | None:
        if self._status is None:
            try:
                process, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # a signal handler, or SIGCHLD that is ignored, took the status
                process, status = self.pid, 0
            self._status = os.waitstatus_to_exitcode(status) if process else None
        return self._status


class _Server:
    """The process that forks workers for this one. `printed`: what it printed, for the message where it crashes."""

    def __init__(self, *, forked: bool = False) -> None:
        self.owner, self.environment = os.getpid(), _environment()
        self._requests, theirs = socket.socketpair()
        self.printed = tempfile.TemporaryFile()  # noqa: SIM115  it stays open as long as the process
        self.process = _Fork(theirs.fileno(), self.printed.fileno()) if forked else self._started(theirs)
        theirs.close()

    def _started(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        # -P: the current folder is not on the path, where a json.py may lie beside a model
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "downset.process.worker", str(self.owner)],
            stdin=theirs.fileno(),
            stdout=self.printed,
            stderr=self.printed,
            start_new_session=True,
            env=self.environment,
        )

    def connect(self, wanted: Mapping[str, Any], printed: IO[bytes] | None = None) -> socket.socket:
        """A connection to a new worker, which prints to the file `printed`. Without that file there is no worker: the
        server only imports."""
        ours, theirs = socket.socketpair()
        ours.sendall(json.dumps(wanted).encode() + b"\n")
        passed = [theirs.fileno()] if printed is None else [theirs.fileno(), printed.fileno()]
        with theirs, contextlib.suppress(OSError):  # it has ended: the connection ends, too
            socket.send_fds(self._requests, [b"\0"], passed)
        return ours

    def stop(self) -> None:
        """End it with its workers, and wait until it has ended."""
        self._requests.close()
        if self.owner == os.getpid():  # else this is a fork of the process that uses it
            try:
                self.process.wait(_STOPPING_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.printed.close()


_SHARED: list[_Server] = []
"""The server of this process, if it has been started."""
_STARTING = threading.Lock()


def _server() -> _Server:
    """The server of this process: a new one after a fork or a crash, and where the environment has changed, which
    libraries read when they are imported."""
    with _STARTING:
        for server in _SHARED:
            if server.owner == os.getpid() and server.process.poll() is None and server.environment == _environment():
                return server
        _stop_server()
        _SHARED.append(_Server())
        return _SHARED[0]


@atexit.register
def _stop_server() -> None:
    while _SHARED:
        _SHARED.pop().stop()


def _environment() -> dict[str, str]:
    return {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}


class Worker:
    """A process that runs functions of a module, one call at a time, until it is closed or a call fails. A worker
    is asked several times only where a call goes on with what the last one left."""

    def __init__(
        self, module: str, function: str = "", *, server: _Server | None = None, libraries: bool = True
    ) -> None:
        self._module, self._server, self._pid, self._unread = module, server or _server(), 0, b""
        self._memory_bytes = worker_bytes()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  it stays open as long as the process
        wanted = {"module": module, "libraries": _code(module, function)[1] if libraries else ()}
        self._connection = self._server.connect(wanted | {"memory_bytes": self._memory_bytes}, self._printed)

    def ask(self, function: str, arguments: Mapping[str, Any], *, timeout_s: float | None = None) -> Answer:
        """Call the function; the errors are those of `isolated`."""
        import numpy as np

        name, limit_s = _code(self._module, function)[0], timeout_s or worker_s(RUNNING_S)
        with tempfile.TemporaryDirectory(prefix=owned_prefix(), ignore_cleanup_errors=True) as folder:
            result = Path(folder) / "result.npz"
            request = {"function": function, "arguments": dict(arguments), "result": str(result)}
            with contextlib.suppress(OSError):  # a folder that is gone
                request["folder"] = str(Path.cwd())
            try:
                answer = self._answer(request, limit_s)
                if answer is None:
                    raise LimitReached(
                        f"{name} took longer than {limit_s:g} s and was stopped; give a longer ", Setting("time_s")
                    )
                printed = _text(self._printed)
                if "ended" in answer:
                    raise UnsupportedError(_crash(name, answer["ended"], printed or _text(self._server.printed)))
                if "error" in answer:
                    raise _raised(name, answer, printed, self._memory_bytes)
                with np.load(result, allow_pickle=False) as arrays:
                    return dict(arrays), printed
            except BaseException:  # an interrupt too: nobody will ask for the answer
                self.close()
                raise

    def _answer(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any] | None:
        """The answer to the request, or `ended` with the exit status; None if the time limit passed first."""
        begin, queued_s = time.monotonic(), self._queued_s()

        def left_s() -> float:
            kept_s = min(self._queued_s() - queued_s, (BUSY - 1) * limit_s)
            return begin + limit_s + kept_s - time.monotonic()

        if not self._pid:
            started = self._line(left_s)
            if started is None:  # an import hangs
                self._server.stop()
            if started is None or "ended" in started:
                return started
            self._pid = started["pid"]
        self._printed.seek(0)
        self._printed.truncate()
        with contextlib.suppress(OSError):  # it has ended: the next line says how
            self._connection.sendall(json.dumps(request).encode() + b"\n")
        return self._line(left_s)

    def _line(self, left_s: Callable[[], float]) -> dict[str, Any] | None:
        """The next line of the worker, or `ended` and the exit status; None if no time is left first."""
        while b"\n" not in self._unread:
            if (seconds := left_s()) <= 0:
                return None
            if not select.select([self._connection], [], [], min(max(seconds, 0.05), _LONGEST_S))[0]:
                continue
            piece = b""
            with contextlib.suppress(ConnectionResetError):  # the other end was closed before it read all
                piece = self._connection.recv(1 << 16)
            if not piece:
                self._pid = 0
                return {"ended": self._server.process.wait()}
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        if "ended" in said:
            self._pid = 0
        return said

    def _queued_s(self) -> float:
        """Seconds in which the worker and the server were ready to run but had no processor; 0 where the system does
        not report it."""
        queued_s = 0.0
        for process in filter(None, (self._server.process.pid, self._pid)):
            with contextlib.suppress(OSError, ValueError, IndexError):
                queued_s += int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
        return queued_s

    def close(self) -> None:
        """Kill the worker's group of processes, and wait until it has ended."""
        end = time.monotonic() + _STOPPING_S
        if self._pid:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
            while self._pid and self._line(lambda: end - time.monotonic()):
                pass
            self._pid = 0  # nobody asks for it again, whether or not its end was reported in time
        self._connection.close()
        self._printed.close()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


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
    kind, message = getattr(errors, said["error"], None), of_plain(said["message"])
    if kind is None:
        return UnsupportedError(f"{name} failed: {said['error']} ({brief(message)})")
    lines = [line.strip() for line in printed.splitlines()]
    cause = next((line for line in lines if any(words in line for words in _CAUSES)), None)
    error: DownsetError = kind(message, f" ({brief(cause)})" if cause else "")
    return error
