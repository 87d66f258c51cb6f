"""Stages of one unit each, in the given order.

Source: IOS §1 and §6.1, "sequential".
Names: unit = operator of the computation graph.
Complexity: one price per unit.
Deviations: none.
"""

from __future__ import annotations

from downset.stages.problem import FoundStages, Price, Stage, StageProblem

__all__ = ["sequential"]


def sequential(problem: StageProblem, price: Price) -> FoundStages:
    stages = tuple(Stage(((unit,),)) for unit in range(len(problem.predecessors)))
    cost = sum(price(stage) for stage in stages)
    return FoundStages(stages, cost, 0.0, proven=False, timings=len(stages))
