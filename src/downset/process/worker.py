"""The server of workers, which `isolation` starts. It imports what workers need, opens no file of a user, and forks a
worker for each request: a process that nothing was done in before.

python -P -m downset.process.worker PARENT, with a socket as stdin; or a fork of PARENT (`serve_forked`).
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import re
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from downset.errors import DownsetError
from downset.messages import Message
from downset.process.garbage import uncollected
from downset.process.supervisor import die_with, leave_watcher

__all__ = ["serve_forked"]

_LOOK_S = 1.0
"""How often to look whether the parent has ended; a fork of it may hold the socket open."""


def _main() -> None:
    _import(["numpy"], OPENBLAS_NUM_THREADS="1")  # a process with threads cannot be forked safely
    requests = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _serve(int(sys.argv[1]), requests)


def serve_forked(parent: int, requests: int, printed: int, mask: Iterable[int]) -> NoReturn:
    """Serve in a fork of `parent`, which has one thread and blocks all signals but those of `mask`. Nothing is left of
    that process but what it imported: no file or pipe is open, no signal has a handler, no text waits to be printed,
    and what is printed goes to the file `printed`."""
    try:
        os.setsid()
        leave_watcher()
        faulthandler.disable()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        sys.stdout, sys.stderr = (os.fdopen(file, "w", 1, errors="backslashreplace", closefd=False) for file in (1, 2))
        for stream in (1, 2):
            os.dup2(printed, stream)
        os.dup2(requests, 0)
        for file in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            if file > 2:
                with contextlib.suppress(OSError):  # the folder, which was open
                    os.close(file)
        requests = os.dup(0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if not sys.flags.safe_path:  # the folder of the program, or the current one
            del sys.path[0]
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _serve(parent, requests)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def _serve(parent: int, connection: int) -> NoReturn:
    requests = socket.socket(fileno=connection)
    ended, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    workers: dict[int, socket.socket] = {}
    while os.getppid() == parent:
        ready = select.select([ended, requests.fileno()], [], [], _LOOK_S)[0]
        if ended in ready:
            os.read(ended, 1 << 12)
            _report_ended(workers)
        if requests.fileno() in ready:
            _, numbers, _, _ = socket.recv_fds(requests, 1, 2)
            if not numbers:
                break
            _start(workers, numbers, requests)
    for worker in workers:
        with contextlib.suppress(OSError):
            os.killpg(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
    os._exit(0)


def _report_ended(workers: dict[int, socket.socket]) -> None:
    """Send how each worker ended that has ended, as the last line of its connection."""
    for worker in list(workers):
        process, status = os.waitpid(worker, os.WNOHANG)
        if process:
            _send(workers[worker], {"ended": os.waitstatus_to_exitcode(status)})
            workers.pop(worker).close()


def _start(workers: dict[int, socket.socket], numbers: Sequence[int], requests: socket.socket) -> None:
    """Import what the first line on a connection names. With a second file, where a worker prints, fork that worker: it
    answers the lines that follow."""
    connection, *printed = numbers
    line = socket.socket(fileno=connection)
    wanted = json.loads(_line(line))
    _import([wanted["module"], *wanted["libraries"]])
    server = os.getpid()
    if printed and (worker := os.fork()) == 0:
        for other in (requests, *workers.values()):
            other.close()
        _work(line, wanted, printed[0], server)
    if printed:
        workers[worker] = line
        os.close(printed[0])
    else:
        line.close()


def _work(connection: socket.socket, wanted: Mapping[str, Any], printed: int, server: int) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    die_with(server)
    _limit_memory(wanted["memory_bytes"])
    for stream in (1, 2):
        os.dup2(printed, stream)
    _send(connection, {"pid": os.getpid()})
    while line := _line(connection):
        _send(connection, _answer(wanted["module"], json.loads(line)))
    os._exit(0)


def _import(modules: Sequence[str], **variables: str) -> None:
    """Import the modules under these variables. The environment is the same afterwards, whatever libraries set."""
    environment = dict(os.environ)
    os.environ.update(variables)
    with uncollected():
        for module in modules:
            if module not in sys.modules:
                with contextlib.suppress(Exception):  # the call that needs it meets the error
                    importlib.import_module(module)
    os.environ.clear()
    os.environ.update(environment)
    gc.freeze()  # else a collection in a worker copies every page


def _line(connection: socket.socket) -> bytes:
    """The next line; empty where the other end is closed. The other end sends one line and waits for the answer."""
    line = b""
    while not line.endswith(b"\n") and (piece := connection.recv(1 << 16)):
        line += piece
    return line


def _send(connection: socket.socket, answer: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        connection.sendall(json.dumps(answer).encode() + b"\n")


def _answer(module: str, request: Mapping[str, Any]) -> dict[str, Any]:
    import numpy as np

    try:
        if "folder" in request:  # names of files are meant from there
            os.chdir(request["folder"])
        # The caller removes the folder, also where this process is killed.
        tempfile.tempdir = os.environ["TMPDIR"] = os.path.dirname(request["result"])  # noqa: PTH120
        function = getattr(importlib.import_module(module), request["function"])
        np.savez(request["result"], **function(**request["arguments"]))
    except MemoryError:
        return {"error": "MemoryError", "message": []}
    except Exception as error:
        message = error.message if isinstance(error, DownsetError) else Message(str(error))
        return {"error": type(error).__name__, "message": message.edited(_on_one_line).plain()}
    finally:
        sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)  # what libraries printed
    return {}


def _on_one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _limit_memory(nbytes: int) -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    allowed = nbytes if most == resource.RLIM_INFINITY else min(nbytes, most)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    _main()
