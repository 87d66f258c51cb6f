"""The process in which the command line runs: its streams, signals and scratch folder, and reports of downset's
errors."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from downset.process.supervisor import (
    INTERRUPT,
    INTERRUPT_AGAIN,
    fill_standard_streams,
    stopping_signals,
    tell,
    watched,
)

__all__ = [
    "Stopped",
    "abandon_stdout",
    "answering_interrupt",
    "answering_signals",
    "in_scratch_folder",
    "settled_streams",
    "stopping_in_order",
    "write_report",
]


class Stopped(SystemExit):
    """The process was asked to stop by the signal of this number. `lines`: what is printed on stderr below that.
    `found`: keys of the command's JSON, where the command sets them."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number
        self.lines: tuple[str, ...] = ()
        self.found: Mapping[str, object] = {}

    def add_lines(self, lines: Sequence[str]) -> None:
        """Add lines below the message as a terminal shows it."""
        self.lines = (*self.lines, *lines)


class _Unfailing:
    """A stream for messages: a message that cannot be written is lost, and the work goes on."""

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
        _abandon(self._stream, 2)


@contextlib.contextmanager
def settled_streams() -> Iterator[None]:
    """A context in which any name can be printed, in every encoding of the terminal. A closed stream discards its text,
    and a stderr that cannot be written does not change the exit code."""
    fill_standard_streams()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123  it stays open as long as the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    before = sys.stderr
    sys.stderr = _Unfailing(before)
    try:
        yield
    finally:
        sys.stderr = before


def abandon_stdout() -> None:
    """Drop the buffered text of stdout: at exit Python would try to write it, and print another error."""
    _abandon(sys.stdout, 1)


def _abandon(stream: Any, number: int) -> None:
    """Drop the buffered text of a standard stream: writing it would fail again when Python ends, and change the exit
    code. A stream that a caller of this process put in its place is the caller's own, and stays as it is."""
    with contextlib.suppress(OSError, ValueError):
        if stream.fileno() == number:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            os.close(null)


@contextlib.contextmanager
def in_scratch_folder() -> Iterator[None]:
    """A context in which all temporary files lie in one folder, which is removed at the end, and so are first the
    folders of commands that were killed. If it cannot be made, they lie where Python puts them by default."""
    import shutil
    import tempfile
    from pathlib import Path

    from downset.process.leftovers import owned_prefix, remove_leftovers

    try:
        remove_leftovers(Path(tempfile.gettempdir()))
        folder = tempfile.mkdtemp(prefix=owned_prefix())
    except OSError:
        yield
        return
    tell("folder", folder)
    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def answering_signals() -> Iterator[None]:
    """A context in which the first SIGINT, SIGTERM or SIGHUP that this process does not ignore raises `Stopped`. Python
    does not run handlers while native code runs; in that case the process that watches this one ends it (see
    `supervisor`). Call it in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    answered = False

    def stop(number: int, frame: object) -> None:
        nonlocal answered
        del frame
        if not answered:
            answered = True
            tell("leaving")
            with contextlib.suppress(RuntimeError):  # it came while another line is being written
                print("downset: stopped", file=sys.stderr)
            raise Stopped(number)

    def stop_again(number: int, frame: object) -> None:
        del number
        stop(signal.SIGINT, frame)

    handlers = {number: signal.signal(number, stop) for number in stopping_signals()}
    if watched():
        handlers[INTERRUPT_AGAIN] = signal.signal(INTERRUPT_AGAIN, stop_again)
    try:
        yield
    finally:
        for number, handler in handlers.items():  # the watching process may just send one more
            signal.signal(number, signal.SIG_IGN if number == INTERRUPT_AGAIN else handler)


@contextlib.contextmanager
def answering_interrupt(answer: Callable[[], None]) -> Iterator[None]:
    """A context in which the first SIGINT does not stop this process: `answer` is called, in another thread, also while
    native code runs that releases the lock of Python. A second SIGINT stops the process, and so does any other signal
    that stops one. Nothing changes where SIGINT is ignored. Call it in the main thread.

    A terminal sends SIGINT to the watching process, too. That one alone counts them: it passes on the first as
    `INTERRUPT` and the second as `INTERRUPT_AGAIN`, which nobody else sends. If this process counted for itself, it
    could answer the first before the watching process had seen it, and two sent shortly after another would be one."""
    if threading.current_thread() is not threading.main_thread() or signal.SIGINT not in stopping_signals():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    first = INTERRUPT if watched() else signal.SIGINT
    stop = {number: signal.getsignal(number) for number in (first, signal.SIGINT)}
    interrupts = 0

    def listen() -> None:
        while numbers := os.read(reader, 64):
            if first in numbers:
                answer()
                return

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += number == first
        if interrupts > 1:
            _call(stop[signal.SIGINT], number, frame)

    listener = threading.Thread(target=listen, name="downset-interrupt", daemon=True)
    listener.start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (first, signal.SIGINT):
        signal.signal(number, interrupted)
    tell("interruptible", "once")
    try:
        yield
    finally:
        tell("interruptible")
        for number, handler in stop.items():  # the watching process may just send one more
            signal.signal(number, signal.SIG_IGN if number == INTERRUPT else handler)
        signal.set_wakeup_fd(before)
        os.close(writer)
        listener.join()
        os.close(reader)


def _call(handler: Any, number: int, frame: FrameType | None) -> None:
    if callable(handler):
        handler(number, frame)
    else:
        raise Stopped(number)


@contextlib.contextmanager
def stopping_in_order(seconds: float) -> Iterator[None]:
    """A context whose code gets `seconds` to stop once a signal asks for it."""
    tell("grace", seconds)
    try:
        yield
    finally:
        tell("grace")


def write_report(error: BaseException, arguments: Sequence[str], version: str) -> str | None:
    """Write a file for a bug report, and return its name; None where it cannot be written. It holds the command's
    arguments and the traceback, and no data of a model."""
    import platform
    import tempfile
    import traceback

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
