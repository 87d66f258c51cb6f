"""The budget of a search: seconds, states, and a seed for its random choices.

A `Budget` is data. Who plans starts its `Clock` and passes it to everything that searches. The time of a clock is the
processor time of this process, so that a search does as much on a busy machine as on a quiet one (it ends after `BUSY`
times the limit in real time); under a limit of states it is the number of states that the searches have counted, so
that neither the load of the machine nor its speed affects the result. The limit of time then holds as well.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal, TypedDict

from downset.errors import UsageError

__all__ = [
    "BUSY",
    "DEFAULT_SECONDS",
    "INTERRUPTED",
    "MANY",
    "STATES_A_SECOND",
    "Budget",
    "Clock",
    "check_time_limit",
    "check_work_limit",
    "moment_s",
]

DEFAULT_SECONDS = 10.0
"""The time limit of a search that is given none."""

STATES_A_SECOND = 100_000
"""States that are one second of a clock under a limit of states."""
BUSY = 6
"""Time in which others have the processors does not count, up to so many times a limit in all."""
INTERRUPTED = threading.Event()
"""Set while a user has ended all searches of this process: none of their clocks has anything left."""
MANY = 1 << 62
"""A number of states that no search reaches."""
_LEAST_S = 0.5
_LOOK = 500
"""The number of states that a look at the clock counts as, in searches written in Python."""
_Now = Callable[[], float]


class BudgetLimits(TypedDict):
    """The limits as the public planners name them."""

    time_limit_s: float
    work_limit: int | None


def check_time_limit(seconds: float, name: str = "time_limit_s") -> None:
    """Raise UsageError for a time limit that is not a number of seconds from 0."""
    if not isinstance(seconds, Real) or isinstance(seconds, bool):
        raise UsageError(f"{name} must be a number of seconds, such as 3.0; given {seconds!r}")
    if not seconds >= 0:
        raise UsageError(f"{name} must be 0 s or more; given {float(seconds):g}")


def check_work_limit(states: int | None) -> None:
    """Raise UsageError for a work limit that is not a whole number of states from 0, or None."""
    if states is not None and (not isinstance(states, int) or isinstance(states, bool) or states < 0):
        raise UsageError(f"work_limit must be a number of states from 0; given {states!r}")


@dataclass(frozen=True, slots=True)
class Budget:
    """`seconds`: of processor time. `states`: how many states the searches may visit (None: any number). `seed`: of
    random choices. As text it is the limit that a user is told: seconds, or states where they are limited.

    Raises UsageError for values that are not limits; it names them `time_limit_s`, `work_limit` and `seed`, as the
    public planners do."""

    seconds: float = DEFAULT_SECONDS
    states: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_time_limit(self.seconds)
        check_work_limit(self.states)
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed <= MANY:
            raise UsageError(f"seed must be a whole number from 0 to {MANY:,}; given {self.seed!r}")

    def __str__(self) -> str:
        return f"{self.seconds:g} s" if self.states is None else f"{self.states:,} states"

    def start(self, *, real_time: bool = False) -> Clock:
        """A clock that runs from now. `real_time`: it counts real seconds, for searches that wait for other processes
        or devices."""
        return Clock(self, _Count(), _real_s if real_time else _searching_s)

    def limits(self) -> BudgetLimits:
        return {"time_limit_s": self.seconds, "work_limit": self.states}


@dataclass(slots=True)
class _Count:
    """The states that the clocks of one search have counted."""

    states: int = 0


class Clock:
    """The running clock of a budget, or of a part of one; a part counts its states on the whole as well.

    Searches that count their own states look with `over`, `left_s` and `left_states`, and report what they visited
    (`count`). Searches written in Python that count none look with `late`, `left` and `within`: under a limit of
    states each such look counts as some."""

    __slots__ = ("_began", "_count", "_first", "_last", "_now", "budget")

    def __init__(self, budget: Budget, count: _Count, now: _Now) -> None:
        self.budget, self._now = budget, now
        self._count, self._first = count, count.states
        self._began = moment_s(now)
        self._last = None if budget.states is None else count.states + min(budget.states, MANY)

    @property
    def states(self) -> int:
        """The states counted since this clock started."""
        return self._count.states - self._first

    def count(self, states: int) -> None:
        """Count states that a search visited."""
        self._count.states += states

    def left_s(self) -> float:
        """Seconds left, 0 at the end."""
        if INTERRUPTED.is_set():
            return 0.0
        (began, real_began), (now, real) = self._began, moment_s(self._now)
        return max(self.budget.seconds - max(now - began, real - real_began), 0.0)

    def left_states(self) -> int:
        """States left; MANY without a limit of states."""
        return MANY if self._last is None else max(self._last - self._count.states, 0)

    def over(self) -> bool:
        """Whether a limit is reached."""
        return self.left_states() == 0 or self.left_s() == 0

    def stopped_by(self) -> Literal["", "time", "work", "interrupt"]:
        """The limit that is reached, or the interrupt; "" if nothing ends the search."""
        if INTERRUPTED.is_set():
            return "interrupt"
        if self.left_states() == 0:
            return "work"
        return "time" if self.left_s() == 0 else ""

    def late(self) -> bool:
        """`over`, as a look that counts."""
        self._look()
        return self.over()

    def left(self) -> float:
        """Seconds left on this clock, as a look that counts."""
        self._look()
        if self._last is None or self.left_s() == 0:
            return self.left_s()
        return self.left_states() / STATES_A_SECOND

    def within(self, seconds: float) -> Clock:
        """The clock of a part that takes at most so many seconds on this clock, as a look that counts."""
        self._look()
        return self.part(seconds=seconds) if self._last is None else self.part(states=_states(seconds))

    def at_least(self, seconds: float) -> Clock:
        """This clock, or one that goes on after its end for so many seconds on it, if fewer are left. The time
        limit next to a limit of states is not extended. As a look that counts."""
        if self.left() >= seconds:
            return self
        if self._last is None:
            return Clock(replace(self.budget, seconds=seconds), self._count, self._now)
        budget = replace(self.budget, seconds=self.left_s(), states=_states(seconds))
        return Clock(budget, self._count, self._now)

    def part(self, *, seconds: float = math.inf, states: int = MANY) -> Clock:
        """The clock of a part that takes at most so many seconds and so many states of those left."""
        seconds = min(max(seconds, 0.0), self.left_s())
        most = min(max(states, 0), self.left_states())
        return Clock(Budget(seconds, None if most == MANY else most, self.budget.seed), self._count, self._now)

    def share(self, share: float) -> Clock:
        """The clock of a part that takes at most this share, above 0, of the seconds and of the states left."""
        states = MANY if self._last is None else int(share * self.left_states())
        return self.part(seconds=share * self.left_s(), states=states)

    def timed(self) -> Clock:
        """A clock for work that counts no states: it has the time that is left, and half a second at least, so
        that a strategy for a few thousand records or fewer is never cut short."""
        return Clock(Budget(max(self.left_s(), _LEAST_S), None, self.budget.seed), self._count, self._now)

    def native(self, most: int) -> tuple[float, int]:
        """(seconds, states): the limits of a native search that may visit at most `most` states."""
        return self.left_s(), min(most, self.left_states())

    def rest(self) -> Budget:
        """The budget that is left, for a search that runs a clock of its own."""
        return Budget(self.left_s(), None if self._last is None else self.left_states(), self.budget.seed)

    def _look(self) -> None:
        if self._last is not None:
            self._count.states += _LOOK


def moment_s(now: _Now) -> tuple[float, float]:
    """The two times that end a search, each after the seconds of its limit: that of `now`, and the real time in units
    of `BUSY` seconds."""
    return now(), _real_s() / BUSY


def _searching_s() -> float:
    return time.process_time()


def _real_s() -> float:
    return time.monotonic()


def _states(seconds: float) -> int:
    return int(min(max(seconds, 0.0) * STATES_A_SECOND, MANY))
