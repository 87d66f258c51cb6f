"""Local search over the sequence of placement: the anytime planner between the greedy strategies and a proof.

Source: the idea of Arm Vela's hill climbing: move what stands at the top; the moves and the acceptance are our own.
Names: a *sequence* says in which turn records go to their lowest free offset.
Complexity: O(rounds · n · overlaps). Of more than 10,000 records only the starts are tried.
Deviations: starts from the sequences of the greedy strategies, so it is never above first fit by size or by breadth;
    stops as soon as the height meets the bound. Deterministic while the rounds end before the time does.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset import native
from downset.arenas.breadth_order import breadth_order
from downset.arenas.gaps import height as height_of
from downset.arenas.gaps import place_in_order
from downset.arenas.native_form import native_records
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.memory.bounds import offsets_bound
from downset.memory.records import Record
from downset.methods import check_whole
from downset.results.plans import Found, StoppedBy

__all__ = ["local_search"]

_MOST_RECORDS = 10_000
"""Above this the search would need a list of neighbours that no longer fits into memory."""
_ROUNDS = 2_000_000
"""Small problems get fewer: 500 · n² moves."""


def local_search(
    records: Sequence[Record],
    *,
    clock: Clock,
    ties: TiesName = "tflite",
    rounds: int | None = None,
    seed: int = 0,
) -> Found:
    """Offsets of least height found; proven where the height meets the bound. The clock counts rounds."""
    check_ties(ties)  # one or the other: it starts from both
    if rounds is not None:
        check_whole("rounds", rounds)
    check_whole("seed", seed, most=(1 << 64) - 1)
    bound = offsets_bound(records)
    if not records:
        return Found((), 0, True)
    if len(records) > _MOST_RECORDS:
        return _first_fits(records, bound, clock)
    most = min(_ROUNDS, 500 * len(records) ** 2) if rounds is None else rounds
    seconds, allowed = clock.native(most)
    offsets, height, done = native.compiled.arena_local_search(
        native_records(records), _sequences(records), bound, seconds, allowed, seed
    )
    clock.count(done)
    stopped_by: StoppedBy = "time" if clock.left_s() == 0 else "work" if allowed < most else ""
    return Found(tuple(offsets), bound, height == bound, done, "" if height == bound else stopped_by)


def _first_fits(records: Sequence[Record], bound: int, clock: Clock) -> Found:
    """The best of the sequences the search would start from; of one at least."""
    chosen: tuple[int, ...] = ()
    least, tried = -1, 0
    for sequence in _sequences(records):
        offsets = place_in_order(records, sequence, lowest=True)
        value = height_of(records, offsets)
        tried += 1
        if least < 0 or value < least:
            chosen, least = offsets, value
        if least <= bound or clock.left_s() == 0:
            break
    return Found(chosen, bound, least == bound, tried)


def _sequences(records: Sequence[Record]) -> list[list[int]]:
    everything = range(len(records))
    length = [record.stop - record.start for record in records]
    return [
        sorted(everything, key=lambda i: (-records[i].nbytes, i)),
        breadth_order(records),
        sorted(everything, key=lambda i: (-length[i], -records[i].nbytes, i)),
        sorted(everything, key=lambda i: (-length[i] * records[i].nbytes, i)),
        sorted(everything, key=lambda i: (records[i].start, -records[i].nbytes, i)),
        sorted(everything, key=lambda i: (-records[i].stop, -records[i].nbytes, i)),
    ]
