"""The cheapest chain of stages; every stage is priced.

Source: IOS §4, Algorithm 1, with the pruning of §4.3.
Names: S → downset; S' → ending, a stage; cost[S] → cost in native/stages/lattice.hpp; GenerateStage → the cheapest of
`strategies_of`; r → max_ops, operators in a group; s → max_groups, groups in a stage; P → both limits.
Complexity: O(C(n/d + 2, 2)^d) pairs of a downset and an ending for n units of width d; one price per different ending
and strategy.
Deviations: `endings="ios"` is the narrower enumeration of the published code; the default is the paper's definition.
Costs are added in whole nanoseconds. Of equal prices, groups side by side are preferred to a merged operator.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Literal, get_args

from downset.budget import Clock
from downset.methods import check_choice
from downset.stages.endings import EndingsName, stage_lattice
from downset.stages.problem import FoundStages, Price, Stage, StageProblem, stage_of

__all__ = ["STRATEGIES", "StrategyName", "ios", "nanoseconds", "strategies_of"]

StrategyName = Literal["both", "parallel", "merge"]
STRATEGIES: tuple[StrategyName, ...] = get_args(StrategyName)


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def strategies_of(problem: StageProblem, units: int, strategy: StrategyName) -> tuple[Stage, ...]:
    """The stages that these units may form: groups side by side, a merged operator, or both. `strategy="parallel"`
    allows no merged operator, `"merge"` no groups side by side."""
    strategies = []
    concurrent = stage_of(problem, units)
    if strategy != "merge" or len(concurrent.groups) == 1:
        strategies.append(concurrent)
    if strategy != "parallel" and units & (units - 1) and problem.can_merge(units):
        strategies.append(stage_of(problem, units, merged=True))
    return tuple(strategies)


def ios(  # noqa: PLR0913 - its keywords are options of plan_stages
    problem: StageProblem,
    price: Price,
    *,
    clock: Clock,
    max_ops: int = 3,
    max_groups: int = 8,
    endings: EndingsName = "all",
    strategy: StrategyName = "both",
) -> FoundStages:
    """The cheapest stages by the given prices, with at most `max_ops` units in a group and `max_groups` groups in a
    stage. Raises LimitReached if the endings cannot be enumerated in time; then split the units into blocks."""
    check_choice("strategy", strategy, STRATEGIES)
    lattice = stage_lattice(problem.predecessors, clock=clock, max_ops=max_ops, max_groups=max_groups, endings=endings)
    ways = [strategies_of(problem, units, strategy) for units in lattice.stages()]
    priced = [[(nanoseconds(price(stage)), stage) for stage in stages] for stages in ways]
    cheapest = [min(options, key=itemgetter(0), default=None) for options in priced]
    chain, cost = lattice.solve([-1 if option is None else option[0] for option in cheapest])
    stages = tuple(option[1] for index in chain if (option := cheapest[index]) is not None)
    return FoundStages(stages, cost / 1e9, cost / 1e9, proven=True, timings=sum(map(len, ways)))
