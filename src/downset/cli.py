"""The command line: `downset COMMAND`. Thin: options in, library calls, tables or JSON out.

stdout is data, stderr is talk. Exit codes: 0 done, 2 usage, 3 proven not to fit, 4 verification failed, 5 cannot load
or unsupported, 6 a limit was reached before it was known, 128 and the signal's number where it was stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import rich_click as click

from downset.errors import DownsetError

__all__ = ["main"]

_COMMANDS = {
    "fit": "fit",
    "inspect": "inspect",
    "verify": "verify",
    "order": "order",
    "arena": "arena",
    "split": "split",
    "simulate": "simulate",
    "stage": "stage",
    "run": "run",
    "profiles": "profiles",
}
"""Command name -> module in `downset.commands` that holds it, imported when it is called."""


class _Commands(click.RichGroup):
    # Click names these parameters; neither list depends on the context.
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        return getattr(import_module(f"downset.commands.{_COMMANDS[cmd_name]}"), cmd_name)


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="downset")
def downset() -> None:
    """Decide when every operator of a trained network runs and where every tensor lives, and make it so."""


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and a documented exit code, never a traceback.

    Where JSON was asked for, a command that fails prints the envelope of its JSON to stdout besides."""
    signal.signal(signal.SIGTERM, _stop)
    _settle_streams()
    try:
        downset.main(standalone_mode=False)
        sys.stdout.flush()
    except DownsetError as error:
        _fail(error.code, error.exit_code, str(error), getattr(error, "found", {}))
    except click.ClickException as error:
        _fail("usage", 2, f"{error.format_message()} (see downset --help)")
    except (click.Abort, KeyboardInterrupt):
        print("downset: stopped", file=sys.stderr)
        _print_failure("stopped", 128 + signal.SIGINT, "stopped")
        sys.exit(128 + signal.SIGINT)
    except _Stopped as stop:
        _print_failure("stopped", 128 + stop.number, "stopped")
        raise
    except MemoryError:
        _fail("limit", 6, "out of memory; give a smaller model or a shorter --time-limit")
    except BrokenPipeError:
        _abandon_stdout()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:  # what a command reads or writes it reports itself; this is the output being full or gone
        _abandon_stdout()
        _complain(f"cannot go on: {error.strerror or error}")
        sys.exit(2)
    except Exception as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # as PyTorch says it
            _fail("limit", 6, "out of memory; give a smaller model, batch or shape")
        _print_failure("internal", 1, f"{type(error).__name__}: {error}")
        raise


class _Stopped(SystemExit):
    """Stopped from outside, by the signal of this number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def _fail(code: str, exit_code: int, message: str, found: Mapping[str, Any] = MappingProxyType({})) -> NoReturn:
    _print_failure(code, exit_code, message, found)
    _complain(message)
    sys.exit(exit_code)


def _print_failure(code: str, exit_code: int, message: str, found: Mapping[str, Any] = MappingProxyType({})) -> None:
    """The envelope of the command that failed, where its options ask for JSON. They may be what is wrong with it, so
    they are looked for in the arguments themselves."""
    arguments = sys.argv[1:]
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--json" not in options:
        return
    from downset.commands.envelope import print_failure

    kind = arguments[0] if arguments[0] in _COMMANDS else "downset"
    try:
        print_failure(kind, {"code": code, "exit_code": exit_code, "message": _one_line(message)}, found)
        sys.stdout.flush()
    except OSError:  # nobody reads it
        _abandon_stdout()


def _settle_streams() -> None:
    """Names of tensors are printed whatever the terminal's encoding; what was closed swallows."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  it stays open as long as the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _abandon_stdout() -> None:
    """What is still buffered cannot be written: at exit Python would try, and complain once more."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> None:
    print(f"downset: error: {_one_line(message)}", file=sys.stderr)


def _one_line(message: str) -> str:
    from downset.text import printable

    return printable(" ".join(message.split()))


def _stop(number: int, frame: object) -> None:
    """Stopped from outside: unwinding removes what lies half-done on the disk."""
    del frame
    print("downset: stopped", file=sys.stderr)
    raise _Stopped(number)
