"""Planners of stages: STAGERS maps a method's name to `planner(problem, price, …) -> FoundStages`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from downset.stages.greedy import greedy
from downset.stages.ios import ios
from downset.stages.lazy import lazy
from downset.stages.problem import FoundStages, Stage, StageProblem
from downset.stages.sequential import sequential

__all__ = ["STAGERS", "FoundStages", "Stage", "StageProblem"]

STAGERS: Mapping[str, Callable[..., FoundStages]] = {
    "sequential": sequential,
    "greedy": greedy,
    "ios": ios,
    "lazy": lazy,
}
