"""Chooses what a whole step runs again without a limit: operators that lower its peak and take next to no time.

Where forward and backward are two graphs, PyTorch's partitioner runs cheap operators again in place of keeping their
results. One graph has no partitioner, and would hold more than two do.
"""

from __future__ import annotations

import math

from downset.integrations.recompute_plan import FEWEST_CHOICES, affordable_choices, plan_again
from downset.integrations.training_graph import TrainingGraph

__all__ = ["nearly_free"]

_SHARE = 0.03
"""The most seconds that it may add, as a share of those of the step without its update."""
_GAIN = 0.99
"""The share of the peak that is worth running anything again."""
_PART = 2
"""The sets that a limit tries, by those that are priced here: few add so little."""
_NO_LIMIT = 2**62


def nearly_free(graph: TrainingGraph, choices: int | None = None) -> tuple[int, ...]:
    """The set of least peak among those that add at most a small share of the step's seconds; the cheapest of those
    whose peaks are about equal. Empty where nothing is gained."""
    most = max(FEWEST_CHOICES, affordable_choices(graph) // _PART) if choices is None else choices
    plan = plan_again(graph, _NO_LIMIT, choices=most, most_s=_SHARE * math.fsum(graph.costs))
    least = plan.front[-1].judged.peak_bytes
    if least > _GAIN * plan.none.peak_bytes:
        return ()
    return next(choice.again for choice in plan.front if choice.judged.peak_bytes <= least / _GAIN)
