"""The portfolio: every strategy in turn, the best kept, stopped as soon as one meets the bound. Deterministic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from downset.arenas.greedy_by_breadth import greedy_by_breadth
from downset.arenas.greedy_by_size import greedy_by_size
from downset.arenas.naive import naive
from downset.plans import Found
from downset.records import Record, breadth_bound

__all__ = ["best"]

_MEMBERS: tuple[tuple[Callable[..., Found], str], ...] = (
    (greedy_by_size, "tflite"),
    (greedy_by_breadth, "tflite"),
    (greedy_by_breadth, "paper"),
    (naive, "tflite"),
)


def best(records: Sequence[Record], *, ties: str = "tflite", time_limit_s: float = 10.0) -> Found:
    """The smallest placement of the portfolio; proven when it meets the largest breadth. Never above any member."""
    del ties  # all rules are tried
    bound = breadth_bound(records)
    chosen: Found | None = None
    for planner, rule in _MEMBERS:
        found = planner(records, ties=rule, time_limit_s=time_limit_s)
        if chosen is None or _height(records, found) < _height(records, chosen):
            chosen = found
        if _height(records, chosen) <= bound:
            break
    assert chosen is not None
    return Found(chosen.solution, bound, _height(records, chosen) == bound)


def _height(records: Sequence[Record], found: Found) -> int:
    return max((at + record.nbytes for at, record in zip(found.solution, records, strict=True)), default=0)
