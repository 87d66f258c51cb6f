"""The process that the command line runs in: its streams, signals and scratch folder, and reports of our errors."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Stopped", "abandon_stdout", "answering_signals", "in_scratch_folder", "settled_streams", "write_report"]

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE_S = 0.3
"""Seconds that the main thread gets to unwind after a signal. In native code it does not even see it."""
_LEAVES_S = 3.0
"""Seconds beyond that for a process that is on its way out."""


_LAST_STREAM = 2
"""The number of stderr."""


class Stopped(SystemExit):
    """Stopped from outside, by the signal of this number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


class _Unfailing:
    """A stream for words: where they cannot be written, they are lost, and the work goes on."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            written: int = self._stream.write(text)
            return written
        except (OSError, ValueError):
            self._give_up()
            return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._give_up()

    def _give_up(self) -> None:
        """Drop what is still buffered: it would fail again when Python ends, and change the exit code."""
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


@contextlib.contextmanager
def settled_streams() -> Iterator[None]:
    """Names of tensors are printed whatever the terminal's encoding; what was closed takes everything and keeps
    nothing; a stderr that cannot be written changes no exit code. No file that is opened later gets a number of the
    three standard streams, to which libraries print whatever it is."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        pass
    os.close(spare)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  it stays open as long as the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    before = sys.stderr
    sys.stderr = _Unfailing(before)
    try:
        yield
    finally:
        sys.stderr = before


def abandon_stdout() -> None:
    """Drop what is still buffered: at exit Python would try to write it, and complain once more."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def in_scratch_folder() -> Iterator[Path | None]:
    """All temporary files lie in one folder, which is removed at the end; None where none can be made."""
    try:
        folder = tempfile.mkdtemp(prefix="downset-")
    except OSError:
        yield None
        return
    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield Path(folder)
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def answering_signals(scratch: Path | None) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP end the process with 128 and their number, within half a second.

    Python runs its handlers between two steps of its own, and not while native code runs. So a thread watches too: the
    process is ended from there. Where it is on its way out by then, it has some seconds more to print what belongs on
    stdout: a busy machine. Only the main thread may set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    said = threading.Lock()

    def stop(number: int, frame: object = None) -> None:
        del frame
        if said.acquire(blocking=False):
            print("downset: stopped", file=sys.stderr)
            raise Stopped(number)

    def watch(pipe: int) -> None:
        while data := os.read(pipe, 1):
            if data[0] not in _STOPS:
                continue
            time.sleep(_PATIENCE_S)
            if said.acquire(blocking=False):
                print("downset: stopped", file=sys.stderr)
            else:
                time.sleep(_LEAVES_S)
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)
            os._exit(128 + data[0])
        os.close(pipe)

    read, write = os.pipe()
    os.set_blocking(write, False)
    handlers = {number: signal.signal(number, stop) for number in _STOPS}
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=watch, args=(read,), name="downset-watches-signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        os.close(write)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def write_report(error: BaseException, arguments: Sequence[str], version: str) -> str | None:
    """Write what happened into a file for a bug report, and return its name; None where it cannot be written. It holds
    the command's arguments and the traceback, nothing of a model."""
    text = "\n".join(
        [
            f"downset {version}, Python {platform.python_version()}, {platform.platform()}",
            f"arguments: {list(arguments)!r}",
            "",
            *traceback.format_exception(error),
        ]
    )
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="downset-report-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(text)
        return file.name
    except OSError:
        return None
