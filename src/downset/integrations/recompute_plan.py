"""Chooses the operators of a training step that run again, within a peak."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from downset.integrations.training_graph import Priced, TrainingGraph, priced
from downset.rewrites.recompute_search import Choice, front, search

__all__ = ["FEWEST_CHOICES", "affordable_choices", "plan_again"]

_MOST_CHOICES, FEWEST_CHOICES = 100, 8
_PRICED = 60_000
"""The most operators of all choices together: one to two seconds of a processor."""


@dataclass(frozen=True, slots=True)
class PlannedRecomputation:
    chosen: Choice[Priced]
    front: tuple[Choice[Priced], ...]
    """The choices that no other beats, the cheapest first."""
    none: Priced
    """The choice in which nothing runs again."""
    within: bool
    """Whether the choice keeps to the peak that was asked for."""
    least_bytes: int
    """A proven lower bound: no set gives a lower peak."""
    tried: int


def affordable_choices(graph: TrainingGraph) -> int:
    """How many sets to try by default. The number depends on the graph and not on the clock, so every process tries the
    same sets.

    Pricing a set takes time at least in proportion to the graph. So fewer sets are tried on larger graphs: planning
    takes about the same time for every large graph, and a falling share of its compile."""
    return max(FEWEST_CHOICES, min(_MOST_CHOICES, _PRICED // max(len(graph.reads), 1)))


def plan_again(
    graph: TrainingGraph,
    peak_bytes: int,
    *,
    choices: int | None = None,
    seeds: Sequence[Collection[int]] = (),
    most_s: float = math.inf,
) -> PlannedRecomputation:
    """The cheapest set that keeps the step within `peak_bytes`, or the set of least peak if none of those tried does.

    The sets tried do not depend on `peak_bytes`, so a larger value never costs more seconds. `seeds`: sets that are
    tried first. `choices`: how many sets to try; by default `affordable_choices`. `most_s`: the seconds that a set may
    add; with it the sets tried depend on that.
    """
    most = affordable_choices(graph) if choices is None else choices

    def judge(again: tuple[int, ...], late: frozenset[int]) -> Priced:
        del late
        return priced(graph, again, most_s=most_s)

    tried, every = search(graph.step(), [graph.late], judge, most=most, seeds=seeds)
    best = front(tried)
    within = [choice for choice in best if choice.judged.peak_bytes <= peak_bytes]
    least = _least_needed(graph)
    if every and all(choice.judged.proven for choice in tried):
        least = best[-1].judged.peak_bytes
    return PlannedRecomputation(
        within[0] if within else best[-1], tuple(best), tried[0].judged, bool(within), least, len(tried)
    )


def _least_needed(graph: TrainingGraph) -> int:
    """A lower bound on the peak of every set: the bytes that one operator outside of kernels reads and makes, or the
    bytes that are returned."""
    least = 0
    for v, reads in enumerate(graph.reads):
        if not graph.loops[v]:
            own = graph.nbytes[v] + (graph.workspaces[v] if graph.workspaces else 0)
            least = max(least, own + sum(graph.nbytes[source] for source in reads))
    for side in (graph.kept & graph.late, graph.kept - graph.late) if graph.apart else (graph.kept,):
        least = max(least, sum(graph.nbytes[v] for v in side))
    return least
