"""Downsets as bitmasks: the one lattice that orders, stages and pieces are paths over.

A downset is a set of operators closed under predecessors: what can have been executed so far. Bit i of a mask is
operator i. Everything here is written to be read; `downset._native` holds the fast twins, and tests hold the two equal.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from random import Random

from downset.errors import LimitReached

__all__ = [
    "ancestors",
    "bits",
    "count_downsets",
    "descendants",
    "downsets",
    "estimate_downsets",
    "ready",
    "reduction",
    "successors",
    "topological",
    "width",
]

Masks = Sequence[int]


def bits(mask: int) -> Iterator[int]:
    """The operators of a mask, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def successors(predecessors: Masks) -> tuple[int, ...]:
    """By operator: the mask of those that directly wait for it."""
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
    """Every downset once, by cardinality, the empty one first. Raises LimitReached past `limit` of them."""
    after = successors(predecessors)
    level = {0: sum(1 << operator for operator in ready(predecessors, 0))}  # downset -> its ready operators
    seen = 0
    while level:
        following: dict[int, int] = {}
        for downset, available in level.items():
            seen += 1
            yield downset
            for operator in bits(available):
                larger = downset | 1 << operator
                if larger not in following:
                    opened = sum(1 << later for later in bits(after[operator]) if not predecessors[later] & ~larger)
                    following[larger] = available & ~(1 << operator) | opened
                    if limit is not None and seen + len(following) > limit:
                        raise LimitReached(f"more than {limit} downsets")
        level = following


def count_downsets(predecessors: Masks, *, limit: int | None = None) -> int:
    """How many downsets there are; raises LimitReached past `limit`."""
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


def width(predecessors: Masks) -> int:
    """The most operators that are pairwise unordered (Dilworth): V minus a maximum matching of the closure.

    Augmenting paths, O(V · E) of the closure: seconds at a few thousand operators.
    """
    closed = descendants(predecessors)
    matched_to = [-1] * len(predecessors)

    def augment(root: int) -> bool:
        # An explicit stack: closures of long chains would exceed Python's recursion limit.
        seen = 0
        parent: dict[int, int] = {}
        stack = [root]
        while stack:
            operator = stack.pop()
            fresh = closed[operator] & ~seen
            seen |= fresh
            for later in bits(fresh):
                parent[later] = operator
                if matched_to[later] < 0:
                    while True:
                        operator = parent[later]
                        previous = next((at for at in matching_of.get(operator, ()) if at != later), -1)
                        matched_to[later] = operator
                        matching_of[operator] = (later,)
                        if operator == root:
                            return True
                        later = previous
                stack.append(matched_to[later])
        return False

    matching_of: dict[int, tuple[int, ...]] = {}
    return len(predecessors) - sum(augment(operator) for operator in range(len(predecessors)))


_LARGE_BITS = 500
_LARGE = 2.0**_LARGE_BITS


def estimate_downsets(predecessors: Masks, *, samples: int = 100, seed: int = 0) -> int:
    """About how many downsets there are, from `samples` random walks up the lattice with resampling.

    A walk at D steps to a ready operator at random and multiplies its weight by (ready operators of D) / (maximal
    operators of the next downset). The mass that reaches each downset of a level is then 1 in expectation, so the mean
    weight estimates the size of the level without bias. O(samples · (V + E)).
    """
    random = Random(seed)
    after = successors(predecessors)
    initial = tuple(operator for operator, before in enumerate(predecessors) if before == 0)
    walks: list[tuple[int, tuple[int, ...], int]] = [(0, initial, 0)] * samples  # downset, ready, how many are maximal
    total, level_size, scale = 1.0, 1.0, 0
    for _ in range(len(predecessors)):
        weights = []
        moved: list[tuple[int, tuple[int, ...], int]] = []
        for downset, available, tops in walks:
            choice = random.randrange(len(available))
            operator = available[choice]
            following = downset | 1 << operator
            opened = [later for later in bits(after[operator]) if predecessors[later] & ~following == 0]
            covered = sum(1 for earlier in bits(predecessors[operator]) if after[earlier] & downset == 0)
            weights.append(len(available) / (tops + 1 - covered))
            moved.append((following, (*available[:choice], *available[choice + 1 :], *opened), tops + 1 - covered))
        level_size *= sum(weights) / samples
        total += level_size
        if total > _LARGE:
            total, level_size, scale = total / _LARGE, level_size / _LARGE, scale + _LARGE_BITS
        walks = random.choices(moved, weights=weights, k=samples)
    return round(total) if scale == 0 else round(total * _LARGE) << scale - _LARGE_BITS
