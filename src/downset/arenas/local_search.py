"""Local search on the top of an arena: the anytime planner between the greedy strategies and a proof.

Source: ejection search (Nagata and Bräysy, 2009); what is our own, native/arenas/ejection.hpp says.
Names: a record is *ejected* where another one is placed over it; it is then placed again. A *target* is the height that
    all records have to stay below. The *visits* of a placement are the records that live at the same time.
Complexity: O(k log k) for each placement, where k records live at the same time; memory grows with the records alone.
Deviations: starts from strip packing and from first fit by size, so it is never above them; stops as soon as the height
    meets the bound. Deterministic where the placements end before the time does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from downset import native
from downset.arenas.gaps import height
from downset.arenas.native_form import native_records
from downset.arenas.strip_packing import strip_packing
from downset.arenas.tflm_greedy import tflm_greedy
from downset.arenas.ties import TiesName, check_ties
from downset.budget import MANY, Clock
from downset.memory.records import Record
from downset.methods import check_whole
from downset.results.plans import Found, StoppedBy

__all__ = ["local_search", "lowered", "lowered_within"]

_ROUNDS = 2_000_000
"""Small problems get fewer: 500 · n² placements."""


def local_search(
    records: Sequence[Record],
    *,
    clock: Clock,
    ties: TiesName = "tflite",
    rounds: int | None = None,
    seed: int = 0,
) -> Found:
    """Offsets of least height found; proven where the height meets the bound. The clock counts placements tried, of
    which there are at most `rounds`."""
    check_ties(ties)  # one or the other: it breaks none
    if rounds is not None:
        check_whole("rounds", rounds)
    check_whole("seed", seed, most=(1 << 64) - 1)
    starts = [strip_packing(records, clock=clock)]
    if not starts[0].stopped_by:
        starts.append(tflm_greedy(records, clock=clock))
    start = min(starts, key=lambda one: height(records, one.solution))
    return lowered(records, start, clock=clock, rounds=rounds, seed=seed)


def lowered(
    records: Sequence[Record], start: Found, *, clock: Clock, rounds: int | None = None, seed: int = 0
) -> Found:
    """The placement of `start`, or a lower one, under the clock."""
    most = min(_ROUNDS, 500 * len(records) ** 2) if rounds is None else rounds
    seconds, allowed = clock.native(most)
    placement = _lowered(records, start, seconds, allowed, MANY, seed)
    clock.count(placement.states)
    stopped_by: StoppedBy = "time" if clock.left_s() == 0 else "work" if allowed < most else ""
    return replace(placement, states=start.states + placement.states, stopped_by="" if placement.proven else stopped_by)


def lowered_within(records: Sequence[Record], start: Found, visits: int, clock: Clock) -> Found:
    """The placement of `start`, or a lower one, after so many visits or when the clock's real time is up."""
    seconds = clock.left_s()
    placement = _lowered(records, start, seconds, MANY, visits, 0) if seconds else start
    return replace(placement, stopped_by=clock.stopped_by()) if not placement.proven else placement


def _lowered(records: Sequence[Record], start: Found, seconds: float, placements: int, visits: int, seed: int) -> Found:
    if height(records, start.solution) <= start.bound:
        return replace(start, proven=True)
    offsets, value, done = native.compiled.arena_lower(
        native_records(records), start.solution, start.bound, seconds, min(placements, MANY), visits, seed
    )
    return Found(tuple(offsets), start.bound, value == start.bound, done)
