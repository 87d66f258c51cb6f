"""Greedy by size improved: in stages set by the positional maxima, the record and object with the least idle time.

Source: "Efficient Memory Management for Deep Neural Net Inference", section 4.4; LiteRT's GREEDY_BY_SIZE for objects.
Names: the i-th positional maximum is the largest i-th size of any operator profile (`bounds.positional_maxima`); a
    *stage* holds the records between two of them; the *distance* of a record to an object is the idle time between its
    lifetime and the closest busy interval.
Complexity: O(n²) comparisons, O(k n log n) updates of distances for k objects.
Deviations: the paper leaves open which stage a size equal to a positional maximum belongs to when others lie just above
    it. ties="paper" takes both in one stage, which gives its figures on MobileNet v1 and DeepLab v3 (a stage of their
    own, as a literal reading has it, gives 6.902 MiB on DeepLab v3). ties="tflite" starts a stage below each maximum,
    as LiteRT does. Within a stage the least distance goes first, then the larger record, then the earlier one; the
    lowest object among equals. Records that are left when the time is up get further objects. On MobileNet v2 that
    gives 6.699 MiB, better than the 6.891 printed. Neither rule is always at least as good as greedy by size
    (docs/arenas.md, Where the paper's tables stand).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from downset.arenas.objects_fit import completed
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.memory.bounds import positional_maxima
from downset.memory.records import Record
from downset.results.plans import Found

__all__ = ["objects_by_size_improved"]

Interval = tuple[int, int]
_NONE = (1, 0, -1)  # (no object, distance, object): after every record that has an object


def objects_by_size_improved(records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite") -> Found:
    """Assign records to objects, in stages of decreasing size, the closest in time first."""
    clock, ascending = clock.timed(), positional_maxima(records)[::-1]
    below = bisect_left if check_ties(ties) == "tflite" else bisect_right
    stages: dict[int, list[int]] = {}
    for index, record in enumerate(records):
        stages.setdefault(-below(ascending, record.nbytes), []).append(index)
    object_of = [-1] * len(records)
    busy: list[list[Interval]] = []
    for stage in sorted(stages):
        _assign_stage(records, stages[stage], busy, object_of, clock)
    return completed(records, object_of, clock)


def _assign_stage(
    records: Sequence[Record], stage: Sequence[int], busy: list[list[Interval]], object_of: list[int], clock: Clock
) -> None:
    pieces = {index: records[index].active() for index in stage}
    closest = {index: _closest(busy, pieces[index]) for index in stage if clock.left_s() > 0}
    while closest and clock.left_s() > 0:
        index = min(closest, key=lambda i: (closest[i][:2], -records[i].nbytes, i))
        _, _, chosen = closest.pop(index)
        if chosen < 0:
            chosen = len(busy)
            busy.append([])
        for piece in pieces[index]:
            insort(busy[chosen], piece)
        object_of[index] = chosen
        for other, (_, gap, number) in closest.items():
            now = _distance(busy[chosen], pieces[other])
            if number == chosen and now != gap:  # taken, or closer: look at all objects again
                closest[other] = _closest(busy, pieces[other])
            elif now >= 0:
                closest[other] = min(closest[other], (0, now, chosen))


def _closest(busy: Sequence[Sequence[Interval]], pieces: Sequence[Interval]) -> tuple[int, int, int]:
    """(0, least distance, lowest object at it), or `_NONE`."""
    near = ((_distance(taken, pieces), number) for number, taken in enumerate(busy))
    return min(((0, gap, number) for gap, number in near if gap >= 0), default=_NONE)


def _distance(busy: Sequence[Interval], pieces: Sequence[Interval]) -> int:
    """Idle steps between the pieces and the closest busy interval; −1 where they overlap."""
    if not _free(busy, pieces):
        return -1
    low, high = pieces[0][0], pieces[-1][1]
    position = bisect_left(busy, (low, low))
    before = low - busy[position - 1][1] if position else None
    after = bisect_left(busy, (high, high))
    behind = busy[after][0] - high if after < len(busy) else None
    return min((gap for gap in (before, behind) if gap is not None), default=0)  # neither: in a gap of the record


def _free(busy: Sequence[Interval], pieces: Sequence[Interval]) -> bool:
    """Whether an object that is busy in these ascending intervals is free in all of `pieces`. O(log n) a piece.

    One interval tree an object in the paper; a sorted list serves, as the intervals of an object never overlap."""
    for low, high in pieces:
        position = bisect_left(busy, (high, high))  # intervals that begin before `high` end before `position`
        if position and busy[position - 1][1] > low:
            return False
    return True
