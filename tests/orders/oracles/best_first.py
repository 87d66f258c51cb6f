"""Best-first search: the downset of least peak is expanded first, so no downset above the optimum is ever expanded.

Source: docs/tour (why the optimum is fast); it replaces the soft budget of "Ordering Chaos", section 3.2.
Names: a *state* is a downset with the least peak of the paths found to it. To *commit* an operator is to run it now and
    to try no other.
Complexity: O(states · ready) heap steps; states are the downsets up to the optimum that no commit skips.
Deviations: an operator that fits under the state's peak and does not raise live bytes is committed. Live bytes are
    submodular, so any continuation stays as good if this operator is moved to its front. A state whose peak is below a
    known bound counts as if its peak were the bound; more operators then commit. An operator that is comparable with
    all others splits the search: once its downset is expanded, smaller states are dropped. The native search also
    commits short chains; this file is its oracle.
"""

from __future__ import annotations

import heapq
import time

from downset.lattice import ancestors, bits, descendants
from downset.orders.search_space import SearchSpace

__all__ = ["BestFirst"]


class BestFirst:
    """A search that can be continued where it stopped. `bound`: bytes below which no order's peak lies. `expanded`:
    states so far. `steps`: the order, once it is SOLVED."""

    def __init__(self, space: SearchSpace) -> None:
        self.bound = max(space.start_bytes, space.problem.floor_bytes)
        self.expanded = 0
        self.steps: tuple[int, ...] = ()
        self._space = space
        self._narrow, self._passed = _narrow_sizes(space), 0
        self._heap = [(self.bound, 0, 0, space.start_bytes, space.start_ready)]
        self._came_from: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
        self._reached = {0: self.bound}
        self._closed: set[int] = set()

    def advance(self, bound: int, incumbent: int, seconds: float, states: int) -> str:
        """Expand up to `states` more states, for up to `seconds`. `bound` must be a true lower bound of every peak.
        Orders whose peak is not below `incumbent` are not looked for."""
        if self.steps:
            return "SOLVED"
        deadline = time.perf_counter() + seconds
        self.bound = max(self.bound, bound)
        last = self.expanded + states
        while self._heap:
            peak, minus_size, downset, live, ready = self._heap[0]
            if max(peak, self.bound) >= incumbent:
                break
            if downset in self._closed or -minus_size < self._passed:
                heapq.heappop(self._heap)
                continue
            self.bound = max(self.bound, peak)
            if self.expanded >= last or (self.expanded % 64 == 0 and time.perf_counter() > deadline):
                return "LIMIT"
            heapq.heappop(self._heap)
            if -minus_size in self._narrow:
                self._passed = -minus_size
            self._closed.add(downset)
            self.expanded += 1
            if downset == self._space.full:
                self.steps = self._space.given_order(_way(self._came_from, downset))
                return "SOLVED"
            self._expand(downset, live, ready, incumbent)
        self.bound = max(self.bound, incumbent)
        return "IMPOSSIBLE"

    def _reach(self, downset: int, origin: int, ran: tuple[int, ...], peak: int, live: int, ready: int) -> None:
        if self._reached.get(downset, peak + 1) > peak:
            self._reached[downset] = peak
            self._came_from[downset] = (origin, ran)
            heapq.heappush(self._heap, (peak, -downset.bit_count(), downset, live, ready))

    def _expand(self, downset: int, live: int, ready: int, incumbent: int) -> None:
        space = self._space
        origin, committed = downset, []
        while True:
            choice = _commit(space, downset, live, ready, self.bound)
            if choice is None:
                break
            operator, live = choice
            downset |= 1 << operator
            ready = space.open(downset, ready, operator)
            committed.append(operator)
        if committed:
            self._reach(downset, origin, tuple(committed), self.bound, live, ready)
            return
        for operator in bits(ready):
            transient, left = space.step(downset, live, operator)
            if transient < incumbent:
                larger = downset | 1 << operator
                opened = space.open(larger, ready, operator)
                self._reach(larger, downset, (operator,), max(self.bound, transient), left, opened)


def _narrow_sizes(space: SearchSpace) -> set[int]:
    """Sizes at which there is only one downset, because an operator is comparable with all others. Every order passes
    through it, so once it is reached at least cost, smaller states need no more work."""
    above, below = ancestors(space.predecessors), descendants(space.predecessors)
    sizes = set()
    for before, after in zip(above, below, strict=True):
        if before.bit_count() + after.bit_count() == space.count - 1:
            sizes |= {before.bit_count(), before.bit_count() + 1}
    return sizes


def _commit(space: SearchSpace, downset: int, live: int, ready: int, peak: int) -> tuple[int, int] | None:
    """The first ready operator that can be committed, and the live bytes after it; None where there is none."""
    for operator in bits(ready):
        transient, left = space.step(downset, live, operator)
        if transient <= peak and left <= live:
            return operator, left
    return None


def _way(came_from: dict[int, tuple[int, tuple[int, ...]]], downset: int) -> tuple[int, ...]:
    steps: list[int] = []
    while downset:
        downset, ran = came_from[downset]
        steps += reversed(ran)
    return tuple(reversed(steps))
