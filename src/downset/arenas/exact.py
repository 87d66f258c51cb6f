"""Exact offsets: the portfolio for an answer, complete search for a better one and for a proof.

Source: the form of the search (records in the order of their offsets, each at rest, sections for inference, dominance
    by what could sink below, parts solved one by one) is minimalloc's (Moffitt, 2023). What is added to it, and where
    each addition comes from, native/arenas/capacity_search.hpp says.
Names: a *section* is a stretch of steps in which the same records live; a *target* is a height that the search tries to
    stay within.
Complexity: exponential; anytime under the time limit. All work is measured in placements tried, the clock only ends it:
    two runs that both end before the limit, or under the same work limit, give the same answer.
Deviations: two modes share one search. With a capacity it stops at the first placement that fits; where none is found
    in three quarters of the time, the rest looks for lower placements, so that the best known is worth reporting.
    Without one it tries the bound first, before the slower strategies of the portfolio. Then it halves the gap between
    the bound and the best height, each target for so many placements, then again with more for each.
    Heights are multiples of what divides all sizes, alignments and pinned offsets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from downset import native
from downset.arenas.best import best, quick_offsets
from downset.arenas.gaps import height
from downset.arenas.local_search import lowered
from downset.arenas.native_form import native_records
from downset.arenas.ties import TiesName, check_ties
from downset.budget import MANY, Clock
from downset.errors import InfeasibleError
from downset.memory.records import Record
from downset.methods import check_whole
from downset.results.plans import Found

if TYPE_CHECKING:
    from downset import _native

__all__ = ["MOST_RECORDS", "exact"]

MOST_RECORDS = 5_000
"""Local search alone runs for more records: the complete search would recurse deeply and prove nothing."""
_CAPACITY_SHARE = 0.75
"""The share of time and work spent on the capacity; the rest lowers the best placement if no placement that fits was
found."""
_BOUND_SHARE = 0.5
"""The most of the time that the bound is tried for before the rest of the portfolio."""
_FIRST_NODES = 8
"""Placements tried for each record at the first targets; four times as many each time the gap has been halved."""


def exact(
    records: Sequence[Record],
    *,
    clock: Clock,
    ties: TiesName = "tflite",
    capacity: int | None = None,
) -> Found:
    """Offsets of least height, proven if the search ends in time; with `capacity`, the first found that fit it.

    The clock counts placements tried. Raises InfeasibleError where it is proven that nothing fits the capacity, naming
    the best placement known. Otherwise returns the best placement found; if that is above the capacity, the search
    proved nothing in time.
    """
    check_ties(ties)
    if capacity is not None:
        check_whole("capacity", capacity)
    searched = len(records) <= MOST_RECORDS
    at_bound, outcome = Found((), 0), native.compiled.Outcome.LIMIT
    if capacity is None and searched:
        seconds = _BOUND_SHARE * clock.budget.seconds
        at_bound, outcome = _at_bound(records, clock.part(seconds=seconds, states=_FIRST_NODES * len(records)))
        if at_bound.proven:
            return at_bound
    result = best(records, clock=clock, ties=ties)
    if capacity is not None and result.bound > capacity:
        raise _nothing_fits(result, height(records, result.solution), capacity)
    enough = result.bound if capacity is None else capacity
    if height(records, result.solution) <= enough:
        return result
    if not searched:
        return lowered(records, result, clock=clock)
    if capacity is not None:
        return _fit(records, result, capacity, clock)
    result = replace(result, bound=at_bound.bound, states=at_bound.states)
    tried = outcome is not native.compiled.Outcome.IMPOSSIBLE
    return _least(records, result, clock, bound_tried=tried)


def _at_bound(records: Sequence[Record], clock: Clock) -> tuple[Found, _native.Outcome]:
    """A proven placement at the bound, of a quick strategy or of a short search; else none, with the bound then known
    and the placements tried. Second: how the search ended."""
    quick = quick_offsets(records, clock)
    if quick.proven:
        return quick, native.compiled.Outcome.SOLVED
    grain = _grain(records)
    bound = -(-quick.bound // grain) * grain
    offsets, outcome, nodes = _within(records, bound, clock)
    if outcome is native.compiled.Outcome.SOLVED:
        return Found(offsets, bound, True, nodes), outcome
    return Found((), bound + grain * (outcome is native.compiled.Outcome.IMPOSSIBLE), False, nodes), outcome


def _grain(records: Sequence[Record]) -> int:
    """The largest number that divides all heights that matter. An alignment that divides all sizes and pins is met by
    itself; one that is a multiple of the grain keeps offsets among the grain's multiples."""
    pinned = (record.offset for record in records if record.offset is not None)
    grain = math.gcd(*(record.nbytes for record in records), *pinned)
    alignments = {record.alignment for record in records}
    while unmet := [alignment for alignment in alignments if grain % alignment and alignment % grain]:
        grain = math.gcd(grain, *unmet)
    return grain


def _fit(records: Sequence[Record], result: Found, capacity: int, clock: Clock) -> Found:
    node_limit = clock.left_states()
    share = math.ceil(_CAPACITY_SHARE * node_limit)
    part = clock.part(seconds=_CAPACITY_SHARE * clock.left_s(), states=share)
    offsets, outcome, nodes = _within(records, capacity, part)
    states = result.states + nodes
    if outcome is native.compiled.Outcome.SOLVED:
        return Found(offsets, result.bound, height(records, offsets) == result.bound, states)
    left = node_limit - share  # whatever the share took: both parts grow with the limit
    if outcome is native.compiled.Outcome.IMPOSSIBLE:
        result = replace(result, bound=capacity + 1)
        left = min(
            left, nodes + _FIRST_NODES * len(records)
        )  # the question is answered; what is enough is searched in short
    least = _least(records, replace(result, states=states), clock.part(states=left))
    if least.bound > capacity:
        raise _nothing_fits(least, height(records, least.solution), capacity)
    return least


def _nothing_fits(result: Found, best_bytes: int, capacity: int) -> InfeasibleError:
    bound = result.bound
    message = (
        f"{best_bytes} is the least" if bound == best_bytes else f"at least {bound} are needed, {best_bytes} are enough"
    )
    figures = {"limit_bytes": capacity, "least_bytes": bound, "best_bytes": best_bytes}
    return InfeasibleError(f"proven: nothing fits into {capacity} bytes; {message}", figures=figures, result=result)


def _least(records: Sequence[Record], result: Found, clock: Clock, *, bound_tried: bool = False) -> Found:
    """The search without a capacity. `bound_tried`: the bound was tried for as many placements as it is at first."""
    grain = _grain(records)
    solution, value, states = result.solution, height(records, result.solution), result.states
    bound = -(-result.bound // grain) * grain  # no height below it is possible
    share = _FIRST_NODES * len(records)
    while bound < value:
        # The bound itself first; then each target that was out of reach moves the lower end of what is tried.
        out_of_reach, target = bound - grain, bound
        if bound_tried:
            bound_tried, out_of_reach = False, bound
            target = _between(bound, value, bound, grain)
        while out_of_reach < target < value:
            if clock.over():
                return Found(solution, min(bound, value), False, states, clock.stopped_by())
            offsets, outcome, nodes = _within(records, target, clock, share)
            states += nodes
            if outcome is native.compiled.Outcome.SOLVED:
                solution, value = offsets, height(records, offsets)
            else:
                out_of_reach = target
                if outcome is native.compiled.Outcome.IMPOSSIBLE:
                    bound = target + grain
            if outcome is native.compiled.Outcome.LIMIT and value - out_of_reach <= max(grain, bound // 200):
                break
            target = _between(out_of_reach, value, bound, grain)
        share *= 4
    return Found(solution, min(bound, value), bound >= value, states)


def _between(out_of_reach: int, value: int, bound: int, grain: int) -> int:
    """The next target: half way from what is out of reach to the best height."""
    return min(max(out_of_reach + (value - out_of_reach) // (2 * grain) * grain, bound), value - grain)


def _within(
    records: Sequence[Record], capacity: int, clock: Clock, most: int = MANY
) -> tuple[tuple[int, ...], _native.Outcome, int]:
    """(offsets if it is SOLVED, how the native search ended, placements tried: `most` at the most)."""
    offsets, outcome, nodes = native.compiled.arena_within(native_records(records), capacity, *clock.native(most))
    clock.count(nodes)
    return tuple(offsets), outcome, nodes
