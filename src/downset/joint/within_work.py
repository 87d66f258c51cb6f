"""Plans order and placement under a limit of work in place of time: the same limit gives the same plan.

Source: ours.
Names: a *round* searches orders, then alternatives of the best, then placements of the best few. Each of these searches
    visits at most a given number of states; the next round allows four times as many. *Work*: the sum of all states.
Complexity: every round begins its searches again, so all rounds take a third more work than the last.
Deviations: a run under a limit is the beginning of every run under a larger limit, and the least arena of all orders is
    kept. So a larger limit never gives a worse plan. Giving each search a share of the limit would not guarantee that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from downset.arenas.plan import plan_arena
from downset.graph.core import Graph
from downset.memory.liveness import OrderProblem, order_problem
from downset.memory.models import MemoryModel
from downset.orders.alternatives import TRIES, alternatives
from downset.orders.optimal import improving
from downset.results.plans import Arena, Found, StoppedBy

__all__ = ["WithinWork"]

_FIRST_STATES, _GROWTH, _FEW = 4096, 4, 4
Steps = tuple[int, ...]


class WithinWork:
    """The rounds for one graph. `tried`: the best placement known of each order that was placed, the file's first."""

    def __init__(
        self, graph: Graph, model: MemoryModel, *, work_limit: int, left_s: Callable[[], float], count: int, seed: int
    ) -> None:
        self.tried: dict[Steps, Arena] = {}
        self.found = Found((), 0)
        self.stopped_by: StoppedBy = ""
        self._graph, self._model, self._left_s = graph, model, left_s
        self._problem: OrderProblem = order_problem(graph, model)
        self._work, self._limit = 0, work_limit
        self._count, self._seed = count, seed
        self._settled: set[Steps] = set()

    def run(self) -> None:
        """Run rounds until the limit, or until an arena meets the bound or nothing is left to search."""
        self._place((tuple(range(len(self._graph.ops))),))
        states = _FIRST_STATES
        while not (self._round(states) or self._is_done(states)):
            if self._over():
                return
            states *= _GROWTH

    def ranked(self) -> list[Steps]:
        """The orders by ascending arena; equal ones in the order in which they were tried."""
        return sorted(self.tried, key=lambda steps: self.tried[steps].arena_bytes)

    def _round(self, states: int) -> bool:
        """Run one round; whether an arena meets the bound of every order."""
        if not self.found.proven:
            allowed = self._allowed(states)
            self.found, orders = improving(self._problem, time_limit_s=self._left_s(), work_limit=allowed)
            self._work += self.found.states
            if self._place(orders):
                return True
        if self._over():
            return False
        best = self.tried[self.ranked()[0]].arena_bytes
        tries = min(self._allowed(states), TRIES * self._count)
        others = alternatives(
            self._problem,
            self.found.solution,
            best - 1,
            count=self._count,
            seed=self._seed,
            time_limit_s=self._left_s(),
            tries=tries,
        )
        self._work += tries
        return self._place(others) or self._search_placements(states)

    def _place(self, orders: Iterable[Steps]) -> bool:
        for steps in orders:
            if steps not in self.tried:
                self.tried[steps] = plan_arena(self._graph, steps, method="best", memory=self._model)
            if self.tried[steps].arena_bytes <= self.found.bound:
                return True
        return False

    def _search_placements(self, states: int) -> bool:
        for steps in self.ranked()[:_FEW]:
            if self._over():
                return False
            if steps in self._settled:
                continue
            allowed = self._allowed(states)
            arena = plan_arena(
                self._graph, steps, method="exact", memory=self._model, time_limit_s=self._left_s(), work_limit=allowed
            )
            self._work += arena.evidence.states
            if arena.evidence.stopped_by != "work":
                self._settled.add(steps)
            if arena.arena_bytes < self.tried[steps].arena_bytes:
                self.tried[steps] = arena
            if arena.arena_bytes <= self.found.bound:
                return True
        return False

    def _allowed(self, states: int) -> int:
        return max(min(states, self._limit - self._work), 0)

    def _over(self) -> bool:
        if self._left_s() <= 0:
            self.stopped_by = "time"
        elif self._work >= self._limit:
            self.stopped_by = "work"
        return bool(self.stopped_by)

    def _is_done(self, states: int) -> bool:
        """Whether a longer round would only repeat this one."""
        ordered = self.found.stopped_by != "work" and states >= TRIES * self._count
        return ordered and all(steps in self._settled for steps in self.ranked()[:_FEW])
