"""The contract of all planners: a method is a name in a family's dict, or any callable of the same shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from downset.errors import UsageError

__all__ = ["find_method"]


_Planner = TypeVar("_Planner", bound=Callable[..., object])


def find_method(
    method: str | _Planner,
    known: Mapping[str, _Planner],
    what: str,
    *,
    other: Mapping[str, object] = MappingProxyType({}),
) -> tuple[str, _Planner]:
    """The method's name and its planner. Raises UsageError for an unknown name.

    `known` is the family's dict and `what` names what it plans, for the message. `other` holds the methods of the
    sister problem, whose names people try here."""
    if not isinstance(method, str):
        return getattr(method, "__name__", "callable"), method
    if method not in known:
        problem = f"there is no {method!r} for" if method in other else f"unknown method {method!r} for"
        raise UsageError(f"{problem} {what}; choose one of {', '.join(known)}")
    return method, known[method]
