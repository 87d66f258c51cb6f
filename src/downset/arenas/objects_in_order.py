"""Greedy in order for shared objects: tensors as they are produced, each into the free object closest in size.

Source: Lee et al. 2019, as compared in "Efficient Memory Management for Deep Neural Net Inference", table 1.
Names: the pool is the objects free at the step reached.
Complexity: O(n log n) searches, O(n k) moves in the pool.
Deviations: of two objects equally close the larger is taken; of equal sizes the lowest number where the object is large
    enough, the highest where it has to grow. A record with gaps holds its object through them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

from downset.arenas.objects_fit import completed
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.memory.records import Record
from downset.results.plans import Found

__all__ = ["objects_in_order"]


def objects_in_order(records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite") -> Found:
    """Assign records to objects, in order of production."""
    check_ties(ties)
    clock = clock.timed()
    object_of = [-1] * len(records)
    in_use: list[tuple[int, int]] = []  # (stop, object)
    pool: list[tuple[int, int]] = []  # (size, object), ascending
    sizes: list[int] = []
    for index in sorted(range(len(records)), key=lambda i: (records[i].start, i)):
        if clock.left_s() == 0:
            break
        record = records[index]
        while in_use and in_use[0][0] <= record.start:
            _, free = heapq.heappop(in_use)
            insort(pool, (sizes[free], free))
        position = bisect_left(pool, (record.nbytes, -1))
        if position == len(pool) or (
            position and record.nbytes - pool[position - 1][0] < pool[position][0] - record.nbytes
        ):
            position -= 1
        if position < 0:
            chosen = len(sizes)
            sizes.append(record.nbytes)
        else:
            _, chosen = pool.pop(position)
            sizes[chosen] = max(sizes[chosen], record.nbytes)
        object_of[index] = chosen
        heapq.heappush(in_use, (record.stop, chosen))
    return completed(records, object_of, clock)
