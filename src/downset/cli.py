"""The command line: `downset COMMAND`. Thin: options in, library calls, tables or JSON out.

stdout is data, stderr is talk. Exit codes: 0 done, 2 usage, 3 proven not to fit, 4 verification failed, 5 cannot load
or unsupported, 6 a limit was reached before it was known, 128 and the signal's number where it was stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

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
    """Run the command line; a user's mistake is one line on stderr and a documented exit code, never a traceback."""
    signal.signal(signal.SIGTERM, _stop)
    _settle_streams()
    try:
        downset.main(standalone_mode=False)
        sys.stdout.flush()
    except DownsetError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _complain(f"{error.format_message()} (see downset --help)")
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        print("downset: stopped", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except MemoryError:
        _complain("out of memory; give a smaller model or a shorter --time-limit")
        sys.exit(6)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # as PyTorch says it
            raise
        _complain("out of memory; give a smaller model, batch or shape")
        sys.exit(6)
    except BrokenPipeError:
        _abandon_stdout()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:  # what a command reads or writes it reports itself; this is the output being full or gone
        _abandon_stdout()
        _complain(f"cannot go on: {error.strerror or error}")
        sys.exit(2)


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
    from downset.text import printable

    print(f"downset: error: {printable(' '.join(message.split()))}", file=sys.stderr)


def _stop(number: int, frame: object) -> None:
    """Stopped from outside: unwinding removes what lies half-done on the disk."""
    del frame
    print("downset: stopped", file=sys.stderr)
    sys.exit(128 + number)
