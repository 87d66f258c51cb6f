"""Local search over the sequence of placement: the anytime planner between the greedy strategies and a proof.

Source: the idea of Arm Vela's hill climbing: move what stands at the top; the moves and the acceptance are our own.
Names: a *sequence* says in which turn records go to their lowest free offset.
Complexity: O(rounds · n · overlaps).
Deviations: starts from the sequences of the greedy strategies, so it is never above first fit by size or by breadth;
    stops as soon as the height meets the bound. Deterministic while the rounds end before the time does.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset.native import native_module
from downset.plans import Found
from downset.records import Record, breadths, offsets_bound

__all__ = ["local_search"]

_ROUNDS = 2_000_000
"""Small problems get fewer: 500 · n² moves."""


def local_search(
    records: Sequence[Record],
    *,
    ties: str = "tflite",
    time_limit_s: float = 10.0,
    rounds: int | None = None,
    seed: int = 0,
) -> Found:
    """Offsets of least height found; proven where the height meets the bound."""
    del ties  # starts from both rules
    bound = offsets_bound(records)
    if not records:
        return Found((), 0, True)
    offsets, height, done = native_module().arena_local_search(
        [record.nbytes for record in records],
        [record.alignment for record in records],
        [-1 if record.offset is None else record.offset for record in records],
        [list(record.active()) for record in records],
        _sequences(records),
        bound,
        time_limit_s,
        min(_ROUNDS, 500 * len(records) ** 2) if rounds is None else rounds,
        seed,
    )
    return Found(tuple(offsets), bound, height == bound, done)


def _sequences(records: Sequence[Record]) -> list[list[int]]:
    everything = range(len(records))
    length = [record.stop - record.start for record in records]
    breadth_of = dict.fromkeys(everything, 0)
    profile = breadths(records)
    for index, record in enumerate(records):
        breadth_of[index] = max((total for step, total in profile if record.start <= step < record.stop), default=0)
    return [
        sorted(everything, key=lambda i: (-records[i].nbytes, i)),
        sorted(everything, key=lambda i: (-breadth_of[i], -records[i].nbytes, i)),
        sorted(everything, key=lambda i: (-length[i], -records[i].nbytes, i)),
        sorted(everything, key=lambda i: (-length[i] * records[i].nbytes, i)),
        sorted(everything, key=lambda i: (records[i].start, -records[i].nbytes, i)),
        sorted(everything, key=lambda i: (-records[i].stop, -records[i].nbytes, i)),
    ]
