"""Lower bounds on the period of cyclic schedules: the busiest resource, and odd sets of ends.

Source: the bounds of weighted edge colouring (Edmonds' matching polytope). Within an odd set S of ends at most (|S| -
1) / 2 transfers run at once, so the sum of their seconds divided by that number is a bound.
Complexity: O(2^n · n) for n ends of one component without its leaves; above `_MOST` ends only sets of three are
checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np

from downset.pipelines.scheduling.events import TimedTask

__all__ = ["load_bound_s", "loads_s", "odd_set_bound_s"]

_MOST = 16


def loads_s(tasks: Sequence[TimedTask], resources: int) -> list[float]:
    """Seconds of each resource's work for one frame."""
    loads = [0.0] * resources
    for task in tasks:
        for resource in task.resources:
            loads[resource] += task.seconds
    return loads


def load_bound_s(tasks: Sequence[TimedTask], resources: int) -> float:
    """A lower bound, in seconds, on the period of every schedule of these tasks."""
    return max([0.0, odd_set_bound_s(tasks), *loads_s(tasks, resources)])


def odd_set_bound_s(tasks: Sequence[TimedTask]) -> float:
    """The largest value, over odd sets of at least three resources, of the seconds of tasks inside the set divided by
    (size - 1) / 2.

    A task with more than two resources (two ends and the medium) is left out, because the load of the medium is at
    least as large."""
    between: dict[tuple[int, int], float] = {}
    for task in tasks:
        if len(task.resources) == 2:
            first, second = sorted(task.resources)
            between[first, second] = between.get((first, second), 0.0) + task.seconds
    worst = 0.0
    for ends in _components(_without_leaves(between)):
        inside = {pair: seconds for pair, seconds in between.items() if ends.issuperset(pair)}
        worst = max(worst, _of_sets(sorted(ends), inside) if len(ends) <= _MOST else _of_three(sorted(ends), inside))
    return worst


def _without_leaves(between: dict[tuple[int, int], float]) -> list[tuple[int, int]]:
    """The pairs on cycles or between them. An end with one partner is left out: its own load is a bound at least as
    large as that of any set with it."""
    pairs = [pair for pair, seconds in between.items() if seconds > 0]
    while True:
        partners: dict[int, int] = {}
        for end in (end for pair in pairs for end in pair):
            partners[end] = partners.get(end, 0) + 1
        left = [pair for pair in pairs if min(partners[end] for end in pair) > 1]
        if len(left) == len(pairs):
            return pairs
        pairs = left


def _components(pairs: Iterable[tuple[int, int]]) -> list[set[int]]:
    components: list[set[int]] = []
    for pair in pairs:
        joined = set(pair).union(*(part for part in components if part & set(pair)))
        components = [part for part in components if not part & set(pair)] + [joined]
    return components


def _of_sets(ends: Sequence[int], inside: dict[tuple[int, int], float]) -> float:
    """The largest value over all odd sets, by summing over subsets."""
    place = {end: index for index, end in enumerate(ends)}
    sums = np.zeros(1 << len(ends))
    for (first, second), seconds in inside.items():
        sums[1 << place[first] | 1 << place[second]] += seconds
    sizes = np.zeros(1 << len(ends), np.int64)
    for index in range(len(ends)):
        shaped = sums.reshape(-1, 2, 1 << index)
        shaped[:, 1] += shaped[:, 0]
        sizes.reshape(-1, 2, 1 << index)[:, 1] += 1
    odd = (sizes >= 3) & (sizes % 2 == 1)
    return float((sums[odd] / ((sizes[odd] - 1) // 2)).max(initial=0.0))


def _of_three(ends: Sequence[int], inside: dict[tuple[int, int], float]) -> float:
    return max(
        (sum(inside.get(pair, 0.0) for pair in combinations(three, 2)) for three in combinations(ends, 3)), default=0.0
    )
