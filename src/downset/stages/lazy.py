"""The cheapest chain of stages, found by an optimistic search that prices few of them.

Source: ours; lazy search on the lattice of downsets (the idea of LazySP, Dellin & Srinivasa, 2016, with IOS's prices).
Names: as in ios.py. *Optimistic price*: a lower bound on the price of a stage that is not priced yet.
Complexity: one pass over all (downset, ending) pairs in each round; at most `budget` prices, and one for each unit.
Deviations: the method follows no paper step by step. First each unit is priced alone. A stage that is not priced yet
costs at least `bound_share` of its longest group, where a group costs the sum of its units priced alone. A round
computes the best chain by known prices and bounds, then prices the unknown stages of that chain. When all stages of the
best chain are priced, it is optimal if the bounds hold. With bounds alone the search would spend the budget on stages
that turn out expensive. So the first rounds use an estimate in place of the bound: the larger of the bound and the sum
of the stage's groups times the median share of that sum which the stages priced so far took.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from downset.budget import Clock
from downset.methods import check_choice
from downset.stages.endings import EndingsName, stage_lattice
from downset.stages.ios import STRATEGIES, StrategyName, nanoseconds
from downset.stages.problem import FoundStages, Price, Stage, StageProblem, stage_of

if TYPE_CHECKING:
    from downset import _native

__all__ = ["lazy"]

Costs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_NEVER = np.int64(1 << 60)


class _StagePrices:
    """Known and assumed prices of all ways to run a stage: way 2i runs stage i side by side, way 2i + 1 merged."""

    def __init__(
        self, problem: StageProblem, lattice: _native.StageLattice, price: Price, strategy: StrategyName, share: float
    ) -> None:
        self._problem, self._price = problem, price
        self._masks: list[int] = lattice.stages()
        count = len(problem.predecessors)
        self.stages: dict[int, Stage] = {}
        self._ways = {stage: index for index, stage in enumerate(self._masks)}
        self.alone = [nanoseconds(price(Stage(((unit,),)))) for unit in range(count)]
        weighed = lattice.weigh(self.alone)
        longest, total, groups = (np.array(values, dtype=np.int64) for values in weighed)
        masks = np.asarray(self._masks, np.uint64)
        within = np.zeros(len(masks), bool)
        for family in problem.families:
            within |= (masks & ~np.uint64(family)) == 0
        mergeable = within & (masks & (masks - np.uint64(1)) != 0)
        self._allowed = np.empty(2 * len(masks), bool)
        self._allowed[0::2] = (groups == 1) if strategy == "merge" else True
        self._allowed[1::2] = mergeable if strategy != "parallel" else False
        self._total: Costs = np.repeat(total, 2)
        self._several: Flags = np.repeat(groups > 1, 2)
        self._single: Flags = np.repeat(masks & (masks - np.uint64(1)) == 0, 2)
        self._bounds: Costs = (share * np.repeat(longest, 2)).astype(np.int64)
        self.nanoseconds_of: dict[int, int] = {}
        for unit in range(count):
            if 1 << unit in self._ways:
                self.nanoseconds_of[2 * self._ways[1 << unit]] = self.alone[unit]

    def stage(self, way: int) -> Stage:
        if way not in self.stages:
            self.stages[way] = stage_of(self._problem, self._masks[way // 2], merged=bool(way % 2))
        return self.stages[way]

    def ask(self, way: int) -> None:
        self.nanoseconds_of[way] = nanoseconds(self._price(self.stage(way)))

    def _with_measured(self, assumed: Costs) -> Costs:
        costs = np.where(self._allowed, assumed, _NEVER)
        costs[list(self.nanoseconds_of)] = list(self.nanoseconds_of.values())
        return costs

    def only_measured(self) -> Costs:
        return self._with_measured(np.full(len(self._allowed), _NEVER))

    def bounds(self) -> Costs:
        return self._with_measured(self._bounds)

    def estimates(self) -> Costs:
        """Known prices, and estimates of the others: one median share each for chains, side by side and merged."""
        assumed: Costs = self._total.copy()
        merged = np.arange(len(assumed)) % 2 == 1
        for kind in (~self._several & ~merged & ~self._single, self._several & ~merged, merged):
            seen = [
                self.nanoseconds_of[way] / max(int(self._total[way]), 1) for way in self.nanoseconds_of if kind[way]
            ]
            # Until one of a kind is priced, its estimate is the bound, so that each kind is tried.
            share = median(seen) if seen else 0.0
            assumed[kind] = np.maximum(self._bounds[kind], (share * self._total[kind]).astype(np.int64))
        return self._with_measured(assumed)

    def solve(self, lattice: _native.StageLattice, costs: Costs) -> tuple[list[int], int]:
        """The ways of the cheapest chain, and its cost."""
        beside, merged = costs[0::2], costs[1::2]
        best = np.minimum(beside, merged)
        chain, cost = lattice.solve(np.where(best >= _NEVER, -1, best).tolist())
        return [2 * index + int(merged[index] < beside[index]) for index in chain], cost


def _nothing_free(stage: Stage) -> bool:  # noqa: ARG001
    return False


def lazy(  # noqa: PLR0913 - its keywords are options of plan_stages
    problem: StageProblem,
    price: Price,
    *,
    clock: Clock,
    max_ops: int = 3,
    max_groups: int = 8,
    endings: EndingsName = "all",
    strategy: StrategyName = "both",
    budget: int = 200,
    bound_share: float = 0.9,
    free: Callable[[Stage], bool] = _nothing_free,
) -> FoundStages:
    """The cheapest chain of priced stages, with the optimistic bound. If `proven`, no chain within the limits costs
    less, provided that every stage costs at least `bound_share` of its longest group.

    `budget`: how many stages may be priced in addition to the single units and those for which `free` is true (their
    prices are known already). The search ends when the best chain is priced, or when the budget or the time is spent.
    Raises LimitReached if the endings cannot be enumerated in time.
    """
    check_choice("strategy", strategy, STRATEGIES)
    lattice = stage_lattice(problem.predecessors, clock=clock, max_ops=max_ops, max_groups=max_groups, endings=endings)
    prices = _StagePrices(problem, lattice, price, strategy, bound_share)
    left, late = budget, False
    for assumed in (prices.estimates, prices.bounds):
        while not clock.late():
            chain, _ = prices.solve(lattice, assumed())
            unknown = [way for way in chain if way not in prices.nanoseconds_of]
            priced = False
            for way in unknown:
                costs_nothing = free(prices.stage(way))
                if costs_nothing or left > 0:
                    left -= not costs_nothing
                    prices.ask(way)
                    priced = True
            if not priced:
                break
        else:
            late = True
    chain, cost = prices.solve(lattice, prices.only_measured())
    _, least = prices.solve(lattice, prices.bounds())
    stages = tuple(prices.stage(way) for way in chain)
    proven = least >= cost
    return FoundStages(
        stages,
        cost / 1e9,
        min(least, cost) / 1e9,
        proven=proven,
        timings=len(prices.nanoseconds_of),
        ended_by="" if proven else clock.stopped_by() if late else "timings",
    )
