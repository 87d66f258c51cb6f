"""Downsets as bitmasks: the lattice over which orders, stages and pieces are paths.

A downset is a set of operators closed under predecessors: what can have been executed so far. Bit i of a mask is
operator i. The code here favours clarity; `downset._native` holds fast twins, and tests compare both.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random

from downset.errors import LimitReached

__all__ = [
    "ancestors",
    "bits",
    "count_downsets",
    "descendants",
    "divided",
    "downsets",
    "estimate_downsets",
    "lists",
    "masks",
    "ready",
    "reduction",
    "successor_lists",
    "successors",
    "topological",
]

Masks = Sequence[int]
Lists = Sequence[Sequence[int]]
"""By operator: other operators, ascending. Lists take memory linear in edges; masks are quadratic in operators."""


def bits(mask: int) -> Iterator[int]:
    """The operators of a mask, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def masks(listed: Lists) -> tuple[int, ...]:
    """The same sets as masks. They take O(V²) bits, so only searches over few operators use them."""
    sets = []
    for operators in listed:
        mask = 0
        for operator in operators:
            mask |= 1 << operator
        sets.append(mask)
    return tuple(sets)


def lists(sets: Masks) -> tuple[tuple[int, ...], ...]:
    """Masks as ascending lists."""
    return tuple(tuple(bits(mask)) for mask in sets)


def successor_lists(predecessors: Lists) -> tuple[tuple[int, ...], ...]:
    """By operator: the operators that directly wait for it, ascending. O(V + E) time and memory."""
    after: list[list[int]] = [[] for _ in predecessors]
    for operator, before in enumerate(predecessors):
        for earlier in before:
            after[earlier].append(operator)
    return tuple(map(tuple, after))


def successors(predecessors: Masks) -> tuple[int, ...]:
    """By operator: the mask of the operators that directly wait for it."""
    masks = [0] * len(predecessors)
    for operator, before in enumerate(predecessors):
        for earlier in bits(before):
            masks[earlier] |= 1 << operator
    return tuple(masks)


def topological(predecessors: Masks) -> tuple[int, ...]:
    """A topological order, lowest index first among the ready. Raises ValueError on a cycle. O(V + E) mask steps."""
    after = successors(predecessors)
    missing = [mask.bit_count() for mask in predecessors]
    heap = [operator for operator, count in enumerate(missing) if count == 0]
    order = []
    while heap:
        operator = heapq.heappop(heap)
        order.append(operator)
        for later in bits(after[operator]):
            missing[later] -= 1
            if missing[later] == 0:
                heapq.heappush(heap, later)
    if len(order) < len(predecessors):
        raise ValueError("the graph has a cycle")
    return tuple(order)


def ancestors(predecessors: Masks) -> tuple[int, ...]:
    """By operator: the mask of all operators that come before it in every order."""
    closed = [0] * len(predecessors)
    for operator in topological(predecessors):
        for earlier in bits(predecessors[operator]):
            closed[operator] |= closed[earlier] | 1 << earlier
    return tuple(closed)


def descendants(predecessors: Masks) -> tuple[int, ...]:
    """By operator: the mask of all operators that come after it in every order."""
    after = successors(predecessors)
    closed = [0] * len(predecessors)
    for operator in reversed(topological(predecessors)):
        for later in bits(after[operator]):
            closed[operator] |= closed[later] | 1 << later
    return tuple(closed)


def ready(predecessors: Masks, downset: int) -> Iterator[int]:
    """The operators that may run next (SERENITY's zero-indegree set), ascending. O(V)."""
    for operator, before in enumerate(predecessors):
        if not downset >> operator & 1 and before & ~downset == 0:
            yield operator


def downsets(predecessors: Masks, *, limit: int | None = None) -> Iterator[int]:
    """Every downset once, by number of operators, the empty one first. Raises LimitReached if there are more than
    `limit`."""
    after = successors(predecessors)
    level = {0: sum(1 << operator for operator in ready(predecessors, 0))}  # downset -> its ready operators
    most = math.inf if limit is None else limit
    counted = 1
    while level:
        following: dict[int, int] = {}
        for downset, available in level.items():
            if counted > most:
                raise LimitReached(f"more than {limit} downsets")
            yield downset
            for operator in bits(available):
                larger = downset | 1 << operator
                if larger not in following:
                    opened = sum(1 << later for later in bits(after[operator]) if not predecessors[later] & ~larger)
                    following[larger] = available & ~(1 << operator) | opened
                    counted += 1
        level = following


def count_downsets(predecessors: Masks, *, limit: int | None = None) -> int:
    """The number of downsets. Raises LimitReached if there are more than `limit`."""
    return sum(1 for _ in downsets(predecessors, limit=limit))


def reduction(predecessors: Masks) -> tuple[int, ...]:
    """The transitive reduction: the least predecessors that imply the same order."""
    closed = ancestors(predecessors)
    reduced = []
    for before in predecessors:
        implied = 0
        for earlier in bits(before):
            implied |= closed[earlier]
        reduced.append(before & ~implied)
    return tuple(reduced)


def divided(predecessors: Lists) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The graph cut behind every operator that is comparable with all others: the predecessor lists of each part, whose
    operators are numbered from 0.

    Operators must be in a topological order. Every order runs one part after the other, and an antichain lies in one
    part. The number of downsets is 1 plus the sum of (downsets of a part - 1). O(V + E).
    """
    count = len(predecessors)
    first_reader = [min(after, default=count) for after in successor_lists(predecessors)]
    # Operator v comes after all before it if each of those is read no later than by v, and likewise for what follows.
    latest, all_before = -1, []
    for operator in range(count):
        all_before.append(latest <= operator)
        latest = max(latest, first_reader[operator])
    earliest, ends = count, []
    for operator in reversed(range(count)):
        if all_before[operator] and earliest >= operator:
            ends.append(operator + 1)
        earliest = min(earliest, max(predecessors[operator], default=-1))
    bounds = sorted({0, count, *ends})
    return tuple(
        tuple(tuple(earlier - low for earlier in before if earlier >= low) for before in predecessors[low:high])
        for low, high in pairwise(bounds)
    )


_LARGE_BITS = 500
_LARGE = 2.0**_LARGE_BITS


def estimate_downsets(predecessors: Lists, *, samples: int = 100, seed: int = 0) -> int:
    """An estimate of the number of downsets, from `samples` random walks up the lattice with resampling.

    At a downset D a walk adds a random ready operator and multiplies its weight by (ready operators of D) / (maximal
    operators of the next downset). The expected weight that reaches each downset of a level is then 1, so the mean
    weight is an unbiased estimate of the size of the level. O(samples · (V + E)).
    """
    random = Random(seed)
    after = successor_lists(predecessors)
    initial = tuple(operator for operator, before in enumerate(predecessors) if not before)
    walks: list[tuple[int, tuple[int, ...], int]] = [(0, initial, 0)] * samples  # downset, ready, how many are maximal
    total, level_size, scale = 1.0, 1.0, 0
    for _ in range(len(predecessors)):
        weights = []
        moved: list[tuple[int, tuple[int, ...], int]] = []
        for downset, available, tops in walks:
            choice = random.randrange(len(available))
            operator = available[choice]
            following = downset | 1 << operator
            opened = [v for v in after[operator] if all(following >> earlier & 1 for earlier in predecessors[v])]
            covered = sum(not any(downset >> v & 1 for v in after[earlier]) for earlier in predecessors[operator])
            weights.append(len(available) / (tops + 1 - covered))
            moved.append((following, (*available[:choice], *available[choice + 1 :], *opened), tops + 1 - covered))
        level_size *= sum(weights) / samples
        total += level_size
        if total > _LARGE:
            total, level_size, scale = total / _LARGE, level_size / _LARGE, scale + _LARGE_BITS
        walks = random.choices(moved, weights=weights, k=samples)
    return round(total) if scale == 0 else round(total * _LARGE) << scale - _LARGE_BITS
