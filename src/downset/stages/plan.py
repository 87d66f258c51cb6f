"""Plans stages of a graph or a bare problem by prices and verifies them. Methods are names in STAGERS, or callables."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Unpack

from downset.budget import Budget
from downset.errors import UsageError
from downset.graph.core import Graph, fingerprint
from downset.lattice import bits
from downset.methods import Method, choose
from downset.results.plans import Evidence, StagePlan
from downset.rewrites.rebatch import batch_or_one
from downset.stages.check import verify_schedule, verify_stages
from downset.stages.planners import CONTRACT, STAGERS, StageOptions
from downset.stages.problem import FoundStages, Price, StageProblem
from downset.stages.unit_graph import group_units

__all__ = ["plan_stages"]

Planner = Callable[..., FoundStages]


def plan_stages(
    problem: Graph | StageProblem,
    price: Price,
    *,
    method: str | Method | Planner = "lazy",
    time_limit_s: float = 60.0,
    work_limit: int | None = None,
    **options: Unpack[StageOptions],
) -> StagePlan:
    """Stages of low total price: which units run side by side or merged, stage after stage.

    `price`: a function from a stage to seconds; for a graph the units are those of `group_units`. Methods: sequential,
    greedy, ios (prices all stages), lazy (prices few). `options`: options of the method, such as max_ops, max_groups,
    endings, strategy and budget. `work_limit`: how many states a search may visit; the same limit and prices give the
    same stages under any load. A search takes at most 64 units: split larger problems with
    `downset.stages.unit_graph.search_blocks`. `downset.tuning.tune` measures stages on a device.

    The plan's value is the sum of the prices; its bound and its proof hold if the prices do. The plan names no device
    and has `threads` 0. For a bare problem unit u of the plan is (u,), and no model is named. Raises UsageError for an
    unknown method, option or choice and for a family whose units wait for each other, and LimitReached if no plan was
    found in time.
    """
    budget = Budget(time_limit_s, work_limit)
    planner = choose(method, STAGERS, CONTRACT, options)
    graph = problem if isinstance(problem, Graph) else None
    if isinstance(problem, Graph):
        grouped = group_units(problem)
        units, problem = grouped.units, StageProblem(grouped.predecessors)
    else:
        units = tuple((unit,) for unit in range(len(problem.predecessors)))
    _check_families(problem)
    begin = time.perf_counter()
    stages: FoundStages = planner(problem, price, clock=budget.start())
    seconds = time.perf_counter() - begin
    verify_schedule(problem, stages.stages)
    proven = stages.proven or stages.bound_s >= stages.cost_s
    bound = stages.cost_s if proven else stages.bound_s
    evidence = Evidence(planner.name, stages.cost_s, bound, proven, stages.timings, seconds)
    plan = StagePlan(
        units,
        stages.stages,
        barriers=True,
        device="",
        device_name="",
        versions="",
        dtype="",
        batch=1 if graph is None else batch_or_one(graph),
        threads=0,
        model="" if graph is None else fingerprint(graph),
        evidence=evidence,
    )
    if graph is not None:
        verify_stages(graph, plan)
    return plan


def _check_families(problem: StageProblem) -> None:
    """Raise UsageError for a family of which one unit waits for another: these cannot be one operator."""
    for family in problem.families:
        for unit in bits(family):
            if unit >= len(problem.predecessors):
                raise UsageError(f"a family names unit {unit}; there are {len(problem.predecessors)} units")
            if problem.predecessors[unit] & family:
                raise UsageError(
                    f"unit {unit} waits for another unit of its family; units of a family are independent of each other"
                )
