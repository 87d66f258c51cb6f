"""Checks a plan of stages against the graph it was made for. Imports no planner; what can merge, the executor says."""

from __future__ import annotations

from downset.errors import InvalidPlan
from downset.graph.core import ABSENT, Graph
from downset.plans import StagePlan
from downset.rewrites.merge.units import why_not_merged

__all__ = ["verify_stages"]


def verify_stages(graph: Graph, plan: StagePlan) -> None:
    """Raise InvalidPlan naming the first broken law, or return None.

    Laws: the units hold every operator once, except those that compute constants; the stages hold every unit once; what
    an operator reads was made in an earlier stage, or earlier in its own group; a merged stage has one unit a group and
    convolutions that can merge. O(operators · inputs).
    """
    unit_of: dict[int, int] = {}
    if plan.threads < 1:
        raise InvalidPlan(f"the plan is for {plan.threads} threads")
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
    where: dict[int, tuple[int, int, int]] = {}
    for at, stage in enumerate(plan.stages):
        if not stage.groups or not all(stage.groups):
            raise InvalidPlan(f"stage {at} or a group of it is empty")
        if stage.merged:
            _check_merge(graph, plan, at)
        for number, group in enumerate(stage.groups):
            if stage.merged and len(group) != 1:
                raise InvalidPlan(f"stage {at} is merged and has a group of {len(group)} units")
            for position, unit in enumerate(group):
                if not 0 <= unit < len(plan.units) or unit in where:
                    raise InvalidPlan(f"stage {at} names unit {unit}, which does not exist or ran before")
                where[unit] = (at, number, position)
    missing = set(range(len(plan.units))) - set(where)
    if missing:
        raise InvalidPlan(f"unit {min(missing)} is in no stage")
    made_by = graph.producers()
    for index, reader in enumerate(graph.ops):
        if index not in unit_of:
            continue
        here = where[unit_of[index]]
        for earlier in [made_by[tensor] for tensor in reader.inputs if tensor != ABSENT] + list(reader.after):
            if earlier < 0 or earlier not in unit_of or unit_of[earlier] == unit_of[index]:
                continue
            there = where[unit_of[earlier]]
            if not (there[0] < here[0] or (there[:2] == here[:2] and there[2] < here[2])):
                raise InvalidPlan(
                    f"operator {reader.name!r} of stage {here[0]} reads what {graph.ops[earlier].name!r} makes in "
                    f"stage {there[0]}, in another group or later"
                )


def _check_merge(graph: Graph, plan: StagePlan, at: int) -> None:
    stage = plan.stages[at]
    units = [plan.units[unit] for unit in stage.units if 0 <= unit < len(plan.units)]
    reason = why_not_merged(graph, units) if len(units) == len(stage.units) else "it names units that do not exist"
    if reason is not None:
        raise InvalidPlan(f"stage {at} is merged, but cannot be: {reason}")
