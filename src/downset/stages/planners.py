"""Planners of stages: functions of a `StageProblem` and a price. A new one takes a file, a line here and one in
docs_site/tables/stages.py. Its `Method` on the line here says what it can do; its signature gives its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypedDict

from downset.methods import Contract, Method
from downset.stages.endings import EndingsName
from downset.stages.greedy import greedy
from downset.stages.ios import StrategyName, ios
from downset.stages.lazy import lazy
from downset.stages.problem import FoundStages, Price, Stage, StageProblem
from downset.stages.sequential import sequential

__all__ = ["CONTRACT", "STAGERS", "StageOptions"]


def _cost_and_bound(problem: StageProblem, price: Price, result: FoundStages) -> tuple[float, float]:
    del problem, price
    return result.cost_s, 0.0  # no stage takes less than no time


CONTRACT = Contract(
    "stages",
    problem=("problem", "price"),
    settings=("clock", "time_limit_s", "work_limit"),
    returns=FoundStages,
    value_and_bound=_cost_and_bound,
    bound="bound_s",
)


class StageOptions(TypedDict, total=False):
    """Options that only some methods take."""

    max_ops: int
    max_groups: int | None
    endings: EndingsName
    strategy: StrategyName
    budget: int
    bound_share: float
    free: Callable[[Stage], bool]


STAGERS: Mapping[str, Method] = {
    "sequential": Method(sequential),
    "greedy": Method(greedy),
    "ios": Method(ios, proves=True),
    "lazy": Method(lazy, proves=True),
}
