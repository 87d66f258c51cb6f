"""Exact offsets: local search for an answer, complete search for a proof. Small and middling instances.

Source: the form of the search (records in the order of their offsets, each at rest, sections for inference, dominance
    by what could sink below) is minimalloc's (Moffitt, 2023); what is added to it, native/arena_capacity.hpp says.
Names: a *section* is a stretch of steps in which the same records live; its floor is the lowest offset that anything
    unplaced in it can still have.
Complexity: exponential; anytime under the time limit, and deterministic while the node limits end it before the time.
Deviations: two modes share one search: with a capacity it stops at the first placement that fits, without one it goes
    down from the best height to the bound. Heights are multiples of what divides all sizes and alignments.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from downset.arenas.gaps import height
from downset.arenas.local_search import local_search
from downset.arenas.native_form import small_enough
from downset.errors import InfeasibleError
from downset.native import native_module
from downset.plans import Found
from downset.records import Record

__all__ = ["exact"]

_MOST_RECORDS = 5_000
"""Above this the complete search would only recurse deeply and prove nothing: local search alone answers."""


def exact(
    records: Sequence[Record],
    *,
    ties: str = "tflite",
    time_limit_s: float = 10.0,
    capacity: int | None = None,
    node_limit: int = 1 << 60,
) -> Found:
    """Offsets of least height, proven if the search ends in time; with `capacity`, any that fit it.

    Raises InfeasibleError where it is proven that nothing fits the capacity. Otherwise the best found is returned, also
    where it is above the capacity: then nothing was proven in time.
    """
    deadline = time.perf_counter() + time_limit_s
    found = local_search(records, ties=ties, time_limit_s=(0.3 if capacity is None else 0.05) * time_limit_s)
    best, value, states = found.solution, height(records, found.solution), found.states
    if capacity is not None and found.bound > capacity:
        raise InfeasibleError(f"every placement needs {found.bound} bytes; the capacity is {capacity}")
    if value <= found.bound or (capacity is not None and value <= capacity):
        return found
    if len(records) > _MOST_RECORDS or not small_enough(records):
        return found
    grain = math.gcd(*(record.nbytes for record in records), *(record.alignment for record in records))
    grain = math.gcd(grain, *(record.offset for record in records if record.offset is not None))
    low = -(-found.bound // grain) * grain  # no height below it is possible
    target = low if capacity is None else capacity // grain * grain
    while low < value and (left := deadline - time.perf_counter()) > 0.001:
        # Half of what is left for the target at hand, so that an impossible dream does not eat all of it.
        offsets, outcome, nodes = _within(records, target, max(0.5 * left, 0.001), node_limit)
        states += nodes
        if outcome > 0:
            best, value = offsets, height(records, offsets)
        elif outcome == 0:
            low = target + grain
        if capacity is not None:
            break
        if outcome < 0 and target >= value - grain:
            break  # the least improvement is out of reach, and so is a proof
        target = value - grain if outcome < 0 else low + (value - low) // (2 * grain) * grain
        target = min(max(target, low), value - grain)
    if capacity is not None and low > capacity:
        raise InfeasibleError(f"no placement fits into {capacity} bytes: the search is complete")
    return Found(best, min(low, value), low >= value, states)


def _within(
    records: Sequence[Record], capacity: int, time_limit_s: float, node_limit: int
) -> tuple[tuple[int, ...], int, int]:
    """(offsets, 1 placed or 0 impossible or -1 limit, nodes) from the native search."""
    offsets, outcome, nodes = native_module().arena_within(
        [record.nbytes for record in records],
        [record.alignment for record in records],
        [-1 if record.offset is None else record.offset for record in records],
        [list(record.active()) for record in records],
        capacity,
        time_limit_s,
        node_limit,
    )
    return tuple(offsets), outcome, nodes
