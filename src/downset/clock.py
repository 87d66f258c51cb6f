"""The clock of a search: real seconds, or under a work limit the number of states.

Inside `counting` with a work limit, the clock advances with the states that searches count: `STATES_A_S` states are one
second. Limits, shares of the time left and moments are still given in seconds, but the load of the machine does not
affect the result.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypedDict

from downset.budget import TimeIsUp

__all__ = [
    "DEFAULT_TIME_LIMIT_S",
    "STATES_A_S",
    "TimeIsUp",
    "WorkLimits",
    "compiled_limits",
    "counted",
    "counting",
    "limits",
    "now",
    "spent",
    "stopped_by",
    "told",
]

DEFAULT_TIME_LIMIT_S = 10.0
"""The time limit of a command that names none."""

STATES_A_S = 100_000
"""States that count as one second of a search under a work limit."""
_LOOK = 500
"""The number of states that a look at the clock counts as, in searches written in Python."""
_OVER_S = 1e9
"""Seconds by which the clock is set forward when the real time limit is reached."""


class WorkLimits(TypedDict):
    """Limits of a planner that counts its states itself."""

    time_limit_s: float
    work_limit: int | None


@dataclass(slots=True)
class _WorkCount:
    """The states so far, and the moment of `time.monotonic` that ends the search in any case."""

    end: float
    done: int = 0

    def over(self) -> bool:
        return time.monotonic() > self.end


_WORK: ContextVar[_WorkCount | None] = ContextVar("work", default=None)


@contextlib.contextmanager
def counting(work_limit: int | None, time_limit_s: float) -> Iterator[float]:
    """A context in which the clock counts states, if there is a work limit. Yields the time limit of the search on that
    clock. The real time limit holds as well."""
    if work_limit is None:
        yield time_limit_s
        return
    token = _WORK.set(_WorkCount(time.monotonic() + time_limit_s))
    try:
        yield work_limit / STATES_A_S
    finally:
        _WORK.reset(token)


def now() -> float:
    """Seconds on a clock that never goes back. Under a work limit each call counts as some states."""
    work = _WORK.get()
    if work is None:
        return time.monotonic()
    work.done += _LOOK
    return work.done / STATES_A_S + (_OVER_S if work.over() else 0.0)


def spent(states: int) -> None:
    """Count `states` states of a search."""
    work = _WORK.get()
    if work is not None:
        work.done += states


def counted() -> int:
    """The states counted so far under a work limit; 0 without one."""
    work = _WORK.get()
    return 0 if work is None else work.done


def stopped_by() -> Literal["time", "work"]:
    """The limit that ends a search which is late on this clock."""
    work = _WORK.get()
    return "time" if work is None or work.over() else "work"


def told(seconds: float) -> str:
    """A limit on this clock as text for users: seconds, or states under a work limit."""
    return f"{seconds:g} s" if _WORK.get() is None else f"{round(seconds * STATES_A_S):,} states"


def compiled_limits(seconds: float, most: int) -> tuple[float, int]:
    """(seconds, states): the limits of a search that counts states itself and may expand at most `most`."""
    work = _WORK.get()
    if work is None:
        return seconds, most
    return max(work.end - time.monotonic(), 0.0), int(min(most, max(seconds, 0.0) * STATES_A_S))


def limits(seconds: float) -> WorkLimits:
    """The limits of a planner of orders or arenas that has `seconds` on this clock."""
    work = _WORK.get()
    if work is None:
        return {"time_limit_s": seconds, "work_limit": None}
    left_s = max(work.end - time.monotonic(), 0.0)
    return {"time_limit_s": left_s, "work_limit": 0 if seconds <= 0 else int(min(seconds * STATES_A_S, 1e15))}
