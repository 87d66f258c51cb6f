"""The commands by name, and what click refuses before one of them runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import rich_click as click

from downset import __version__
from downset.commands.examples import epilog
from downset.errors import DownsetError, UsageError

__all__ = ["COMMANDS", "downset", "run"]

COMMANDS: Mapping[str, str] = {
    "fit": "Give a network the order and the places of least memory.",
    "inspect": "Show the operators of a model and the live bytes at each.",
    "verify": "Prove that two files hold the same network, and run both.",
    "order": "Order the operators of a graph for least peak memory.",
    "arena": "Place records with lifetimes and sizes in one arena.",
    "split": "Plan a model as a pipeline over the devices of a cluster.",
    "simulate": "Simulate a pipeline: period, latency, queues, energy.",
    "serve": "Run a model over the devices of a cluster.",
    "worker": "Serve as a device of a cluster until stopped.",
    "stage": "Search and time stages of operators that run side by side.",
    "run": "Run a model as a plan of stages says.",
    "profiles": "List or clear the latencies measured on this machine.",
    "keys": "Make the TLS certificates and the token of a cluster.",
    "profile-cluster": "Measure the rates and links of a running cluster.",
    "doctor": "Show the versions of everything, for a bug report.",
}
"""By command: its line in `downset --help`. A module of that name in `downset.commands` holds it, and is imported when
the command is called."""


_SETTINGS = {"help_option_names": ["-h", "--help"]}


class _PipeClosedError(Exception):
    """The reader of stdout has closed it. click handles a BrokenPipeError with another exit code, so it is not used."""


class _Commands(click.RichGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _PipeClosedError from None
        except DownsetError as error:
            _word(error, _imported(str(ctx.invoked_subcommand)))
            raise

    # Click names these parameters; neither list depends on the context.
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The command as the list of all commands shows it: only `resolve_command` imports it."""
        return click.RichCommand(name=cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of that name. For an unknown name, the error suggests a similar one."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            close = get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(COMMANDS)}"
            raise click.UsageError(f"No such command {name!r}: {hint}", ctx)
        typed, listed, rest = super().resolve_command(ctx, args)
        return typed, listed and _imported(name), rest


def _word(error: DownsetError, command: Any) -> None:
    """Put the error into the words of the command's options."""
    from downset.commands.wording import worded

    error.args = (worded(error.message, command),)
    error.lines, error.found = worded(error.lines, command), worded(error.found, command)


_WITHOUT_NUMPY = ("order", "arena", "simulate", "worker", "profiles", "keys", "doctor")
"""Commands that may end without numpy."""


def _imported(name: str) -> Any:
    if name not in _WITHOUT_NUMPY:
        from downset.process.one_thread import import_numpy

        import_numpy()
    command = getattr(import_module(f"downset.commands.{name.replace('-', '_')}"), name.replace("-", "_"))
    command.epilog = epilog(name)
    command.context_settings = _SETTINGS  # click keeps the names of the option from where it is asked for first
    for one, subcommand in getattr(command, "commands", {}).items():
        subcommand.epilog, subcommand.context_settings = epilog(f"{name} {one}"), _SETTINGS
    return command


@click.command(cls=_Commands, context_settings=_SETTINGS, epilog=epilog(""))
@click.version_option(__version__)
def downset() -> None:
    """Decide when every operator of a trained network runs and where every tensor lives, and make it so."""


def run() -> None:
    """Run the command that was typed. Raises UsageError for what click refuses, and what the command raises."""
    try:
        downset.main(prog_name="downset", standalone_mode=False)
    except click.ClickException as error:
        raise UsageError(f"{error.format_message()} (see {_help_of(error)})") from None
    except click.Abort:
        raise KeyboardInterrupt from None
    except _PipeClosedError:
        raise BrokenPipeError from None


def _help_of(error: click.ClickException) -> str:
    """The command that prints the help of the command that was typed, subcommands included."""
    names: list[str] = []
    context = getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent
    if not names and sys.argv[1:2] and sys.argv[1] in COMMANDS:  # click names no context where a value is missing
        names = [sys.argv[1]]
    return " ".join(["downset", *names, "--help"])
