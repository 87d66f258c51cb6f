"""The least peak over all orders, proven: best-first search over downsets, from the start and from the end at once.

Source: docs/tour (why the optimum is fast); it replaces the soft budget of "Ordering Chaos", section 3.2.
Names: a *state* is a downset with the least peak of the paths found to it. To *commit* an operator is to run it now and
    to try no other. A *backward* search reads the same orders from their ends (search_space.py).
Complexity: about twice that of the better of the two searches; linear where the graph falls apart.
Deviations: the graph is taken apart first, where that loses nothing (native/orders/decompose.hpp). An operator that
    fits under a state's peak and does not raise live bytes is committed. Live bytes are submodular, so any continuation
    stays as good if this operator is moved to its front. Of chains of operators side by side whose bytes nothing else
    can change any more, only one is tried next (native/orders/branches.hpp). A state whose peak is below a known bound
    counts as if its peak were the bound; more operators then commit. Heuristic orders come first. A forward and a
    backward search take turns and share their bounds and the best order known: on some graphs one of them needs a few
    states and the other needs millions. While they run on, wider and wider beams come between their turns. When a limit
    ends them, the best order known and the larger of the two bounds are returned. The searches start from the bounds of
    `searches.py`. The steps before the first beam take only a share of the time and few states, so that a short limit
    gives an order no worse than that of `beam` under a still shorter one.
"""

from __future__ import annotations

import time

from downset.budget import MANY, Clock
from downset.memory.liveness import OrderProblem
from downset.orders.beam import WIDTHS
from downset.orders.dfs import dfs
from downset.orders.kahn import kahn
from downset.orders.searches import BestFirst, OrderSearches
from downset.results.plans import Found, StoppedBy

__all__ = ["improving", "optimal"]

_FIRST, _QUICK = 2_000, 20_000
"""States expanded before the narrowest beams, and before all others. Most networks need hundreds or thousands."""
_SLICE, _LONGEST_SLICE = 128, 2**16
"""States of the first and of the longest turn of a search; each turn is twice as long as the one before."""
_LEAD = 8
"""The search that raised the bound last has turns that are this many times as long as those of the other."""
_STATES = 1_000_000_000
_WIDEST = 8_000_000
"""The largest width of a beam times operators: some hundred MiB."""
_PAUSE_S = 0.02
_MOVES, _MEMBERS, _PAIR_MEMBERS = 2**26, 2**22, 2**19
"""Limits of the greedy orders and of the two bounds under a work limit: seconds of work on the largest graphs."""


def optimal(problem: OrderProblem, *, clock: Clock) -> Found:
    """An order of least peak, proven if the search ends within its limits; else the best order known and a bound.

    Its peak never exceeds those of the file's order, Kahn's and depth-first. Nor does it exceed that of `beam` if
    `beam` takes at most a twelfth of the time, or of a limit of 400,000 states or more. The clock counts states
    expanded by searches and beams. A search that the time does not end does the same under a limit of states every
    time, and under a larger one it does this first: the result is then never worse. Raises UnsupportedError where the
    native module is not built.
    """
    return improving(problem, clock)[0]


def improving(problem: OrderProblem, clock: Clock) -> tuple[Found, tuple[tuple[int, ...], ...]]:
    """The result of `optimal`, and every order that was the incumbent at some time, the file's first. Under a smaller
    limit of states these are a prefix of those under a larger one."""
    limited, time_limit_s = clock.budget.states is not None, clock.budget.seconds
    run = _OptimalSearch(OrderSearches(problem), clock)
    moves = _MOVES if limited else MANY
    run.try_order(tuple(range(len(problem.predecessors))))
    for backward in (False, True):
        run.try_order(run.parts.greedy(backward=backward, seconds=run.share_s(0.05), moves=moves))
    members, pair_members = (_MEMBERS, _PAIR_MEMBERS) if limited else (MANY, MANY)
    run.bound = max(problem.floor_bytes, run.parts.bound(run.best, 0.1 * run.left_s(), members))
    if limited:  # so that the orders found under a smaller limit come first
        run.baselines(problem, moves)
    run.search(_FIRST, 0.1 * time_limit_s)
    if not limited:  # most networks are proven by now
        run.baselines(problem, moves)
    run.beams(WIDTHS[0], 0)
    incumbent = (
        run.best if clock.left_states() else None
    )  # the same order under every work limit that is not spent here
    run.search(_QUICK - _FIRST, 0.1 * time_limit_s)
    if incumbent and not run.settled():
        run.bound = max(run.bound, run.parts.pair_bound(incumbent, run.bound, 0.1 * run.left_s(), pair_members))
    widest = _WIDEST // max(len(problem.predecessors), 1)
    for width in [*WIDTHS, *(WIDTHS[-1] * 4**power for power in range(1, 10) if WIDTHS[-1] * 4**power <= widest)]:
        begin, before = time.process_time(), run.beamed
        run.beams(width, run.bound)
        if width in WIDTHS[1:]:
            run.beams(width, 0)  # as `beam` does
        # The searches then get twice as much: they need to keep nothing above the order that the beam found.
        if limited:
            run.search(2 * (run.beamed - before) + _LONGEST_SLICE, time_limit_s)
        else:
            run.search(_STATES, 2 * (time.process_time() - begin) + _PAUSE_S)
    run.search(_STATES, time_limit_s)
    states = clock.states if limited else run.states
    return Found(run.best, run.bound, run.bound == run.value, states, run.stopped_by()), tuple(run.improved)


class _OptimalSearch:
    """The state of `improving`: the best order, the bound, and the two searches that narrow the gap between them."""

    def __init__(self, parts: OrderSearches, clock: Clock) -> None:
        self.clock, self.parts, self.bound, self.states, self.beamed = clock, parts, 0, 0, 0
        self.best: tuple[int, ...] = ()
        self.value = -1
        self.improved: list[tuple[int, ...]] = []
        self._searches: list[BestFirst] | None = None
        self._leader: BestFirst | None = None  # the search that raised the bound last
        self._slice = _SLICE

    def left_s(self) -> float:
        return max(self.clock.left_s(), 0.001)

    def share_s(self, share: float) -> float:
        """Seconds: a share of the time limit, as far as it is left."""
        return min(share * self.clock.budget.seconds, self.left_s())

    def settled(self) -> bool:
        return self.bound >= self.value or self.clock.left_s() == 0

    def stopped_by(self) -> StoppedBy:
        if self.bound >= self.value:
            return ""
        return self.clock.stopped_by() or "memory"

    def try_order(self, steps: tuple[int, ...] | None) -> None:
        if steps is not None:
            value = self.parts.peak(steps)
            if self.value < 0 or value < self.value:
                self.best, self.value = steps, value
                self.improved.append(steps)

    def baselines(self, problem: OrderProblem, moves: int) -> None:
        """The orders that no result may exceed, unless the best is proven."""
        if self.bound < self.value:
            self.try_order(self.parts.merge(seconds=self.share_s(0.05), moves=moves))
            self.try_order(kahn(problem).solution)
            self.try_order(dfs(problem).solution)

    def beams(self, width: int, bound: int) -> None:
        """Beam search of this width, forward and backward, unless a limit is reached or the order is proven."""
        for backward in (False, True):
            if not self.settled() and self.clock.left_states():
                before = self.clock.states
                steps = self.parts.beam(width, bound, self.value, backward=backward, clock=self.clock)
                self.beamed += self.clock.states - before
                self.try_order(steps)

    def search(self, states: int, seconds: float) -> None:
        """Let the two searches take turns, for up to so many states or seconds."""
        part = self.clock.part(seconds=seconds)
        last = self.states + min(states, self.clock.left_states())
        if self._searches is None and not self.settled():
            self._searches = [self.parts.best_first(backward=backward) for backward in (False, True)]
        while self._searches and self.states < last and not self.settled() and part.left_s() > 0:
            for search in list(self._searches):
                before = search.expanded
                turn = self._slice if self._leader in (None, search) else self._slice // _LEAD
                left_s = max(part.left_s(), 0.001)
                outcome = search.advance(self.bound, self.value, left_s, min(turn, last - self.states))
                self.states += search.expanded - before
                self.clock.count(search.expanded - before)
                if outcome == "SOLVED":
                    self.try_order(tuple(search.steps))
                if min(search.bound, self.value) > self.bound:
                    self.bound, self._leader = min(search.bound, self.value), search
                if outcome == "OUT_OF_MEMORY":
                    self._searches.remove(search)
                elif outcome != "LIMIT":
                    return
            self._slice = min(2 * self._slice, _LONGEST_SLICE)
