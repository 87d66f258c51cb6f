"""The compiled steps of `optimal` and `beam`. Where a problem falls apart, they work on its segments instead of its
operators (native/orders/decompose.hpp). Each step works forward, or backward: on the same orders read from their
ends.

Lower bounds. Source: docs/tour: live bytes are submodular over downsets, so their minimum is a minimum closure: one
    maximum flow.
Names: the bound of v is the least transient of v over the downsets that contain its ancestors and neither v nor a
    descendant of it. Of two unordered operators one runs second. Its bound is taken over the downsets that contain the
    first as well; the bound of the pair is the smaller of the two bounds so found.
Complexity: one maximum flow for each operator, over the operators unordered with it, and two for each pair.
Deviations: where v may run in place, the bytes of its largest candidate are subtracted; the bound stays valid without a
    flow for each candidate. Pairs help with many similar operators, such as the gradients of many tables: any one of
    them could run first, but not all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from downset import native
from downset.budget import MANY, Clock
from downset.memory.liveness import OrderProblem
from downset.orders.native_form import native_problem

if TYPE_CHECKING:
    from downset import _native

__all__ = ["BestFirst", "OrderSearches"]

_BYTES = 5 * 2**26
"""Bytes of states that one search may hold, about a third of a GiB; two searches run at a time."""


class OrderSearches:
    """The steps on one problem. Each returns None for an order where a limit came before it was complete. The limits
    `moves`, `states` and `members` count work: ready segments compared, states expanded, segments in a flow. Clocks
    count states.

    Raises UnsupportedError where the native module is not built."""

    def __init__(self, problem: OrderProblem) -> None:
        self._module = native.compiled
        self._problem = native_problem(problem)
        self._forward, self._members, self._all_fixed = self._module.decompose(self._problem, relaxed=False)
        self._backward = self._forward.reversed()
        self._segments_of: dict[tuple[int, ...], Sequence[int]] = {}

    def peak(self, steps: Sequence[int]) -> int:
        return self._module.order_peak(self._problem, steps)

    def merge(self, *, seconds: float, moves: int = MANY) -> tuple[int, ...] | None:
        """The greedy order of the segments that there would be if the file's order decided who makes a storage first
        and who reads it last. Where these are the same in every order and the graph is a tree or series-parallel, its
        peak is the least."""
        segments, members = self._forward, self._members
        if not self._all_fixed:
            segments, members, _ = self._module.decompose(self._problem, relaxed=True)
        chosen = self._module.greedy(segments, seconds, moves)
        return tuple(operator for segment in chosen for operator in members[segment]) or None

    def greedy(self, *, backward: bool, seconds: float, moves: int = MANY) -> tuple[int, ...] | None:
        return self._complete(self._module.greedy(self._space(backward), seconds, moves))

    def beam(self, width: int, bound: int, incumbent: int, *, backward: bool, clock: Clock) -> tuple[int, ...] | None:
        """An order below `incumbent`. Peaks below `bound` count as it."""
        steps, expanded = self._module.beam(self._space(backward), width, bound, incumbent, *clock.native(MANY))
        clock.count(expanded)
        return self._complete(steps)

    def bound(self, order: Sequence[int], seconds: float, members: int = MANY) -> int:
        """Bytes that no order stays below, by single operators. `order`: one that is known."""
        return self._module.closure_bound(self._forward, self._segments(order), seconds, members)

    def pair_bound(self, order: Sequence[int], bound: int, seconds: float, members: int = MANY) -> int:
        """Likewise by pairs, and at least `bound`."""
        return self._module.pair_bound(self._forward, self._segments(order), bound, seconds, members)

    def best_first(self, *, backward: bool) -> BestFirst:
        return BestFirst(self._module.BestFirst(self._space(backward), _BYTES), self)

    def _complete(self, segments: Sequence[int]) -> tuple[int, ...] | None:
        return self.operators(segments) if len(segments) == len(self._members) else None

    def operators(self, segments: Sequence[int]) -> tuple[int, ...]:
        """The order of operators of an order of segments."""
        steps = tuple(operator for segment in segments for operator in self._members[segment])
        self._segments_of[steps] = segments
        return steps

    def _segments(self, steps: Sequence[int]) -> Sequence[int]:
        """The order of segments that gave this order of operators, or the best that is known."""
        segments = self._segments_of.get(tuple(steps))
        if segments is not None:
            return segments
        orders = [range(len(self._members)), *self._segments_of.values()]
        return min(orders, key=lambda order: self._module.order_peak(self._forward, order))

    def _space(self, backward: bool) -> _native.OrderProblem:
        return self._backward if backward else self._forward


class BestFirst:
    """A search for an order of least peak that can be continued where it stopped. `bound`: bytes below which no order's
    peak lies. `expanded`: states so far. `steps`: the order, once it is found."""

    def __init__(self, search: _native.BestFirst, searches: OrderSearches) -> None:
        self._search, self._searches = search, searches

    @property
    def bound(self) -> int:
        return self._search.bound

    @property
    def expanded(self) -> int:
        return self._search.expanded

    @property
    def steps(self) -> tuple[int, ...]:
        return self._searches.operators(self._search.steps)

    def advance(self, bound: int, incumbent: int, seconds: float, states: int) -> str:
        """Expand up to `states` more. "SOLVED": `steps` is below the incumbent and least of all; "IMPOSSIBLE": none is
        below it; "LIMIT": the search may go on; "OUT_OF_MEMORY": it may not."""
        return self._search.advance(bound, incumbent, seconds, states).name
