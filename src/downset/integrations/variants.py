"""Plans a training step of which there are several forms: whole, and with its widest layer in chunks of rows.

Every form has its own search for what runs again; all together have one front of seconds and peak.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from downset.integrations.recompute_plan import affordable_choices, plan_again
from downset.integrations.training_graph import Priced, TrainingGraph

__all__ = ["PlannedStep", "StepVariant", "plan_variants"]


_FEWEST_CHOICES = 24
"""The fewest sets of each form, where there are several."""


@dataclass(frozen=True, slots=True)
class StepVariant:
    """A form of the step: in so many `chunks`, with the operators `again` (of that form's graph) run twice. `cost`: the
    seconds that it takes more than the plain step."""

    cost: float
    peak_bytes: int
    chunks: int
    again: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    chosen: StepVariant
    front: tuple[StepVariant, ...]
    """The variants that no other beats in both seconds and peak, the cheapest first."""
    none: Priced
    """The plain step."""
    within: bool
    """Whether the chosen one keeps to the peak that was asked for."""
    least_bytes: int
    """A proven lower bound: no variant has a lower peak."""
    tried: int


def plan_variants(
    graphs: Mapping[int, TrainingGraph],
    peak_bytes: int,
    choices: int | None = None,
    seeds: Sequence[Collection[int]] = (),
) -> PlannedStep:
    """The cheapest variant within `peak_bytes`, or that of the least peak. `graphs`: by number of chunks, with 1 for
    the plain step; further arguments as of `plan_again`. What is tried does not depend on `peak_bytes`, so that a
    larger value never costs more seconds and a smaller one never gives a higher peak."""
    plain = math.fsum(graphs[1].costs)
    plans, variants = [], []
    for chunks, graph in sorted(graphs.items()):
        most = affordable_choices(graph) if choices is None else choices
        if choices is None and len(graphs) > 1:
            most = max(_FEWEST_CHOICES, most // len(graphs))
        plan = plan_again(graph, peak_bytes, choices=most, seeds=seeds if chunks == 1 else ())
        plans.append(plan)
        more = max(0.0, math.fsum(graph.costs) - plain)
        variants += [
            StepVariant(more + choice.judged.cost, choice.judged.peak_bytes, chunks, choice.again)
            for choice in plan.front
        ]
    front: list[StepVariant] = []
    for variant in sorted(variants, key=lambda of: (of.cost, of.peak_bytes, of.chunks)):
        if not front or variant.peak_bytes < front[-1].peak_bytes:
            front.append(variant)
    within = [variant for variant in front if variant.peak_bytes <= peak_bytes]
    return PlannedStep(
        within[0] if within else front[-1],
        tuple(front),
        plans[0].none,
        bool(within),
        min(plan.least_bytes for plan in plans),
        sum(plan.tried for plan in plans),
    )
