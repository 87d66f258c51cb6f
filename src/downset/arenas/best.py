"""The portfolio: every strategy in turn, the best kept, stopped as soon as one meets the bound.

Source: "Efficient Memory Management for Deep Neural Net Inference", section 7, which recommends to try several
    strategies before the first inference; the bound that stops it is sections 4.1's and 5.1's.
Names: a *member* is a strategy under one rule for ties.
Complexity: the sum of its members'.
Deviations: all members under both rules; then a short local search from the best placement in one arena. Some are
    members only up to so many records, or up to so much work: records times the most that live at once. Deterministic
    unless the time is up first: then one that runs places the rest without a search, and only members that take
    O(n log n) follow, above `_MANY` records only where strip packing was cut short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from downset.arenas.equality import equality, equality_objects
from downset.arenas.from_objects import from_objects
from downset.arenas.gaps import height
from downset.arenas.greedy_by_breadth import greedy_by_breadth
from downset.arenas.greedy_by_size import greedy_by_size
from downset.arenas.greedy_in_order import greedy_in_order
from downset.arenas.local_search import lowered_within
from downset.arenas.min_cost_flow import min_cost_flow
from downset.arenas.naive import naive, naive_objects
from downset.arenas.objects_by_breadth import objects_by_breadth
from downset.arenas.objects_by_size import objects_by_size
from downset.arenas.objects_by_size_improved import objects_by_size_improved
from downset.arenas.objects_fit import total_bytes
from downset.arenas.objects_in_order import objects_in_order
from downset.arenas.strip_packing import strip_packing
from downset.arenas.tflm_greedy import tflm_greedy
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.memory.bounds import objects_bound, offsets_bound, positional_maxima
from downset.memory.records import Record
from downset.methods import Method
from downset.results.plans import Found

__all__ = ["OBJECT_MEMBERS", "OFFSET_MEMBERS", "best", "best_objects", "quick_objects", "quick_offsets"]

Member = tuple[Method, str, int | None]
"""Strategy, rule for ties, most records it takes part for."""


def _members(*rows: tuple[Callable[..., Found], str, int | None]) -> tuple[Member, ...]:
    """Members in the order tried. Every strategy takes the option `ties`; where it has a single rule, it ignores the
    value. One that takes longer than O(n log n) takes `clock`. New members go to the end: the first `_QUICK` also take
    part above `_MOST_WORK`."""
    return tuple((Method(strategy), ties, limit) for strategy, ties, limit in rows)


_QUICK = 3
_MOST_WORK = 10**9
"""If records times the most that live at once exceed it, only the first three members of each form take part, and those
that take O(n log n): of 100,000 records that live for a third of the time each, one placement alone takes ten
seconds."""
_MANY, _NEAR = 5_000, 1.01
"""Strip packing is lowered first if there are more than `_MANY` records; the other members follow if its height exceeds
`_NEAR` times the bound."""
_VISITS, _MOST_VISITS = 1_000, 20_000_000
"""Visits of the search for each record, and of all: up to one second."""

OFFSET_MEMBERS = _members(
    (greedy_by_size, "tflite", None),
    (strip_packing, "tflite", None),
    (greedy_by_breadth, "tflite", None),
    (greedy_by_breadth, "paper", None),
    (greedy_in_order, "tflite", None),
    (tflm_greedy, "tflite", None),
    (from_objects, "tflite", None),
    (from_objects, "paper", None),
    (equality, "tflite", None),
    (naive, "tflite", None),
)
OBJECT_MEMBERS = _members(
    (objects_by_size_improved, "tflite", 2000),
    (objects_by_size_improved, "paper", 2000),
    (objects_by_breadth, "paper", None),
    (objects_by_breadth, "tflite", None),
    (objects_by_size, "tflite", None),
    (objects_in_order, "tflite", None),
    (min_cost_flow, "tflite", 200),
    (equality_objects, "tflite", None),
    (naive_objects, "tflite", None),
)


def best(records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite") -> Found:
    """The smallest placement of the portfolio, lowered by a search; proven when it meets the bound. Never above any
    member that takes part, and all do that `_MOST_WORK`, `_MANY` and `_NEAR` leave, in the real time of the clock."""
    check_ties(ties)
    clock, visits = clock.timed(), min(_VISITS * len(records), _MOST_VISITS)
    if len(records) <= _MANY:
        first = _first_best(records, OFFSET_MEMBERS, offsets_bound(records), height, clock)
        return lowered_within(records, first, visits, clock)
    packed = strip_packing(records, clock=clock)
    strips = lowered_within(records, packed, visits, clock)
    value, bound = height(records, strips.solution), strips.bound
    if value <= _NEAR * bound:
        return strips
    if not packed.stopped_by and clock.left_s() <= 0:
        return replace(strips, stopped_by=clock.stopped_by())
    others = [member for member in OFFSET_MEMBERS if member[0].plan is not strip_packing]
    further = _first_best(records, others, bound, height, clock)
    if height(records, further.solution) < value:
        return lowered_within(records, further, visits, clock)
    return replace(strips, stopped_by=further.stopped_by)


def best_objects(records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite") -> Found:
    """The least total of the portfolio's objects; proven when it meets the bound. Never above any member that takes
    part in the real time of the clock."""
    check_ties(ties)
    return _first_best(records, OBJECT_MEMBERS, objects_bound(records), total_bytes, clock.timed())


def quick_offsets(records: Sequence[Record], clock: Clock) -> Found:
    """The smallest placement of the few members that are quick for any number of records."""
    return _first_best(records, OFFSET_MEMBERS[:_QUICK], offsets_bound(records), height, clock.timed())


def quick_objects(records: Sequence[Record], clock: Clock) -> Found:
    """The least total of the members that take no more than O(k n log n): what the exact search starts from."""
    members = [member for member in OBJECT_MEMBERS if member[2] is None]
    return _first_best(records, members, objects_bound(records), total_bytes, clock.timed())


def _first_best(
    records: Sequence[Record],
    members: Iterable[Member],
    bound: int,
    measure: Callable[[Sequence[Record], Sequence[int]], int],
    clock: Clock,
) -> Found:
    chosen: tuple[int, ...] = ()
    least: int | None = None
    for strategy, rule, _ in _in_time(_taking_part(records, members), clock):
        if strategy.plan is from_objects and least is not None and least <= _stacked_bound(records):
            continue  # it takes longest, and cannot be lower
        result = strategy.plan(records, **strategy.taken(ties=rule, clock=clock))
        value = measure(records, result.solution)
        if least is None or value < least:
            chosen, least = result.solution, value
        if least <= bound:
            break
    proven = least == bound
    return Found(chosen, bound, proven, stopped_by="" if proven else clock.stopped_by())


def _stacked_bound(records: Sequence[Record]) -> int:
    """A bound of every arena in which shared objects lie one after the other: `from_objects` leaves pins below them."""
    return objects_bound([record for record in records if record.offset is None])


def _taking_part(records: Sequence[Record], members: Iterable[Member]) -> list[Member]:
    some = [member for member in members if member[2] is None or len(records) <= member[2]]
    if _work(records) <= _MOST_WORK:
        return some
    return some[:_QUICK] + [member for member in some[_QUICK:] if not member[0].takes("clock")]


def _in_time(members: Sequence[Member], clock: Clock) -> Iterator[Member]:
    """The members; when the time is up, those alone that take O(n log n). The last, which no other exceeds, then runs
    only where none did."""
    tried = 0
    for member in members:
        quick = not tried if member is members[-1] else not member[0].takes("clock")
        if quick or clock.left_s() > 0:
            tried += 1
            yield member


def _work(records: Sequence[Record]) -> int:
    """Records times the most that live at once."""
    if len(records) ** 2 <= _MOST_WORK:
        return len(records) ** 2
    return len(records) * len(positional_maxima(records))
