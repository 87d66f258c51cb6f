"""Naive oracles for pipelines: needs row by row, plans by full enumeration."""

from __future__ import annotations

import itertools
import math
from itertools import pairwise

from downset.pipelines.drafts import Split, StageDraft, Tile
from downset.pipelines.exact import canonical
from downset.pipelines.timing import period_and_latency, stages_of


def every_plan(problem, cluster):
    """All pipelines of one-block stages: cuts x device assignments x integer rows x leaders. Strips lie in the
    canonical order of devices; devices may be idle, strips empty."""
    order = canonical(cluster).order
    for count in range(1, min(problem.cuts, len(order)) + 1):
        for inner in itertools.combinations(range(1, problem.cuts), count - 1):
            cuts = (0, *inner, problem.cuts)
            for owner in itertools.product(range(-1, count), repeat=len(order)):
                if set(range(count)) <= set(owner):
                    choices = []
                    for stage, (start, stop) in enumerate(pairwise(cuts)):
                        devices = [order[k] for k in range(len(order)) if owner[k] == stage]
                        choices.append(list(every_stage(problem, start, stop, devices)))
                    yield from itertools.product(*choices)


def every_stage(problem, start, stop, devices):
    rows = problem.segment(start, stop).rows
    for inner in itertools.combinations_with_replacement(range(rows + 1), len(devices) - 1):
        bounds = (0, *inner, rows)
        parts = tuple(Tile(d, a, b) for d, (a, b) in zip(devices, pairwise(bounds), strict=True) if a < b)
        for leader in devices:
            yield StageDraft(leader, (Split(start, stop, parts),))


def least_period(problem, cluster, *, comm, max_latency_s=math.inf):
    """(period, latency of the plan of least latency) over `every_plan`."""
    period = latency = math.inf
    for drafts in every_plan(problem, cluster):
        p, t = period_and_latency(cluster, stages_of(problem, cluster, drafts, comm=comm))
        latency = min(latency, t)
        if t <= max_latency_s * (1 + 1e-12):
            period = min(period, p)
    return period, latency
