"""Runs the search behind `exact` by sums of rounds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from downset import clock, native
from downset.clusters.model import Cluster, Device
from downset.pipelines.device_order import Canonical, canonical, rounded, sub_cluster
from downset.pipelines.drafts import Drafted, Split, StageDraft, on_devices
from downset.pipelines.load_prices import (
    LoadAsked,
    LoadDevice,
    StripTables,
    WorkClass,
    compiled_problem,
    drafts_of,
    strip_tables,
    work_class,
)
from downset.pipelines.paper_timing import CommName, period_and_latency, stages_of
from downset.pipelines.problem import SplitProblem
from downset.pipelines.strips import balanced_rows, tiles

__all__ = ["MANY", "ROUNDED", "STATES", "TOO_MANY", "Searched", "all_banned", "balanced", "search"]

STATES = 200_000_000
# Multisets of devices: the most of one search; the most that are searched at real speeds; those after rounding.
MANY, TOO_MANY = 4096, 1 << 16
ROUNDED = (256, 1024, 4096)


class Searched(NamedTuple):
    """`period_s`: infinite if no plan below the incumbent was found. `bound_s` holds for every plan of the space,
    whether the search `finished` or not."""

    period_s: float
    bound_s: float
    finished: bool
    states: int
    stages: Drafted
    rounded: bool = False
    """Whether there were too many different devices, so that only plans and bounds for rounded speeds are known."""


def search(
    problem: SplitProblem,
    cluster: Cluster,
    *,
    comm: CommName = "resources",
    max_latency_s: float | None = None,
    incumbent_s: float = math.inf,
    time_limit_s: float = 10.0,
    several_blocks: bool = True,
    least_latency: bool = False,
    forbidden: frozenset[tuple[int, int, int]] = frozenset(),
) -> Searched:
    """The pipeline of least period below the incumbent's, or with `least_latency` the pipeline of least latency.

    `several_blocks`: stages may be several fused blocks. On links without overlap the compiled search covers them all;
    elsewhere it bounds them and tries some of them, more with more time. `forbidden`: (start, stop, device) that no
    stage may be."""
    form = canonical(cluster)
    banned = frozenset((start, stop, form.order.index(device)) for start, stop, device in forbidden)
    limit = math.inf if max_latency_s is None else max_latency_s

    tables = strip_tables(problem, tuple(dict.fromkeys(_work_class(device, comm) for device in cluster.devices)))
    compiled = native.compiled
    aims = compiled.RoundAims(latency_limit_s=limit, several_blocks=several_blocks)

    def asked(form: Canonical, banned: frozenset[tuple[int, int, int]], incumbent: float, seconds: float) -> Searched:
        given = compiled_problem(_asked(problem, cluster, form, comm, tables, banned))
        seconds, most = clock.compiled_limits(seconds, STATES)
        if least_latency:
            outcome = compiled.least_latency(given, aims, time_limit_s=seconds, state_limit=most)
        else:
            outcome = compiled.least_rounds(given, aims, incumbent_s=incumbent, time_limit_s=seconds, state_limit=most)
        period, bound, finished, states, stages = outcome
        clock.spent(states)
        return Searched(period, bound, finished, states, drafts_of(stages, form.order))

    if form.sets() <= (TOO_MANY if least_latency else MANY):
        return asked(form, banned, incumbent_s, time_limit_s)
    if least_latency:
        slower = asked(rounded(form, MANY, faster=False), banned, incumbent_s, time_limit_s)
        return slower._replace(finished=False, rounded=True)
    # First rounded speeds, finer and finer while there is time, for a plan and a bound; then the real speeds.
    begin = clock.now()
    best = Searched(math.inf, 0.0, False, 0, (), rounded=True)
    for sets in ROUNDED:
        left = time_limit_s - (clock.now() - begin)
        if left <= 0:
            return best._replace(rounded=False)  # at real speeds, but stopped
        slower = asked(rounded(form, sets, faster=False), banned, min(incumbent_s, best.period_s), left / 4)
        slower = _at_real_speeds(problem, cluster, slower, comm, max_latency_s)
        best = best._replace(states=best.states + slower.states)
        if slower.period_s < best.period_s:
            best = best._replace(period_s=slower.period_s, stages=slower.stages)
        alike = rounded(form, sets, faster=True)
        faster = asked(alike, all_banned(alike, banned), min(incumbent_s, best.period_s), left / 4)
        best = best._replace(bound_s=max(best.bound_s, faster.bound_s), states=best.states + faster.states)
        if faster.finished and faster.period_s == math.inf:
            return best._replace(finished=True, rounded=False)
    left = time_limit_s - (clock.now() - begin)
    whole = form.uniform and form.sets() <= TOO_MANY
    if left <= 0 or not (whole or cluster.network.links):
        return best
    if whole:
        last = asked(form, banned, min(incumbent_s, best.period_s), left)
        best = best._replace(bound_s=max(last.bound_s, best.bound_s), finished=last.finished, rounded=False)
    else:  # the fastest devices, with the links of these
        some = form.order[: MANY.bit_length() - 1]
        few = frozenset((start, stop, some.index(device)) for start, stop, device in forbidden if device in some)
        last = search(
            problem,
            sub_cluster(cluster, some),
            comm=comm,
            max_latency_s=max_latency_s,
            incumbent_s=min(incumbent_s, best.period_s),
            time_limit_s=left,
            several_blocks=several_blocks,
            forbidden=few,
        )
        last = last._replace(stages=on_devices(last.stages, some))
    if last.period_s < best.period_s:
        best = best._replace(period_s=last.period_s, stages=last.stages)
    return best._replace(states=last.states + best.states)


def all_banned(form: Canonical, banned: frozenset[tuple[int, int, int]]) -> frozenset[tuple[int, int, int]]:
    """The entries (start, stop, device) of `banned` whose segment is banned for all devices of that type."""
    alike = {kind: [k for k, other in enumerate(form.type) if other == kind] for kind in form.type}
    return frozenset(
        (start, stop, place)
        for start, stop, place in banned
        if all((start, stop, k) in banned for k in alike[form.type[place]])
    )


def _at_real_speeds(
    problem: SplitProblem, cluster: Cluster, searched: Searched, comm: str, max_latency_s: float | None
) -> Searched:
    """The plan made for slower devices with its times on the real ones. Its rows are balanced for the real devices if
    that is better."""
    if not searched.stages:
        return searched
    other_rows = balanced(problem, cluster, searched.stages)
    kept, other = (stages_of(problem, cluster, drafts, comm=comm) for drafts in (searched.stages, other_rows))
    better = [new.seconds < old.seconds for old, new in zip(kept, other, strict=True)]
    mixed = tuple(
        after if take else before for before, after, take in zip(searched.stages, other_rows, better, strict=True)
    )
    timed = ((searched.stages, kept), (other_rows, other), (mixed, stages_of(problem, cluster, mixed, comm=comm)))
    limit = math.inf if max_latency_s is None else max_latency_s
    plans = []
    for drafts, stages in timed:
        period, latency = period_and_latency(cluster, stages)
        if latency <= limit or drafts is searched.stages:
            plans.append((period, drafts))
    period, chosen = min(plans, key=lambda plan: plan[0])
    return searched._replace(period_s=period, stages=chosen)


def balanced(problem: SplitProblem, cluster: Cluster, drafts: Drafted) -> Drafted:
    """The same stages with rows that take all devices the same computing time."""
    return tuple(
        StageDraft(stage.leader, tuple(_balanced(problem, cluster, split) for split in stage.splits))
        for stage in drafts
    )


def _balanced(problem: SplitProblem, cluster: Cluster, split: Split) -> Split:
    devices = [tile.device for tile in split.tiles]
    speeds = [cluster.devices[device].speed for device in devices]
    return replace(split, tiles=tiles(devices, balanced_rows(problem.segment(split.start, split.stop), speeds)))


def _work_class(device: Device, comm: CommName) -> WorkClass:
    return WorkClass((), 0.0) if comm == "paper" else work_class(device)


def _asked(
    problem: SplitProblem,
    cluster: Cluster,
    form: Canonical,
    comm: CommName,
    tables: StripTables,
    banned: frozenset[tuple[int, int, int]],
) -> LoadAsked:
    devices = []
    for place, device in enumerate(form.order):
        one, speed = cluster.devices[device], form.speed[place]
        peak = speed if comm == "paper" else speed * one.peak_speed / one.speed
        devices.append(LoadDevice(form.type[place], tables.classes.index(_work_class(one, comm)), speed, peak, False))
    handover = [0.0 if comm == "paper" else float(nbytes) for nbytes in problem.cut_bytes()]
    return LoadAsked(
        tables,
        [float(macs) for macs in problem.least_macs_before()],
        handover,
        devices,
        form.per_byte,
        form.latency,
        form.uniform,
        cluster.network.overlap,
        cluster.network.kind == "shared",
        -1,
        -1,
        banned,
    )
