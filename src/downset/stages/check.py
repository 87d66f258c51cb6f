"""Checks a plan of stages against the graph that it was made for. Imports no planner."""

from __future__ import annotations

from collections.abc import Sequence

from downset.errors import InvalidPlan
from downset.graph.core import ABSENT, Graph
from downset.lattice import bits
from downset.results.plans import Stage, StagePlan
from downset.rewrites.merge.units import why_not_merged
from downset.stages.problem import StageProblem

__all__ = ["verify_schedule", "verify_stages"]


def verify_stages(graph: Graph, plan: StagePlan) -> None:
    """Raise InvalidPlan naming the first broken law, or return None.

    Laws: the units hold every operator once, except those that compute constants; the stages hold every unit once; what
    an operator reads was made in an earlier stage, or earlier in the same group; a merged stage has one unit in each
    group and convolutions that can merge. O(operators · inputs).
    """
    unit_of: dict[int, int] = {}
    if plan.threads < (1 if plan.device else 0):
        raise InvalidPlan(f"the plan is for {plan.threads} threads")
    if plan.threads and not plan.device:
        raise InvalidPlan(f"the plan is for {plan.threads} threads, but for no device")
    for unit, ops in enumerate(plan.units):
        if not ops or list(ops) != sorted(ops):
            raise InvalidPlan(f"unit {unit} has no operators, or has them in another order than the graph's")
        for index in ops:
            if not 0 <= index < len(graph.ops):
                raise InvalidPlan(f"unit {unit} names operator {index}; the graph has {len(graph.ops)}")
            if index in unit_of:
                raise InvalidPlan(f"operator {graph.ops[index].name!r} is in two units, {unit_of[index]} and {unit}")
            unit_of[index] = unit
    for index, op in enumerate(graph.ops):
        constant = all(tensor in graph.constants for tensor in op.outputs if tensor != ABSENT)
        if index not in unit_of and not constant:
            raise InvalidPlan(f"operator {op.name!r} is in no unit")
    where = _places(plan.stages, len(plan.units))
    for place, stage in enumerate(plan.stages):
        if stage.merged:
            _check_merge(graph, plan, place)
    made_by = graph.producers()
    for index, reader in enumerate(graph.ops):
        if index not in unit_of:
            continue
        here = where[unit_of[index]]
        for earlier in [made_by[tensor] for tensor in reader.inputs if tensor != ABSENT] + list(reader.after):
            if earlier < 0 or earlier not in unit_of or unit_of[earlier] == unit_of[index]:
                continue
            there = where[unit_of[earlier]]
            if not _runs_before(there, here):
                raise InvalidPlan(
                    f"operator {reader.name!r} of stage {here[0]} reads what {graph.ops[earlier].name!r} makes in "
                    f"stage {there[0]}, in another group or later"
                )


def verify_schedule(problem: StageProblem, stages: Sequence[Stage]) -> None:
    """Raise InvalidPlan naming the first law that stages of a bare problem break. Laws: the stages hold every unit
    once; each unit runs after its predecessors; the units of a merged stage are of one family. O(units²)."""
    where = _places(stages, len(problem.predecessors))
    for index, stage in enumerate(stages):
        if stage.merged and not problem.can_merge(sum(1 << unit for unit in stage.units)):
            raise InvalidPlan(f"stage {index} is merged, but its units {list(stage.units)} are not of one family")
    for unit, before in enumerate(problem.predecessors):
        for earlier in bits(before):
            if not _runs_before(where[earlier], where[unit]):
                raise InvalidPlan(
                    f"unit {unit} of stage {where[unit][0]} waits for unit {earlier} of stage {where[earlier][0]}, "
                    "which is in another group or later"
                )


Place = tuple[int, int, int]
"""Index of a stage, of a group in it, and of a unit in the group."""


def _places(stages: Sequence[Stage], count: int) -> dict[int, Place]:
    """The place of each of `count` units. Raises InvalidPlan if a unit is missing or stands twice."""
    where: dict[int, Place] = {}
    for index, stage in enumerate(stages):
        if not stage.groups or not all(stage.groups):
            raise InvalidPlan(f"stage {index} or a group of it is empty")
        for number, group in enumerate(stage.groups):
            if stage.merged and len(group) != 1:
                raise InvalidPlan(f"stage {index} is merged and has a group of {len(group)} units")
            for position, unit in enumerate(group):
                if not 0 <= unit < count or unit in where:
                    raise InvalidPlan(f"stage {index} names unit {unit}, which does not exist or ran before")
                where[unit] = (index, number, position)
    missing = set(range(count)) - set(where)
    if missing:
        raise InvalidPlan(f"unit {min(missing)} is in no stage")
    return where


def _runs_before(there: Place, here: Place) -> bool:
    """Whether `there` is in an earlier stage than `here`, or earlier in the same group."""
    return there[0] < here[0] or (there[:2] == here[:2] and there[2] < here[2])


def _check_merge(graph: Graph, plan: StagePlan, index: int) -> None:
    stage = plan.stages[index]
    reason = why_not_merged(graph, [plan.units[unit] for unit in stage.units])
    if reason is not None:
        raise InvalidPlan(f"stage {index} is merged, but cannot be: {reason}")
