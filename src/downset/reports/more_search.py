"""How a user makes a search find or prove more: a larger limit where one ended it, or a method that searches."""

from __future__ import annotations

import math

from downset.messages import Setting
from downset.results.plans import Evidence, StoppedBy

__all__ = ["larger_limit", "longer_s", "more_work", "search_setting", "time_setting"]

_AT_LEAST_S = 60.0
_TIMES_LONGER = 4
"""A search that a limit ended is proposed to run at least so many times as long; many searches double their work."""
_TIMES_MORE_WORK = 10
_SEARCHING = ("best", "exact", "optimal", "strips")
"""Methods that end with a proof unless a limit ends them; no other method finds less than these."""


def search_setting(evidence: Evidence, least: str) -> Setting | None:
    """The setting with which a planner searches further: the method `least` after a method that looks for no optimum, a
    larger limit where one ended the search. None where the search came to its end, or ran out of memory: none finds
    less then."""
    if evidence.method not in _SEARCHING:
        return Setting("method", least)
    return larger_limit(evidence.stopped_by, evidence.seconds, evidence.states)


def larger_limit(stopped_by: StoppedBy, seconds: float, states: int) -> Setting | None:
    """A limit well above the one that ended a search: `seconds` or `states`. None where no such limit ended it."""
    if stopped_by == "time" and math.isfinite(seconds):
        return time_setting(longer_s(seconds))
    if stopped_by == "work":
        return Setting("work_limit", more_work(states))
    return None


def longer_s(seconds: float) -> float:
    """The seconds proposed after a search that its limit of `seconds` ended."""
    return max(_AT_LEAST_S, _TIMES_LONGER * seconds)


def more_work(states: int) -> int:
    """The states proposed after a search that its limit of `states` ended."""
    return max(_TIMES_MORE_WORK * states, 1000)


def time_setting(seconds: float) -> Setting:
    """A limit in time, rounded up to whole seconds, minutes or hours."""
    unit = 1 if seconds <= 90 else 60 if seconds <= 5400 else 3600
    return Setting("time_limit_s", unit * math.ceil(seconds / unit))
