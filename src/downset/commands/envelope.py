"""The envelope of every command's JSON, whether it succeeds or fails: `kind`, `schema`, `ok` and `error`.

A command has keys in addition to these four. docs/schemas/envelope.json describes the envelope, and the file there with
the kind's name describes the whole. Plan files do not have the key `ok`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import rich_click as click

from downset.commands.wording import worded
from downset.errors import InvalidPlan, LimitReached
from downset.text import escaped

__all__ = ["SCHEMA", "NotKnown", "OutputsDiffer", "json_option", "print_failure", "print_json"]

SCHEMA = 1
"""The version of the JSON of all commands. It changes when the meaning of a key changes, and stays when a key is
added."""


_PIECE = 1 << 12
"""Characters written at once. If they are more than a pipe holds, Python does not notice that the reader has ended."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


class OutputsDiffer(InvalidPlan):
    """Outputs differ by more than is allowed. `figures`: the command's keys, which are printed nevertheless."""

    def __init__(self, message: str, figures: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.found = figures


class NotKnown(LimitReached):
    """The question was not decided. `figures`: the command's keys, which are printed nevertheless."""

    def __init__(self, message: str, figures: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.found = figures


def json_option(kind: str) -> Callable[[_Command], _Command]:
    """The option --json of a command, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print JSON (docs/schemas/{kind}.json).")


def print_json(kind: str, fields: Mapping[str, Any]) -> None:
    """Print a command's keys to stdout, in the envelope of success. Messages are worded as options."""
    _print({"kind": kind, "schema": SCHEMA, "ok": True, "error": None, **worded(fields)})


def print_failure(kind: str, error: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Print the envelope of a command that failed to stdout. `error`: code, exit_code, message, and figures if any."""
    _print({"kind": kind, "schema": SCHEMA, "ok": False, "error": dict(error), **worded(fields)})


def _print(document: Mapping[str, Any]) -> None:
    import msgspec

    try:
        text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    except UnicodeEncodeError:  # file names may be any bytes; Python holds those that are not UTF-8 as surrogates
        text = json.dumps(msgspec.to_builtins(document, str_keys=True), indent=2)
    text = escaped(text)
    for start in range(0, len(text), _PIECE):
        click.echo(text[start : start + _PIECE], nl=False)
    click.echo()
