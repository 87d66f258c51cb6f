"""Runs the search behind `exact` under resources: the pipeline of least load, one fused block a stage, with leaders."""

from __future__ import annotations

import math

from downset import clock, native
from downset.clusters.model import Cluster
from downset.pipelines.accounting import Accounting
from downset.pipelines.device_order import Canonical, canonical, rounded
from downset.pipelines.drafts import Drafted
from downset.pipelines.fetches import frame_tasks
from downset.pipelines.load_prices import (
    LoadAsked,
    LoadDevice,
    StripTables,
    compiled_problem,
    drafts_of,
    strip_tables,
    work_class,
)
from downset.pipelines.problem import SplitProblem
from downset.pipelines.round_search import MANY, ROUNDED, STATES, TOO_MANY, Searched, all_banned, balanced
from downset.pipelines.scheduling.loads import load_bound_s
from downset.pipelines.tasks import timed_tasks

__all__ = ["load_asked", "load_s", "search_by_loads"]

_CLOSE = 1e-7


def search_by_loads(
    problem: SplitProblem,
    cluster: Cluster,
    accounting: Accounting,
    *,
    incumbent_s: float = math.inf,
    time_limit_s: float = 10.0,
    forbidden: frozenset[tuple[int, int, int]] = frozenset(),
) -> Searched:
    """The pipeline of least load below the incumbent's. `forbidden`: (start, stop, device) that no stage may be.

    With more than 4096 multisets, devices of similar speed are first taken as alike, all as slow as the slowest (for a
    plan) and all as fast as the fastest (for a bound); with more than 65536 the search ends there."""
    cluster = cluster.occupied  # loads are the seconds that messages occupy
    begin = clock.now()
    ends = (accounting.source, accounting.sink)
    form = canonical(cluster, ends)
    banned = frozenset((start, stop, form.order.index(device)) for start, stop, device in forbidden)
    classes = tuple(dict.fromkeys(work_class(cluster.devices[device]) for device in form.order))
    tables = strip_tables(problem, classes)
    full = [cluster.duplex(device) == "full" for device in form.order]
    like = [
        (work_class(cluster.devices[device]), *(end == device for end in ends), full[place])
        for place, device in enumerate(form.order)
    ]

    def asked(form: Canonical, banned: frozenset[tuple[int, int, int]], incumbent: float, seconds: float) -> Searched:
        return _run(_asked(problem, cluster, accounting, form, tables, banned), form, incumbent, seconds)

    def whole(incumbent: float, seconds: float) -> Searched:
        """The search at real speeds. It knows the loads of entry and exit only in part. If its plan has a larger load
        than the search states, its result is not taken as finished."""
        searched = asked(form, banned, incumbent, seconds)
        if searched.stages:
            real_s = load_s(problem, cluster, searched.stages, accounting)
            return searched._replace(finished=searched.finished and real_s <= searched.period_s * (1 + _CLOSE))
        return searched

    if form.sets() <= MANY:
        return whole(incumbent_s, time_limit_s)
    best = Searched(math.inf, 0.0, False, 0, (), rounded=True)
    for sets in ROUNDED:
        left = time_limit_s - (clock.now() - begin)
        slow, fast = (rounded(form, sets, faster=faster, like=like) for faster in (False, True))
        if left <= 0 or fast.sets() > TOO_MANY:
            return best._replace(rounded=left > 0)
        slower = asked(slow, banned, min(incumbent_s, best.period_s), left / 4)
        best = best._replace(states=best.states + slower.states)
        for drafts in (slower.stages, balanced(problem, cluster, slower.stages)) if slower.stages else ():
            period = load_s(problem, cluster, drafts, accounting)
            if period < best.period_s:
                best = best._replace(period_s=period, stages=drafts)
        faster = asked(fast, all_banned(fast, banned), min(incumbent_s, best.period_s), left / 4)
        best = best._replace(bound_s=max(best.bound_s, faster.bound_s), states=best.states + faster.states)
        if faster.finished and faster.period_s == math.inf:
            return best._replace(finished=True, rounded=False)
    left = time_limit_s - (clock.now() - begin)
    if left <= 0 or not form.uniform or form.sets() > TOO_MANY:
        return best
    last = whole(min(incumbent_s, best.period_s), left)
    best = best._replace(bound_s=max(last.bound_s, best.bound_s), finished=last.finished, rounded=False)
    if last.period_s < best.period_s:
        best = best._replace(period_s=last.period_s, stages=last.stages)
    return best._replace(states=last.states + best.states)


def load_asked(
    problem: SplitProblem, cluster: Cluster, accounting: Accounting, forbidden: frozenset[tuple[int, int, int]]
) -> LoadAsked:
    """The input of the search at real speeds."""
    cluster = cluster.occupied
    form = canonical(cluster, (accounting.source, accounting.sink))
    banned = frozenset((start, stop, form.order.index(device)) for start, stop, device in forbidden)
    classes = tuple(dict.fromkeys(work_class(cluster.devices[device]) for device in form.order))
    return _asked(problem, cluster, accounting, form, strip_tables(problem, classes), banned)


def _asked(
    problem: SplitProblem,
    cluster: Cluster,
    accounting: Accounting,
    form: Canonical,
    tables: StripTables,
    banned: frozenset[tuple[int, int, int]],
) -> LoadAsked:
    described = [cluster.devices[device] for device in form.order]
    devices = [
        LoadDevice(
            form.type[place],
            tables.classes.index(work_class(device)),
            form.speed[place],
            form.speed[place] * device.peak_speed / device.speed,
            cluster.duplex(form.order[place]) == "full",
        )
        for place, device in enumerate(described)
    ]
    source, sink = (-1 if end is None else form.order.index(end) for end in (accounting.source, accounting.sink))
    return LoadAsked(
        tables,
        [float(macs) for macs in problem.least_macs_before()],
        [float(nbytes) for nbytes in problem.cut_bytes()],
        devices,
        form.per_byte,
        form.latency,
        form.uniform,
        cluster.network.overlap,
        cluster.network.kind == "shared",
        source,
        sink,
        banned,
    )


def load_s(problem: SplitProblem, cluster: Cluster, drafts: Drafted, accounting: Accounting) -> float:
    """The load bound, in seconds, of stages."""
    frame = frame_tasks(problem, cluster, drafts, comm="resources", source=accounting.source, sink=accounting.sink)
    timed, resources = timed_tasks(cluster, frame)
    return load_bound_s(timed, len(resources))


def _run(asked: LoadAsked, form: Canonical, incumbent_s: float, time_limit_s: float) -> Searched:
    seconds, most = clock.compiled_limits(time_limit_s, STATES)
    outcome = native.compiled.least_load(
        compiled_problem(asked), incumbent_s=incumbent_s, time_limit_s=seconds, state_limit=most
    )
    period, bound, finished, states, stages = outcome
    clock.spent(states)
    return Searched(period, bound, finished, states, drafts_of(stages, form.order))
