"""From a graph or a bare problem, and prices, to stages."""

from __future__ import annotations

from typing import Any

from downset.errors import UsageError
from downset.graph.core import Graph
from downset.orders.check import verify_steps
from downset.stages.planners import STAGERS
from downset.stages.problem import FoundStages, Price, StageProblem
from downset.stages.unit_graph import group_units

__all__ = ["plan_stages"]


def plan_stages(problem: Graph | StageProblem, price: Price, *, method: str = "lazy", **limits: Any) -> FoundStages:
    """Stages of low total price: which units run side by side or merged, stage after stage.

    `price`: seconds of any stage (of units, for a graph those of `group_units`). Methods: sequential, greedy, ios (all
    stages priced), lazy (few). `limits` are the method's own: max_ops, max_groups, endings, strategy, budget,
    time_limit_s. At most 64 units: split larger problems with `downset.stages.unit_graph.blocks`. To measure on a
    device, choose and run, see `downset.tuning.tune`. Raises UsageError for an unknown method.
    """
    if isinstance(problem, Graph):
        problem = StageProblem(group_units(problem).predecessors)
    if method not in STAGERS:
        raise UsageError(f"unknown stage method {method!r}; choose one of {', '.join(STAGERS)}")
    found = STAGERS[method](problem, price, **limits)
    verify_steps(problem.predecessors, [unit for stage in found.stages for unit in stage.units])
    return found
