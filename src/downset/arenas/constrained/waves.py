"""Records whose sizes become known one after another: what is placed stays where it is.

Source: "Efficient Memory Management for Deep Neural Net Inference", section 7: "the algorithms need to be run multiple
    times saving information about allocation from all runs in one place".
Names: a *wave* is the set of records whose sizes become known together.
Complexity: that of the planner, once a wave.
Deviations: any planner that honours pinned offsets serves; what earlier waves placed is pinned for the later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from downset.arenas.gaps import height
from downset.arenas.planners import ARENAS, CONTRACT
from downset.budget import Budget
from downset.memory.records import Record, check_records
from downset.methods import Method, choose
from downset.results.plans import Found

__all__ = ["place_wave", "plan_waves"]


def place_wave(
    placed: Sequence[Record],
    offsets: Sequence[int],
    wave: Sequence[Record],
    *,
    method: str | Method | Callable[..., Found] = "best",
) -> Found:
    """Offsets of the new records; those placed before stay where they are. The bound, too, is for this
    wave given the earlier ones. Raises UsageError for records that cannot be planned, and for placed
    ones that collide."""
    pinned = [replace(record, offset=offset) for record, offset in zip(placed, offsets, strict=True)]
    check_records([*pinned, *wave])
    result: Found = choose(method, ARENAS, CONTRACT)([*pinned, *wave], clock=Budget().start())
    return Found(result.solution[len(pinned) :], result.bound, result.proven, result.states)


def plan_waves(waves: Sequence[Sequence[Record]], *, method: str | Method | Callable[..., Found] = "best") -> Found:
    """Offsets of all records, wave after wave, in order. The bound is the last wave's: for the placements kept."""
    placed: list[Record] = []
    offsets: list[int] = []
    bound = 0
    for wave in waves:
        result = place_wave(placed, offsets, wave, method=method)
        placed += wave
        offsets += result.solution
        bound = result.bound
    return Found(tuple(offsets), bound, height(placed, offsets) == bound)
