"""Plans order and placement together: the arenas of orders of equal peak differ by up to a quarter.

Source: ours.
Names: a *round* searches orders, then alternatives of the best, then placements of the best few. *Equals* are orders
    whose arenas are equally large.
Complexity: under a limit of states every round begins its searches again with four times as many, so all rounds take a
    third more than the last.
Deviations: without a limit of states there is one round, whose searches get shares of the time. Under one, each search
    of a round visits at most a given number of states, so that a run is the beginning of every run under a larger
    limit; the least arena of all orders is kept. So a larger limit never gives a worse plan. Shares of the limit would
    not guarantee that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from downset.arenas.plan import plan_arena
from downset.arenas.scratch import lower, scratch_in_gaps
from downset.budget import Budget, Clock
from downset.graph.core import Graph
from downset.joint.best_fit import smallest_region
from downset.memory.liveness import check_graph, lifetimes, order_problem
from downset.memory.models import MemoryModel, MemoryName, memory_model, without_scratch
from downset.methods import check_whole
from downset.orders.alternatives import TRIES, alternatives
from downset.orders.optimal import improving
from downset.orders.plan import judge_order
from downset.results.plans import Arena, Evidence, Found, Together

__all__ = ["plan_together"]

_FIRST_STATES, _GROWTH, _FEW = 4096, 4, 4
_ORDERS_SHARE, _SHARE = 0.7, 0.25
"""The shares of the time left that one search for orders gets, and each search for alternatives and placements."""
_EQUALS_TRIES, _EQUALS_SHARE = 4000, 0.1
"""The moves that make equals, and the share of the time left that they get."""
_WITH_SCRATCH = 0.6
"""The share of the time for plans that hold scratch; the rest is for those of the tensors alone."""
Steps = tuple[int, ...]


def plan_together(
    graph: Graph,
    *,
    memory: MemoryName | MemoryModel,
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
    count: int = 64,
    seed: int = 0,
) -> Together:
    """The order and placement with the least arena, among the file's order, the optimal order and at most `count`
    orders whose peak is below the best arena so far. Orders that the search for the optimal one met count too. The
    arena is never larger than that of the file's order with method `best`.

    Stops as soon as the arena equals the bound on the peak of every order: then order and arena are proven optimal.
    Otherwise the exact placement search takes the remaining time for the few best orders. For a runtime that follows no
    offsets (`MemoryModel.best_fit`) the result is, of the orders of least arena, the one that fits into the smallest
    region, and of these the one with the fewest bytes live over all steps; orders near it are tried too.

    Where scratch of kernels counts, the plan is never larger than that of the tensors alone with the scratch in its
    gaps, which is made, too, unless the first is proven.

    `work_limit`: the sum of the states that the searches for orders, alternatives and placements visit. If the time is
    unlimited (`time_limit_s=math.inf`), the same limit gives the same plan under any load, and a larger limit never
    gives a larger arena.
    """
    budget = Budget(time_limit_s, work_limit, seed)
    check_whole("count", count)
    check_graph(graph)
    model, clock = memory_model(memory), budget.start()
    first = clock.part(seconds=_WITH_SCRATCH * time_limit_s) if model.scratch else clock
    search = _JointSearch(graph, model, first, count)
    search.run()
    together = search.best()
    if not model.scratch or together.arena.evidence.proven:
        return together
    alone = plan_together(
        graph, memory=without_scratch(model), time_limit_s=clock.left_s(), work_limit=work_limit, count=count, seed=seed
    )
    search.offer(alone.order.steps, scratch_in_gaps(graph, alone.order.steps, alone.arena, model))
    return search.best()


class _JointSearch:
    """The rounds for one graph. `tried`: the best placement known of each order that was placed, the file's first."""

    def __init__(self, graph: Graph, model: MemoryModel, clock: Clock, count: int) -> None:
        self._graph, self._model, self._clock, self._count = graph, model, clock, count
        self._problem = order_problem(graph, model)
        self._by_states = clock.budget.states is not None
        self._tried: dict[Steps, Arena] = {}
        self._orders = Found((), 0)
        self._order_s = 0.0
        self._settled: set[Steps] = set()
        self._regions: dict[Steps, tuple[int, int]] = {}

    def run(self) -> None:
        """Run rounds until a limit, or until an arena meets the bound or nothing is left to search."""
        states = _FIRST_STATES
        while not (self._round(states) or self._is_done(states) or self._clock.over()):
            states *= _GROWTH
        if self._model.best_fit:
            self._try_equals()

    def offer(self, steps: Steps, arena: Arena) -> None:
        """Take part with a placement that was found elsewhere."""
        self._tried[steps] = lower(self._tried.get(steps, arena), arena)

    def best(self) -> Together:
        """The order and placement of the least arena, with a bound that holds for every order."""
        steps, orders = self._best_equal(), self._orders
        stopped_by = orders.stopped_by
        evidence = Evidence("optimal", 0, orders.bound, orders.proven, orders.states, self._order_s, stopped_by)
        order = judge_order(self._graph, steps, memory=self._model, like=evidence)
        arena = self._tried[steps]
        value, own = arena.arena_bytes, arena.evidence
        proven = orders.bound >= value
        ended_by = self._clock.stopped_by() or ("" if self._by_states else own.stopped_by)
        evidence = replace(own, bound=min(orders.bound, value), proven=proven, stopped_by="" if proven else ended_by)
        return Together(order, replace(arena, evidence=evidence))

    def _ranked(self) -> list[Steps]:
        """The orders by ascending arena; equal ones in the order in which they were tried."""
        return sorted(self._tried, key=lambda steps: self._tried[steps].arena_bytes)

    def _best_equal(self) -> Steps:
        first = self._ranked()[0]
        if not self._model.best_fit:
            return first
        least = self._tried[first].arena_bytes
        return min((steps for steps, arena in self._tried.items() if arena.arena_bytes == least), key=self._region)

    def _region(self, steps: Steps) -> tuple[int, int]:
        """By which equals are ranked: (position of the region's size, bytes live over all steps)."""
        if steps not in self._regions:
            records = lifetimes(self._graph, steps, self._model).records
            least = min(arena.arena_bytes for arena in self._tried.values())
            over_time = sum(record.nbytes * (record.stop - record.start) for record in records)
            self._regions[steps] = (smallest_region(records, least), over_time)
        return self._regions[steps]

    def _try_equals(self) -> None:
        """Try orders near the best one, until one of equal arena fits into a smaller region."""
        best = self._best_equal()
        if self._region(best)[0] == 0:
            return
        part = self._clock.part(seconds=_EQUALS_SHARE * self._clock.left_s(), states=_EQUALS_TRIES)
        least = self._tried[best].arena_bytes
        others = alternatives(self._problem, best, least, clock=part, count=self._count)
        ranked = [steps for steps in others if part.left_s() and self._region(steps) < self._region(best)]
        for steps in sorted(ranked, key=self._region):
            if part.left_s() == 0:
                return
            if steps not in self._tried:
                self._tried[steps] = self._best_arena(steps)
            if self._tried[steps].arena_bytes <= least:
                return

    def _round(self, states: int) -> bool:
        """Run one round; whether an arena meets the bound of every order."""
        if not self._orders.proven:
            begin = time.perf_counter()
            orders, improved = improving(self._problem, self._part(_ORDERS_SHARE, states))
            self._order_s += time.perf_counter() - begin
            # Under a limit of states the last round may search less than the one before.
            if orders.bound >= self._orders.bound:
                self._orders = orders
            if self._place(improved):
                return True
        if self._clock.over():
            return False
        best = self._tried[self._ranked()[0]].arena_bytes
        # Only an order whose peak is below the best arena so far can have a smaller arena.
        part = self._part(_SHARE, min(states, TRIES * self._count))
        others = alternatives(self._problem, self._orders.solution, best - 1, clock=part, count=self._count)
        return self._place(others) or self._search_placements(states)

    def _place(self, orders: Iterable[Steps]) -> bool:
        """Place each order by method `best`, until an arena meets the bound; whether one does."""
        for steps in orders:
            if steps not in self._tried:
                self._tried[steps] = self._best_arena(steps)
            if self._tried[steps].arena_bytes <= self._orders.bound:
                return True
            if self._clock.left_s() == 0:
                return False
        return False

    def _best_arena(self, steps: Steps) -> Arena:
        limit_s = self._clock.left_s()
        return plan_arena(self._graph, steps, method="best", memory=self._model, time_limit_s=limit_s)

    def _search_placements(self, states: int) -> bool:
        for steps in self._ranked()[:_FEW]:
            if self._clock.over():
                return False
            if steps in self._settled:
                continue
            limits = self._part(_SHARE, states).budget.limits()
            arena = plan_arena(self._graph, steps, method="exact", memory=self._model, **limits)
            self._clock.count(arena.evidence.states)
            if arena.evidence.stopped_by != "work":
                self._settled.add(steps)
            if arena.arena_bytes < self._tried[steps].arena_bytes:
                self._tried[steps] = arena
            if arena.arena_bytes <= self._orders.bound:
                return True
        return False

    def _part(self, share: float, states: int) -> Clock:
        """A part of what is left: so many states where they are limited, else a share of the time."""
        if self._by_states:
            return self._clock.part(states=states)
        return self._clock.part(seconds=share * self._clock.left_s())

    def _is_done(self, states: int) -> bool:
        """Whether a longer round would only repeat this one. By time there is no longer one."""
        if not self._by_states:
            return True
        ordered = self._orders.stopped_by != "work" and states >= TRIES * self._count
        return ordered and all(steps in self._settled for steps in self._ranked()[:_FEW])
