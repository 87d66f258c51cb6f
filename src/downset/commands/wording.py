"""The command line's words for the settings and calls in messages of the library: its options and commands.

The options and the types of their values are those of the click commands, so that no second list can go stale.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any

import rich_click as click

from downset.messages import Call, Message, Setting
from downset.text import is_plain, printable, range_text

__all__ = ["COMMAND_OF", "OPTION_OF", "command_named", "option_of", "worded"]

COMMAND_OF = {
    "compare": "verify",
    "fit": "fit",
    "fit_memories": "fit",
    "pipelines.replan.replan": "simulate --replan MODEL",
    "pipelines.replan.plan_upgraded": "split --what-if",
    "plan_arena": "arena --form offsets",
    "plan_order": "order",
    "plan_pipeline": "split",
    "run_stages": "run",
    "serve": "serve",
    "simulate": "simulate",
    "tune_stages": "stage",
}
"""The command that calls a function of the library."""

OPTION_OF = {
    "memory_bytes": "worker_memory",
    "profiles": "no_profiles",
    "seconds": "time_limit",
    "time_s": "time_limit",
    "timings": "budget_timings",
    "work": "work_limit",
}
"""The click parameter that sets a parameter of a public function, where its name is another one than the function's,
units apart."""

_UNITS = ("_bytes", "_s")


def command_named(name: str) -> click.Command:
    """The click command of that name, with its options."""
    module = import_module(f"downset.commands.{name.replace('-', '_')}")
    return getattr(module, name.replace("-", "_"))  # type: ignore[no-any-return]


def option_of(name: str, command: click.Command) -> click.Option | None:
    """The option of the command, or of a command below it, that sets this parameter of a public function."""
    wanted = {_bare(name), OPTION_OF.get(name, name)}
    below = [option_of(name, one) for one in getattr(command, "commands", {}).values()]
    options = [one for one in command.params if isinstance(one, click.Option)]
    return next((one for one in options if _bare(str(one.name)) in wanted), next(filter(None, below), None))


def _bare(name: str) -> str:
    for unit in (*_UNITS, "_path"):
        name = name.removesuffix(unit)
    return name


def worded(value: Any, command: click.Command | None = None) -> Any:
    """The value with each message in it as plain text, in which settings are options. Lists, tuples, mappings and
    dataclasses are walked. `command`: whose options are meant first; by default that which runs."""
    if command is None:
        context = click.get_current_context(silent=True)
        command = None if context is None else context.command
    return _walked(value, partial(_words, command))


def _walked(value: Any, word: Callable[[Setting | Call], str]) -> Any:
    if is_plain(value):
        return value
    if isinstance(value, Message):
        return value.worded(word)
    if type(value) in (list, tuple):
        return type(value)(_walked(item, word) for item in value)
    if isinstance(value, Mapping):
        return {key: _walked(item, word) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _walked(getattr(value, field.name), word) for field in fields(value)})
    return value


def _words(command: click.Command | None, part: Setting | Call) -> str:
    """The option of the command that runs, or else of another one; or the command of a call."""
    others = map(command_named, sorted({typed.split()[0] for typed in COMMAND_OF.values()}))
    if isinstance(part, Setting):
        speaking = others if command is None else chain([command], others)
        option = next(filter(None, (option_of(part.name, one) for one in speaking)), None)
        return str(part) if option is None else _typed(option, part.value)
    typed = COMMAND_OF[part.function]
    words = ["downset", typed, *map(_quoted, part.arguments)]
    for setting in part.settings:
        option = option_of(setting.name, command_named(typed.split()[0]))
        if option is not None and setting.value != math.inf:  # no command takes a seed of plans, or no limit
            words.append(_typed(option, setting.value))
    return " ".join(words)


def _size_text(size: object) -> str:
    """A size, a range of sizes, or the sizes of a shape, as they are typed."""
    if isinstance(size, range):
        return range_text(size)
    return ",".join(map(str, size)) if isinstance(size, Sequence) else str(size)


def _typed(option: click.Option, value: object) -> str:
    """The option with the value as they are typed."""
    name = option.opts[0]
    if value is ... or (option.is_flag and value in (True, None)):  # a flag switches off what None leaves out
        return name
    if value is None or (option.is_flag and not option.secondary_opts):
        return f"without {name}"
    if option.is_flag:
        return option.secondary_opts[0]
    if isinstance(value, Mapping):  # sizes by input, or by the name of an open one
        values = [f"{key}={_size_text(size)}" for key, size in value.items()]
    else:
        each = value if option.multiple and isinstance(value, list | tuple) else [value]
        values = [getattr(option.type, "word", str)(one) for one in each]
    return " ".join(f"{name} {_quoted(one)}" for one in values)


def _quoted(word: str | os.PathLike[str]) -> str:
    """The word as a shell takes it. Control characters in names of files do not reach a terminal."""
    return shlex.quote(printable(os.fspath(word)))
