"""Downsets as bitmasks: the one lattice that orders, stages and pieces are paths over.

A downset is a set of operators closed under predecessors: what can have been executed so far. Bit i of a mask is
operator i. Everything here is written to be read; `downset._native` holds the fast twins, and tests hold the two equal.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from downset.errors import LimitReached

__all__ = [
    "ancestors",
    "bits",
    "count_downsets",
    "descendants",
    "downsets",
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
    level = {0: None}
    seen = 0
    while level:
        following: dict[int, None] = {}
        for downset in level:
            seen += 1
            if limit is not None and seen > limit:
                raise LimitReached(f"more than {limit} downsets")
            yield downset
            for operator in ready(predecessors, downset):
                following[downset | 1 << operator] = None
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
