"""The command line: `downset COMMAND`. It reads options, calls the library, and prints tables or JSON.

Data go to stdout, messages and progress to stderr. Exit codes: 0 done, 2 usage, 3 proven not to fit, 4 verification
failed, 5 cannot load or unsupported, 6 not known (a limit was reached first, or the answer cannot be measured here), 70
an error of downset itself, 128 plus the signal's number where a signal stopped it.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from downset import __version__
from downset.errors import DownsetError, LoadError
from downset.process.command import (
    Stopped,
    abandon_stdout,
    answering_signals,
    in_scratch_folder,
    settled_streams,
    write_report,
)
from downset.process.supervisor import Ended, tell
from downset.text import brief, printable, shortened, wrapped

__all__ = ["explain_end", "main"]


def main() -> None:
    """Run the command line. An error is one line on stderr and a documented exit code, never a traceback. A verdict of
    `fit` that a network does not fit is several lines; the first one has the verdict.

    Where JSON was asked for, a command that fails also prints the envelope of its JSON to stdout."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # ONNX Runtime's wheel sends events otherwise
    gc.set_threshold(200_000)  # modules and graphs are made of many objects that all live on
    with settled_streams(), answering_signals():
        problem: BaseException | None = None
        try:
            _run()
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt, Stopped) as error:
            problem = error
        status = 0
        if problem is not None:
            tell("answering")
            status = _explain(problem)
        tell("ended", status)
    sys.exit(status)


def _run() -> None:
    """Run the command that was typed. Click takes longer to import than this takes to answer `--version`."""
    if sys.argv[1:] == ["--version"]:
        print(f"downset, version {__version__}")
        return
    with in_scratch_folder():
        from downset.commands.group import run

        run()


_CRASHES = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)


def explain_end(ended: Ended) -> int:
    """Print the message of a command that ended before it could print one, by a signal or because a library ended it;
    return the exit code. What it had finished is written."""
    with settled_streams():
        if ended.stopped:
            status = 128 + ended.stopped
            if not ended.leaving:
                print("downset: stopped", file=sys.stderr)
            if ended.answering:
                return status
            details, lines = _written_after(ended)
            _print_failure("stopped", status, "stopped", details)
            _print_below(lines)
            return status
        code, status, message = _ended_by(ended)
        details, lines = _written_after(ended)
        return _fail(code, status, message, details, lines=[message, *lines])


def _ended_by(ended: Ended) -> tuple[str, int, str]:
    """(the name of the error, the exit code, the message) of a command that did not end by itself."""
    if not ended.signal:
        why = ended.ending or f"a library ended the command (exit code {ended.status}); this input makes it do so"
        return "unsupported", 5, why
    name = signal.Signals(ended.signal).name
    if ended.signal in _CRASHES:
        place = f" in {ended.where}" if ended.where else ""
        return "unsupported", 5, f"native code crashed ({name}){place}; this input makes a library fail"
    why = ", as it does where memory runs out" if ended.signal == signal.SIGKILL else ""
    return "limit", 6, f"the system ended the command ({name}){why}"


def _written_after(ended: Ended) -> tuple[Mapping[str, Any], list[str]]:
    """Write the results that the command had finished. Returns keys of its JSON, and lines to print."""
    if not ended.unfinished:
        return _NOTHING, []
    from downset.commands.frames import finish_after

    try:
        return finish_after(ended.unfinished)
    except DownsetError as error:
        return _NOTHING, [str(error)]


def _explain(error: BaseException) -> int:
    """Print one line about an error, and return the exit code."""
    if isinstance(error, DownsetError):
        return _fail(error.code, error.exit_code, str(error), error.found, error.figures, lines=error.lines)
    if isinstance(error, Stopped):  # it has been said
        _print_failure("stopped", 128 + error.number, "stopped", error.found)
        _print_below(error.lines)
        return 128 + error.number
    if isinstance(error, KeyboardInterrupt):
        print("downset: stopped", file=sys.stderr)
        return _print_failure("stopped", 128 + signal.SIGINT, "stopped")
    if isinstance(error, MemoryError):
        return _fail("limit", 6, "out of memory; give a smaller model or a shorter --time-limit")
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # as PyTorch says it
        return _fail("limit", 6, "out of memory; give a smaller model, batch or shape")
    if isinstance(error, BrokenPipeError):
        abandon_stdout()
        return 128 + signal.SIGPIPE
    if isinstance(error, OSError) and error.filename is not None:
        gone = LoadError(f"cannot use {os.fsdecode(error.filename)}: {error.strerror or error}")
        return _fail(gone.code, gone.exit_code, str(gone))
    if isinstance(error, OSError):  # what a command reads or writes it reports itself; this is the output being full
        abandon_stdout()
        _complain(f"cannot go on: {error.strerror or error}")
        return 2
    report = write_report(error, sys.argv[1:], __version__)
    where = f"a report is in {report}; please send it to us" if report else "no report could be written"
    return _fail("internal", 70, f"an error of downset itself ({type(error).__name__}: {brief(error, 200)}); {where}")


_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _fail(code: str, exit_code: int, message: str, *more: Mapping[str, Any], lines: Sequence[str] = ()) -> int:
    """Print the failure as `_print_failure` does, and the message on stderr: one line, or `lines` where there are
    some."""
    _print_failure(code, exit_code, message, *more)
    first, *rest = lines or (message,)
    _complain(first)
    _print_below(rest)
    return exit_code


def _print_below(lines: Sequence[str]) -> None:
    for line in lines:
        _say(shortened(printable(line), _LONGEST_LINE))


def _print_failure(
    code: str,
    exit_code: int,
    message: str,
    details: Mapping[str, Any] = _NOTHING,
    figures: Mapping[str, Any] = _NOTHING,
) -> int:
    """Print the envelope of the failed command to stdout, where its options ask for JSON; return the exit code. The
    options may be the error, so they are looked up in the raw arguments."""
    arguments = sys.argv[1:]
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--json" not in options:
        return exit_code
    from downset.commands.envelope import print_failure
    from downset.commands.group import COMMANDS

    kind = arguments[0] if arguments[0] in COMMANDS else "downset"
    error: dict[str, Any] = {"code": code, "exit_code": exit_code, "message": _one_line(message)}
    if figures:
        error["figures"] = dict(figures)
    try:
        print_failure(kind, error, details)
        sys.stdout.flush()
    except OSError:  # nobody reads it
        abandon_stdout()
    return exit_code


def _complain(message: str) -> None:
    _say(f"downset: error: {_one_line(message)}")


def _say(line: str) -> None:
    """Print the line to stderr; on a terminal it is wrapped between words."""
    columns = os.get_terminal_size(sys.stderr.fileno()).columns if sys.stderr.isatty() else 0
    print(*(wrapped(line, columns) if columns else [line]), sep="\n", file=sys.stderr)


_LONGEST_WORD, _LONGEST_LINE = 300, 2_000
"""The most characters of a word and of a line in a message: names in files may have any length."""


def _one_line(message: str) -> str:
    words = (shortened(word, _LONGEST_WORD) for word in printable(" ".join(message.split())).split(" "))
    return shortened(" ".join(words), _LONGEST_LINE)
