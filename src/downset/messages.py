"""Messages of the library: words, and the parameters and calls that they name as data.

`str(message)` words these for Python: `time_limit_s=60.0`. The command line words the same parts as its options:
`--time-limit 60s`. To join messages to a longer one, make a `Message` of them: an f-string keeps only Python's words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Call", "Message", "Part", "Setting", "joined", "of_plain"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A parameter of a public function or type, by its name there, and a value in the units there. Without a value
    (`...`) the parameter itself is meant."""

    name: str
    value: object = ...

    def __str__(self) -> str:
        if self.value is ...:
            return self.name
        return f"{self.name}={'math.inf' if self.value == math.inf else repr(self.value)}"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a public function. `arguments`: the positional ones; without any, the user's own call is meant, with
    these settings in addition."""

    function: str
    settings: tuple[Setting, ...] = ()
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.arguments and not self.settings:
            return f"downset.{self.function}"
        arguments = map(repr, self.arguments) if self.arguments else ("...",)
        return f"downset.{self.function}({', '.join([*arguments, *map(str, self.settings)])})"

    def adding(self, *settings: Setting) -> Call:
        """The call with further settings, which take the place of those of the same name."""
        names = {setting.name for setting in settings}
        return replace(self, settings=(*(one for one in self.settings if one.name not in names), *settings))


Part = str | Setting | Call


class Message(str):
    """Words with settings and calls among them. As a string it has Python's words for these."""

    __slots__ = ("parts",)
    parts: tuple[Part, ...]

    def __new__(cls, *parts: Part) -> Message:
        flat: list[Part] = []
        for part in parts:
            flat += part.parts if isinstance(part, Message) else (part,) if part != "" else ()
        message = super().__new__(cls, "".join(map(str, flat)))
        message.parts = tuple(flat) or ("",)
        return message

    def __reduce__(self) -> tuple[Any, ...]:
        return Message, self.parts

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All settings, those of calls included."""
        named: list[Setting] = []
        for part in self.parts:
            named += part.settings if isinstance(part, Call) else (part,) if isinstance(part, Setting) else ()
        return tuple(named)

    def worded(self, word: Callable[[Setting | Call], str]) -> str:
        """The text with settings and calls in other words."""
        return "".join(part if isinstance(part, str) else word(part) for part in self.parts)

    def removeprefix(self, prefix: str) -> Message:
        first, *others = self.parts
        return Message(first.removeprefix(prefix) if isinstance(first, str) else first, *others)

    def removesuffix(self, suffix: str) -> Message:
        *before, last = self.parts
        return Message(*before, last.removesuffix(suffix) if isinstance(last, str) else last)

    def edited(self, edit: Callable[[str], str]) -> Message:
        """The message with its words edited, and its settings and calls as they are."""
        return Message(*(edit(part) if isinstance(part, str) else part for part in self.parts))

    def plain(self) -> list[Any]:
        """The parts for JSON; `of_plain` reads them."""
        return [part if isinstance(part, str) else _plain(part) for part in self.parts]


def of_plain(parts: Iterable[Any]) -> Message:
    """The message of which `Message.plain` made these parts."""
    return Message(*(part if isinstance(part, str) else _part(part) for part in parts))


def joined(separator: str, items: Iterable[Part]) -> Message:
    """The items with the separator between them."""
    parts = [part for item in items for part in (separator, item)]
    return Message(*parts[1:])


def _plain(part: Setting | Call) -> list[Any]:
    if isinstance(part, Call):
        return [part.function, [_plain(setting) for setting in part.settings], list(part.arguments)]
    return [part.name] if part.value is ... else [part.name, part.value]


def _part(plain: list[Any]) -> Setting | Call:
    if len(plain) == 3:
        function, settings, arguments = plain
        return Call(function, tuple(Setting(*setting) for setting in settings), tuple(arguments))
    return Setting(*plain)
