"""The types of errors: every error that the library raises on purpose is a `DownsetError`.

A message names the operator or tensor, the number, the limit, and what to do next: with parameters as data, which each
front end words in its own terms (`messages`). `exit_code` is the exit code of the command line for the error, and
`code` its name in the command line's JSON. Errors that the argument parser finds are usage errors too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from downset.messages import Message, Part

__all__ = [
    "DownsetError",
    "InfeasibleError",
    "InvalidPlan",
    "LimitReached",
    "LoadError",
    "UnsupportedError",
    "UsageError",
]


class DownsetError(Exception):
    """Base of every error raised on purpose. `message`: its parts. `figures`: numbers and names of the message by key,
    for programs; the command line's JSON has them in `error`. `result`: the result found before the failure, such as
    the `Fit` that exceeds a memory limit. `found`: the same as keys of the command's JSON, where the command sets them.
    `lines`: a long message as a terminal shows it, the verdict first; empty where the message is short."""

    exit_code = 70
    code = "internal"

    def __init__(
        self,
        *message: Part,
        figures: Mapping[str, int | str] | None = None,
        result: object = None,
        lines: Sequence[str] = (),
    ) -> None:
        super().__init__(Message(*message))
        self.lines: tuple[str, ...] = tuple(lines)
        self.figures: Mapping[str, int | str] = figures or {}
        self.result = result
        self.found: Mapping[str, object] = {}

    @property
    def message(self) -> Message:
        """The message with its settings as data; `str(error)` has them in Python's words."""
        return Message(*self.args)

    def add_lines(self, lines: Sequence[str]) -> None:
        """Add lines below the message as a terminal shows it."""
        if lines:
            self.lines = (*(self.lines or (self.message,)), *lines)


class UsageError(DownsetError):
    """An option or argument that cannot be used as given."""

    exit_code = 2
    code = "usage"


class InfeasibleError(DownsetError):
    """Proven: no plan meets the limit. The message says which limit is enough."""

    exit_code = 3
    code = "infeasible"


class InvalidPlan(DownsetError):
    """A plan breaks a law of its graph; the message names the first broken law."""

    exit_code = 4
    code = "invalid"


class LoadError(DownsetError):
    """A file is missing, is not a model, is damaged, or holds a graph that breaks a law."""

    exit_code = 5
    code = "load"


class OpenShapeError(LoadError):
    """A network has a tensor whose sizes are known only when it runs."""


class UnsupportedError(DownsetError):
    """Valid input that this part of downset does not handle, or that needs an extra to be installed."""

    exit_code = 5
    code = "unsupported"


class LimitReached(DownsetError):
    """Not known: a limit of time, work or memory was reached before there was a plan, or before it was known whether
    one meets a given limit; or the answer would need a measurement that is not possible here."""

    exit_code = 6
    code = "limit"
