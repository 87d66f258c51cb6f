"""A search over orders: blocks of operators move, and the best orders get an exact residency.

Source: ours; simulated annealing.
Names: a *round* starts from the file's order, from one of least peak, and from the best known. A *try* is an order with
    its quick residency.
Complexity: each round makes four times as many tries as the one before, until a limit or the bound is reached.
Deviations: a larger limit of states never gives a plan that costs more: rounds do not depend on the limit, which
    cuts the last.
"""

from __future__ import annotations

from downset import native
from downset.budget import Budget, Clock
from downset.memories.bound import order_free_bound
from downset.memories.file_order import file_order, of_order
from downset.memories.found import MemoriesFound
from downset.memories.least_peak import peak_problem
from downset.memories.problem import MemoriesProblem
from downset.memories.residency import exact_residency
from downset.orders.optimal import optimal

__all__ = ["searched"]

_FIRST_TRIES, _GROWTH, _MOST_TRIES = 8192, 4, 1 << 22
_FEW, _WIDTH = 6, 64
"""Orders that a round passes on to the exact residency, and the states that it may keep at each access there."""
_PEAK_STATES, _BOUND_STATES = 50_000, 1_500
_FILE_SHARE = 0.25
"""The share of the limits for the first residency of the file's order."""
Order = tuple[int, ...]


def searched(
    problem: MemoriesProblem, *, clock: Clock, incumbent: Order | None = None, rounds: int | None = None
) -> MemoriesFound:
    """The best of the file's order, of an order of least peak, of the incumbent, and of what the search finds. It never
    costs more than the file's order with its exact residency. `rounds`: at most so many."""
    search = _OrderSearch(problem, clock)
    search.offer(tuple(range(len(problem.predecessors))))
    if incumbent is not None:
        search.offer(incumbent)
    bound = order_free_bound(problem, search.cost, clock=clock.part(seconds=clock.left_s() / 8, states=_BOUND_STATES))
    turn, tries = 0, _FIRST_TRIES
    starts: list[Order] = [search.order]
    if search.cost > bound and not clock.over():
        part = clock.part(seconds=clock.left_s() / 8, states=_PEAK_STATES)
        starts.append(tuple(optimal(peak_problem(problem), clock=part).solution))
        search.offer(starts[-1])
    while search.cost > bound and not clock.over() and turn != rounds:
        for start in dict.fromkeys([*starts, search.order]):
            search.anneal(start, turn, tries)
        turn, tries = turn + 1, min(tries * _GROWTH, _MOST_TRIES)
    return search.found(bound)


class _OrderSearch:
    """The best order so far with its residency, and the orders that had an exact residency."""

    def __init__(self, problem: MemoriesProblem, clock: Clock) -> None:
        self.problem, self.clock = problem, clock
        self.groups = [[operator] for operator in range(len(problem.predecessors))]
        self.file = file_order(problem, clock=clock.share(_FILE_SHARE))
        self.best = self.file
        self.tried: dict[Order, int] = {self.file.order: self.file.cost}

    @property
    def cost(self) -> int:
        return self.best.cost

    @property
    def order(self) -> Order:
        return self.best.order

    def offer(self, order: Order, width: int = _WIDTH) -> None:
        """Give this order a residency; keep the cheaper."""
        if order in self.tried:
            return
        residency = exact_residency(self.problem, order, clock=self.clock, most_width=width)
        self.tried[order] = residency.cost
        if residency.cost < self.best.cost:
            self.best = MemoriesFound(order, residency.residences, residency.cost, residency.bound)

    def anneal(self, start: Order, turn: int, tries: int) -> None:
        """One run of the search from an order on."""
        if self.clock.over():
            return
        seconds, most = self.clock.native(tries)
        seed = self.clock.budget.seed * 1000 + turn
        best, tried = native.compiled.memories_orders(
            self.problem.compiled, self.groups, list(start), seed, _FEW, seconds, tries, most
        )
        self.clock.count(tried)
        for _, order in best:
            if self.clock.over():
                return
            self.offer(tuple(order))

    def _finish_file(self, bound: int) -> None:
        """Give the file's order the residency that it has with the whole limits, if its share was too small."""
        if self.file.order_bound < self.file.cost and self.cost > bound and self.clock.left_s():
            limits = Budget(self.clock.left_s(), self.clock.budget.states, self.clock.budget.seed)
            whole = file_order(self.problem, clock=limits.start())
            self.best = min(self.best, whole, key=lambda one: one.cost)

    def found(self, bound: int) -> MemoriesFound:
        """The best order, with a residency that is exact if the limits allow."""
        self._finish_file(bound)
        best = of_order(self.problem, self.order, self.clock.timed()) if self.cost > bound else self.best
        chosen = best if best.cost <= self.cost else self.best
        ranked = sorted(self.tried, key=lambda order: (self.tried[order], order))[:_FEW]
        return MemoriesFound(
            chosen.order,
            chosen.residences,
            chosen.cost,
            max(best.order_bound, bound) if best.order == chosen.order else bound,
            min(bound, chosen.cost),
            self.clock.states,
            "" if bound >= chosen.cost else self.clock.stopped_by(),
            tuple(order for order in ranked if order != chosen.order),
        )
