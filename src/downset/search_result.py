"""The result of a search, its bound, and the limit that ended it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from downset.text import abridged, format_bytes

__all__ = ["Evidence", "Found", "StoppedBy"]

StoppedBy = Literal["", "time", "work", "memory"]
"""The limit that ended a search before its end: of time, of work (states), of memory; "": none did."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a planner of orders or arenas: its solution (operators by step, or offsets or objects by record),
    a bound that holds for every solution, whether the solution meets it, the search states it took, and which limit
    ended the search before its end."""

    solution: tuple[int, ...]
    bound: int
    proven: bool = False
    states: int = 0
    stopped_by: StoppedBy = ""

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Evidence:
    """How good a plan is known to be. `bound` holds for every plan of the same problem; `proven` is `value == bound`
    established by a finished search or by a bound that the plan meets. `states` counts search states (0: none).
    `stopped_by`: the limit that ended the search before its end, where one did."""

    method: str
    value: float
    bound: float
    proven: bool
    states: int = 0
    seconds: float = 0.0
    stopped_by: StoppedBy = ""

    def stopped(self) -> str:
        """Words behind the bound where a limit ended the search, else ""."""
        return f", stopped by the {self.stopped_by} limit" if self.stopped_by else ""

    def in_bytes(self) -> str:
        """The value with its proof or its bound, for people: "4,096 B, proven"."""
        known = "proven" if self.proven else f"bound {format_bytes(self.bound)} B{self.stopped()}"
        return f"{format_bytes(self.value)} B, {known} ({self.method})"

    def in_seconds(self) -> str:
        """The value with its proof or its bound, for people: "0.25 s, bound 0.2 s"."""
        known = "proven" if self.proven else f"bound {self.bound:.6g} s{self.stopped()}"
        return f"{self.value:.6g} s, {known} ({self.method})"
