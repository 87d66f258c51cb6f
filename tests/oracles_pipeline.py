"""A naive oracle for sums of rounds: plans by full enumeration, priced by `paper_timing` alone."""

from __future__ import annotations

import itertools
import math
from itertools import pairwise

from downset.pipelines.device_order import canonical
from downset.pipelines.drafts import Split, StageDraft, Tile
from downset.pipelines.paper_timing import TimedTransfer, round_seconds, stage_of
from tests.every_staffing import every_staffing


def least_period(problem, cluster, *, comm, max_latency_s=math.inf):
    """(least period within the latency limit, least latency) of all pipelines of one-block stages: cuts x device
    assignments x integer rows x leaders. Strips lie in the canonical order of devices; devices may be idle, strips
    empty."""
    order = canonical(cluster).order
    period = latency = math.inf
    known: dict[tuple[int, int, tuple[int, ...]], list[tuple[int, float, float]]] = {}
    for stages in every_staffing(problem.cuts, order):
        choices = []
        for key in stages:
            if key not in known:
                known[key] = every_stage(problem, cluster, comm, *key)
            choices.append(known[key])
        cuts = [(start, stop) for start, stop, _ in stages]
        for plan in itertools.product(*choices):
            p, t = times(problem, cluster, comm, cuts, plan)
            latency = min(latency, t)
            if t <= max_latency_s * (1 + 1e-12):
                period = min(period, p)
    return period, latency


def every_stage(problem, cluster, comm, start, stop, devices):
    """(leader, computing, transfer inside the stage) of every division into rows, those beaten in both left out."""
    rows = problem.segment(start, stop).rows
    found = set()
    for inner in itertools.combinations_with_replacement(range(rows + 1), len(devices) - 1):
        bounds = pairwise((0, *inner, rows))
        parts = tuple(Tile(d, a, b) for d, (a, b) in zip(devices, bounds, strict=True) if a < b)
        for leader in devices:
            stage = stage_of(problem, cluster, StageDraft(leader, (Split(start, stop, parts),)), comm=comm)
            found.add((leader, stage.compute_s, stage.transfer_s))
    return [
        one
        for one in found
        if not any(two[0] == one[0] and two != one and two[1] <= one[1] and two[2] <= one[2] for two in found)
    ]


def times(problem, cluster, comm, cuts, plan):
    """(period, latency) of stages given as (leader, computing, transfer)."""
    slowest = medium = latency = 0.0
    for place, (leader, compute_s, transfer_s) in enumerate(plan):
        nbytes = problem.cut_bytes()[cuts[place][0]]
        if place and comm == "resources" and nbytes:
            transfer_s += round_seconds(cluster, [TimedTransfer(plan[place - 1][0], leader, nbytes)])
        overlap = cluster.network.overlap
        slowest = max(slowest, max(compute_s, transfer_s) if overlap else compute_s + transfer_s)
        medium += transfer_s
        latency += compute_s + transfer_s
    return (max(slowest, medium) if cluster.network.kind == "shared" else slowest), latency
