"""Stages of all units that are ready: each stage runs every unit whose predecessors have been executed.

Source: IOS §1 and §6.1, "greedy": Graphi's rule (Tang et al., 2018) as IOS compares against it.
Names: ready = operators whose predecessors have all been executed.
Complexity: O(V²) mask steps, one price per stage.
Deviations: `max_groups` limits the units of a stage, lowest index first; IOS has no limit here.
"""

from __future__ import annotations

from downset.lattice import ready
from downset.stages.problem import FoundStages, Price, Stage, StageProblem

__all__ = ["greedy"]


def greedy(problem: StageProblem, price: Price, *, max_groups: int | None = None) -> FoundStages:
    stages = []
    done, everything = 0, (1 << len(problem.predecessors)) - 1
    while done != everything:
        chosen = tuple(ready(problem.predecessors, done))[:max_groups]
        stages.append(Stage(tuple((unit,) for unit in chosen)))
        done |= sum(1 << unit for unit in chosen)
    cost = sum(price(stage) for stage in stages)
    return FoundStages(tuple(stages), cost, 0.0, proven=False, timings=len(stages))
