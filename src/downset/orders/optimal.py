"""The least peak over all orders, proven: best-first search over downsets, from the start and from the end at once.

Source: docs/tour (why the optimum is fast); it replaces the soft budget of "Ordering Chaos", section 3.2.
Names: see best_first.py; *backward* is the same orders read from their ends (search_space.py).
Complexity: that of the better of two searches, twice.
Deviations: simple orders come first and, when the search is long, ever wider beams between its turns. The forward and
    the backward search take turns too, and share their bounds and the best order known: on graphs that open one way and
    close the other, the difference is a few states against millions. Whatever ends it, the best order known is
    returned, and the larger of the two bounds. The native engine starts at the bound of `bound.py`, the Python engine
    without it.
"""

from __future__ import annotations

import time

from downset.memory.liveness import OrderProblem
from downset.methods import EngineName
from downset.orders.beam import WIDTHS
from downset.orders.best_first import Outcome
from downset.orders.dfs import dfs
from downset.orders.engines import Engine, Search, engine_of
from downset.orders.kahn import kahn
from downset.plans import Found

__all__ = ["optimal"]

_QUICK = 20_000
"""States after which a search counts as long: networks take hundreds or thousands."""
_SLICE, _LONGEST_SLICE = 128, 2**16
"""States of the first turn of a search; turns double."""
_LEAD = 8
"""How much longer a turn is of the search that raised the bound last."""
_STATES = 1_000_000_000
_WIDEST = 8_000_000
"""Width of a beam times operators, at most: some hundred MiB."""
_PAUSE_S = 0.02


def optimal(
    problem: OrderProblem, *, time_limit_s: float = 10.0, engine: EngineName = "native", state_limit: int = _STATES
) -> Found:
    """An order of least peak, with proof if the search ends within its limits; else the best known and a bound.

    Never above the file's order, Kahn's, depth-first, greedy and beam. `engine`: "native", or "python", its twin.
    Raises UnsupportedError where the native module is not built.
    """
    run = _Run(engine_of(problem, engine), time.perf_counter() + time_limit_s, state_limit)
    run.try_order(tuple(range(len(problem.predecessors))))
    run.try_order(kahn(problem).solution)
    run.try_order(dfs(problem).solution)
    for backward in (False, True):
        run.try_order(run.parts.greedy(backward=backward, seconds=0.1 * time_limit_s))
    run.bound = max(problem.floor_bytes, run.parts.bound(run.best, 0.2 * run.left_s()))
    run.search(_QUICK, time_limit_s)
    widest = _WIDEST // max(len(problem.predecessors), 1)
    for width in [*WIDTHS, *(WIDTHS[-1] * 4**power for power in range(1, 10) if WIDTHS[-1] * 4**power <= widest)]:
        begin = time.perf_counter()
        run.beams(width, run.bound)
        if width in WIDTHS:
            run.beams(width, 0)  # what `beam` itself does
        # Twice as long for the searches, which gain by the beam's answer: nothing above it needs to be kept.
        run.search(_STATES, 2 * (time.perf_counter() - begin) + _PAUSE_S)
    run.search(_STATES, time_limit_s)
    return Found(run.best, run.bound, run.bound == run.value, run.states)


class _Run:
    """The best order, the bound, and the two searches between them."""

    def __init__(self, parts: Engine, deadline: float, state_limit: int) -> None:
        self.parts, self.bound, self.states = parts, 0, 0
        self.best: tuple[int, ...] = ()
        self.value = -1
        self._deadline, self._state_limit = deadline, state_limit
        self._searches: list[Search] | None = None
        self._leader: Search | None = None  # the search that raised the bound last
        self._slice = _SLICE

    def left_s(self) -> float:
        return max(self._deadline - time.perf_counter(), 0.001)

    def settled(self) -> bool:
        return self.bound >= self.value or time.perf_counter() > self._deadline

    def stopped(self) -> bool:
        return self.settled() or self.states >= self._state_limit

    def try_order(self, steps: tuple[int, ...] | None) -> None:
        if steps is not None:
            value = self.parts.peak(steps)
            if self.value < 0 or value < self.value:
                self.best, self.value = steps, value

    def beams(self, width: int, bound: int) -> None:
        """Beam search costs more than most searches in whole, so it waits until one proves long."""
        for backward in (False, True):
            if not self.stopped():
                left_s = self.left_s()
                found, _ = self.parts.beam(width, bound, self.value, backward=backward, seconds=left_s)
                self.try_order(found)

    def search(self, states: int, seconds: float) -> None:
        """Up to so many states or seconds, the searches in turns."""
        until = min(time.perf_counter() + seconds, self._deadline)
        last = min(self.states + states, self._state_limit)
        if self._searches is None and not self.settled():
            self._searches = [self.parts.search(backward=backward) for backward in (False, True)]
        while self._searches and self.states < last and not self.settled() and time.perf_counter() < until:
            for search in list(self._searches):
                before = search.expanded
                turn = self._slice if self._leader in (None, search) else self._slice // _LEAD
                left_s = max(until - time.perf_counter(), 0.001)
                outcome = search.advance(self.bound, self.value, left_s, min(turn, last - self.states))
                self.states += search.expanded - before
                if outcome is Outcome.SOLVED:
                    self.try_order(tuple(search.steps))
                if min(search.bound, self.value) > self.bound:
                    self.bound, self._leader = min(search.bound, self.value), search
                if outcome is Outcome.OUT_OF_MEMORY:
                    self._searches.remove(search)
                elif outcome is not Outcome.LIMIT:
                    return
            self._slice = min(2 * self._slice, _LONGEST_SLICE)
