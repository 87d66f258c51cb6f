"""The planners whose plans `exact` compares with its own, what they make of a problem, and on which sets of devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

from downset.clusters.model import Cluster
from downset.methods import Method
from downset.pipelines.blocks import blocks
from downset.pipelines.coedge import coedge
from downset.pipelines.coedge import least_compute_s as coedge_bound_s
from downset.pipelines.device_order import canonical
from downset.pipelines.drafts import Drafted, on_cuts
from downset.pipelines.early_fused import early_fused
from downset.pipelines.early_fused import least_compute_s as early_fused_bound_s
from downset.pipelines.exhaustive import exhaustive
from downset.pipelines.layerwise import layerwise
from downset.pipelines.optimal_fused import optimal_fused
from downset.pipelines.paper_timing import CommName
from downset.pipelines.pico import pico
from downset.pipelines.problem import SplitProblem, joined
from downset.pipelines.single import single, single_draft

__all__ = [
    "EVERY_DEVICE",
    "INSIDE",
    "MOMENT_S",
    "OUTSIDE",
    "QUICK",
    "baseline_plans",
    "fewer_devices",
    "without_relays",
]

MOMENT_S = 0.2
"""The seconds of `exhaustive` as a baseline. It finishes small networks; on large ones it sees few plans in any time.
"""
QUICK = (Method(single), Method(layerwise), Method(optimal_fused))
"""Planners that take milliseconds; they are asked before any search."""
INSIDE = (Method(pico), Method(blocks), Method(exhaustive))
"""Planners whose plans are strips in one block for each stage. A search that finished has covered all such plans."""
OUTSIDE: Mapping[Method, Callable[[SplitProblem, Cluster], float]] = {
    Method(early_fused): early_fused_bound_s,
    Method(coedge): coedge_bound_s,
}
"""Planners of tiles and halo exchange, which the search does not cover, each with a fast lower bound on its period by
the paper's equations."""
EVERY_DEVICE = (*(planner for planner in QUICK if planner.plan is not single), *OUTSIDE)
"""Planners that give every device work. Their plans may be faster on fewer devices."""
_MANY = 4096
"""The most sets of devices. If there are more, only the sets of the fastest devices are taken, one for each number of
devices."""


def fewer_devices(cluster: Cluster, ends: tuple[int | None, int | None]) -> Iterator[tuple[int, ...]]:
    """Sets of devices, without the empty set and the whole set, by falling speed of all their devices together. Of sets
    whose devices are alike one is taken. `ends`: source and sink, which are like no other device."""
    form = canonical(cluster, ends)
    kinds = sorted(set(form.type))
    members = [[place for place, kind in enumerate(form.type) if kind == one] for one in kinds]
    if form.sets() > _MANY:
        yield from (form.order[:count] for count in range(len(form.order) - 1, 0, -1))
        return
    sets = [
        tuple(sorted(place for own, count in zip(members, counts, strict=True) for place in own[:count]))
        for counts in itertools.product(*(range(len(own) + 1) for own in members))
    ]
    whole = len(form.order)
    for places in sorted(sets, key=lambda places: (-sum(form.speed[place] for place in places), places)):
        if 0 < len(places) < whole:
            yield tuple(form.order[place] for place in places)


def baseline_plans(
    problem: SplitProblem, cluster: Cluster, *, comm: CommName, baseline_cuts: tuple[int, ...] | None
) -> Iterator[Drafted]:
    """Each device by itself, then the plans of every other planner; `exhaustive` has little time."""
    coarse, cuts = without_relays(problem, baseline_cuts)
    yield from ((single_draft(problem, device),) for device in range(len(cluster.devices)))
    for planner in (*QUICK, *INSIDE, *OUTSIDE):
        yield on_cuts(planner(coarse, cluster, **planner.taken(comm=comm, time_limit_s=MOMENT_S)).stages, cuts)


def without_relays(
    problem: SplitProblem, baseline_cuts: tuple[int, ...] | None
) -> tuple[SplitProblem, tuple[int, ...]]:
    """The problem on which baselines plan, whose units are joined up to `baseline_cuts`, and the cuts of the whole
    chain that it has."""
    if baseline_cuts is None:
        return problem, tuple(range(problem.cuts + 1))
    return joined(problem, baseline_cuts), baseline_cuts
