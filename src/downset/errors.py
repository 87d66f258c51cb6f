"""The types of errors: every error that the library raises on purpose is a `DownsetError`.

A message names the operator or tensor, the number, the limit, and what to do next. `exit_code` is what the command
line returns for it, and `code` its name in the command line's JSON. Errors that the argument parser finds are usage
errors too.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    """Base of every error raised on purpose. `figures`: numbers and names of the message by key, for programs; the
    command line's JSON has them in `error`. `result`: what was found before it failed, such as the `Fit` that exceeds a
    memory limit. `found`: the same as keys of the command's JSON, where the command gives them."""

    exit_code = 70
    code = "internal"

    def __init__(self, message: str, *, figures: Mapping[str, int | str] | None = None, result: object = None) -> None:
        super().__init__(message)
        self.figures: Mapping[str, int | str] = figures or {}
        self.result = result
        self.found: Mapping[str, object] = {}


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
    """A file is not there, not a model, damaged, or not a lawful graph."""

    exit_code = 5
    code = "load"


class UnsupportedError(DownsetError):
    """Lawful input that this part of downset does not handle, or that needs an extra to be installed."""

    exit_code = 5
    code = "unsupported"


class LimitReached(DownsetError):
    """Not known: a limit of time or states ended the search before there was any plan to return, or before it was known
    whether one meets the limit asked for; or nothing here can measure what would tell."""

    exit_code = 6
    code = "limit"
