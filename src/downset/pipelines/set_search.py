"""Runs the compiled set search behind `exact`: stages on multisets of devices, by loads or by sums of rounds.

By loads (comm resources) a stage is one fused block with a leader. By rounds (the paper's equations, and guides to
latency) a stage may be several blocks. With more than 4096 multisets, devices of similar speed are first taken as
alike, all as slow as the slowest (for a plan) and all as fast as the fastest (for a bound), more and more finely; with
more than 65536 the search ends there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from downset import native
from downset.budget import Clock
from downset.clusters.model import Cluster, Device
from downset.pipelines.accounting import Accounting, CommName
from downset.pipelines.device_order import CanonicalDevices, canonical, rounded, sub_cluster
from downset.pipelines.drafts import Split, StageDraft, StageDrafts, on_devices
from downset.pipelines.judging import load_s
from downset.pipelines.paper_timing import period_and_latency, stages_of
from downset.pipelines.prices import PricedChain
from downset.pipelines.set_problem import (
    FoundStage,
    LoadDevice,
    SetProblem,
    WorkClass,
    compiled_problem,
    strip_tables,
    work_class,
)
from downset.pipelines.strips import balanced_rows, tiles

__all__ = ["ExactRequest", "SetSearchResult", "load_problem", "search_by_loads", "search_by_rounds"]

_STATES = 200_000_000
# Multisets of devices: the most of one search; the most that are searched at real speeds; those after rounding.
_MANY, _TOO_MANY = 4096, 1 << 16
_ROUNDED = (256, 1024, 4096)
_CLOSE = 1e-7
_Banned = frozenset[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class ExactRequest:
    """The arguments of `exact`. `several_blocks`: by rounds, stages may be several fused blocks. `forbidden`:
    (start, stop, device) that no stage may be."""

    problem: PricedChain
    cluster: Cluster
    accounting: Accounting
    several_blocks: bool = True
    forbidden: _Banned = frozenset()

    def allows(self, drafts: StageDrafts) -> bool:
        """Whether no stage of the drafts is forbidden."""
        return not any(
            (stage.splits[0].start, stage.splits[-1].stop, device) in self.forbidden
            for stage in drafts
            for device in {stage.leader, *(tile.device for split in stage.splits for tile in split.tiles)}
        )

    def on(self, devices: Sequence[int]) -> ExactRequest:
        """The same on these devices only."""
        place = {device: k for k, device in enumerate(devices)}
        forbidden = frozenset((start, stop, place[one]) for start, stop, one in self.forbidden if one in place)
        return replace(
            self,
            cluster=sub_cluster(self.cluster, devices),
            accounting=self.accounting.on(devices),
            forbidden=forbidden,
        )


class SetSearchResult(NamedTuple):
    """`period_s`: infinite if no plan below the incumbent was found. `bound_s` holds for every plan of the space,
    whether the search `finished` or not."""

    period_s: float
    bound_s: float
    finished: bool
    states: int
    stages: StageDrafts
    rounded: bool = False
    """Whether there were too many different devices, so that only plans and bounds for rounded speeds are known."""


def search_by_loads(request: ExactRequest, clock: Clock, *, incumbent_s: float = math.inf) -> SetSearchResult:
    """The pipeline of least load below the incumbent's."""
    return _coarse_then_fine(_LoadSearch(request), clock, incumbent_s)


def search_by_rounds(
    request: ExactRequest, clock: Clock, *, incumbent_s: float = math.inf, least_latency: bool = False
) -> SetSearchResult:
    """The pipeline of least period below the incumbent's by sums of rounds within the latency limit, or with
    `least_latency` the pipeline of least latency.

    On links without overlap the compiled search covers all stages of several blocks; elsewhere it bounds them and tries
    some of them, more with more time."""
    search = _RoundSearch(request, least_latency=least_latency)
    if least_latency and search.form.sets() <= _TOO_MANY:
        return search.whole(clock, incumbent_s)
    if least_latency:
        slower = search.run(rounded(search.form, _MANY, faster=False), search.banned, clock, incumbent_s)
        return slower._replace(finished=False, rounded=True)
    best = _coarse_then_fine(search, clock, incumbent_s)
    if not (best.rounded and request.cluster.network.links) or clock.late():
        return best
    some = search.form.order[: _MANY.bit_length() - 1]  # the fastest devices, with the links of these
    last = search_by_rounds(request.on(some), clock, incumbent_s=min(incumbent_s, best.period_s))
    return _better(best, last._replace(stages=on_devices(last.stages, some)))


def _coarse_then_fine(search: _LoadSearch | _RoundSearch, clock: Clock, incumbent_s: float) -> SetSearchResult:
    """First rounded speeds, finer and finer while there is time, for a plan and a bound; then the real speeds."""
    form = search.form
    if form.sets() <= _MANY:
        return search.whole(clock, incumbent_s)
    best = SetSearchResult(math.inf, 0.0, False, 0, (), rounded=True)
    for sets in _ROUNDED:
        left = clock.left()
        slow, fast = (rounded(form, sets, faster=faster, like=search.like) for faster in (False, True))
        if left <= 0 or fast.sets() > _TOO_MANY:
            return best._replace(rounded=left > 0)  # without time it is stopped, not rounded
        slower = search.run(slow, search.banned, clock.within(left / 4), min(incumbent_s, best.period_s))
        best = best._replace(states=best.states + slower.states)
        for period, stages in search.at_real_speeds(slower) if slower.stages else ():
            if period < best.period_s:
                best = best._replace(period_s=period, stages=stages)
        faster = search.run(
            fast, _all_banned(fast, search.banned), clock.within(left / 4), min(incumbent_s, best.period_s)
        )
        best = best._replace(bound_s=max(best.bound_s, faster.bound_s), states=best.states + faster.states)
        if faster.finished and faster.period_s == math.inf:
            return best._replace(finished=True, rounded=False)
    if clock.late() or not form.uniform or form.sets() > _TOO_MANY:
        return best
    last = search.whole(clock, min(incumbent_s, best.period_s))
    best = best._replace(bound_s=max(last.bound_s, best.bound_s), finished=last.finished, rounded=False)
    return _better(best, last)


def _better(best: SetSearchResult, last: SetSearchResult) -> SetSearchResult:
    """`best` with the plan of a later search if that is faster, and the states of both."""
    if last.period_s < best.period_s:
        best = best._replace(period_s=last.period_s, stages=last.stages)
    return best._replace(states=last.states + best.states)


class _LoadSearch:
    """The search by loads: the seconds for which a frame occupies each resource."""

    def __init__(self, request: ExactRequest) -> None:
        self.request = request
        self.cluster = cluster = request.cluster.occupied  # loads are the seconds that messages occupy
        ends = (request.accounting.source, request.accounting.sink)
        self.form = canonical(cluster, ends)
        order = self.form.order
        self.banned = frozenset((start, stop, order.index(device)) for start, stop, device in request.forbidden)
        classes = tuple(dict.fromkeys(work_class(cluster.devices[device]) for device in order))
        self.tables = strip_tables(request.problem, classes)
        self.full = [cluster.duplex(device) == "full" for device in order]
        self.like = [
            (work_class(cluster.devices[device]), *(end == device for end in ends), self.full[place])
            for place, device in enumerate(order)
        ]

    def set_problem(self, form: CanonicalDevices, banned: _Banned) -> SetProblem:
        problem, network = self.request.problem, self.cluster.network
        described = [self.cluster.devices[device] for device in form.order]
        devices = [
            LoadDevice(
                form.type[place],
                self.tables.classes.index(work_class(device)),
                form.speed[place],
                form.speed[place] * device.peak_speed / device.speed,
                self.full[place],
            )
            for place, device in enumerate(described)
        ]
        terms = self.request.accounting
        source, sink = (-1 if end is None else form.order.index(end) for end in (terms.source, terms.sink))
        return SetProblem(
            self.tables,
            [float(macs) for macs in problem.least_macs_before()],
            [float(nbytes) for nbytes in problem.cut_bytes()],
            devices,
            form.per_byte,
            form.latency,
            form.uniform,
            network.overlap,
            network.kind == "shared",
            source,
            sink,
            banned,
        )

    def run(self, form: CanonicalDevices, banned: _Banned, clock: Clock, incumbent_s: float) -> SetSearchResult:
        problem = compiled_problem(self.set_problem(form, banned))
        seconds, most = clock.native(_STATES)
        outcome = native.compiled.least_load(problem, incumbent_s=incumbent_s, time_limit_s=seconds, state_limit=most)
        return _searched(outcome, form, clock)

    def whole(self, clock: Clock, incumbent_s: float) -> SetSearchResult:
        """The search at real speeds. It knows the loads of entry and exit only in part. If its plan has a larger load
        than the search states, its result is not taken as finished."""
        searched = self.run(self.form, self.banned, clock, incumbent_s)
        if searched.stages:
            real_s = self.load_s(searched.stages)
            return searched._replace(finished=searched.finished and real_s <= searched.period_s * (1 + _CLOSE))
        return searched

    def at_real_speeds(self, searched: SetSearchResult) -> Iterator[tuple[float, StageDrafts]]:
        for drafts in (searched.stages, _balanced(self.request.problem, self.cluster, searched.stages)):
            yield self.load_s(drafts), drafts

    def load_s(self, drafts: StageDrafts) -> float:
        return load_s(self.request.problem, self.cluster, drafts, self.request.accounting)


def load_problem(request: ExactRequest) -> SetProblem:
    """The input of the search by loads at real speeds."""
    search = _LoadSearch(request)
    return search.set_problem(search.form, search.banned)


class _RoundSearch:
    """The search by sums of rounds (`paper_timing`)."""

    def __init__(self, request: ExactRequest, *, least_latency: bool) -> None:
        self.request, self.least_latency = request, least_latency
        self.comm, limit = request.accounting.comm, request.accounting.max_latency_s
        self.limit_s = math.inf if limit is None else limit
        self.form, self.like = canonical(request.cluster), ()
        order = self.form.order
        self.banned = frozenset((start, stop, order.index(device)) for start, stop, device in request.forbidden)
        classes = tuple(dict.fromkeys(_round_class(device, self.comm) for device in request.cluster.devices))
        self.tables = strip_tables(request.problem, classes)

    def set_problem(self, form: CanonicalDevices, banned: _Banned) -> SetProblem:
        problem, network, paper = self.request.problem, self.request.cluster.network, self.comm == "paper"
        devices = []
        for place, device in enumerate(form.order):
            one, speed = self.request.cluster.devices[device], form.speed[place]
            peak = speed if paper else speed * one.peak_speed / one.speed
            number = self.tables.classes.index(_round_class(one, self.comm))
            devices.append(LoadDevice(form.type[place], number, speed, peak, False))
        return SetProblem(
            self.tables,
            [float(macs) for macs in problem.least_macs_before()],
            [0.0 if paper else float(nbytes) for nbytes in problem.cut_bytes()],
            devices,
            form.per_byte,
            form.latency,
            form.uniform,
            network.overlap,
            network.kind == "shared",
            -1,
            -1,
            banned,
        )

    def run(self, form: CanonicalDevices, banned: _Banned, clock: Clock, incumbent_s: float) -> SetSearchResult:
        compiled, problem = native.compiled, compiled_problem(self.set_problem(form, banned))
        aims = compiled.RoundAims(latency_limit_s=self.limit_s, several_blocks=self.request.several_blocks)
        seconds, most = clock.native(_STATES)
        if self.least_latency:
            outcome = compiled.least_latency(problem, aims, time_limit_s=seconds, state_limit=most)
        else:
            outcome = compiled.least_rounds(
                problem, aims, incumbent_s=incumbent_s, time_limit_s=seconds, state_limit=most
            )
        return _searched(outcome, form, clock)

    def whole(self, clock: Clock, incumbent_s: float) -> SetSearchResult:
        return self.run(self.form, self.banned, clock, incumbent_s)

    def at_real_speeds(self, searched: SetSearchResult) -> Iterator[tuple[float, StageDrafts]]:
        """The plan made for slower devices, with rows balanced for the real devices where that is better, within the
        latency limit if one of them is."""
        problem, cluster, comm = self.request.problem, self.request.cluster, self.comm
        other_rows = _balanced(problem, cluster, searched.stages)
        kept, other = (stages_of(problem, cluster, drafts, comm=comm) for drafts in (searched.stages, other_rows))
        better = [new.seconds < old.seconds for old, new in zip(kept, other, strict=True)]
        mixed = tuple(
            after if take else before for before, after, take in zip(searched.stages, other_rows, better, strict=True)
        )
        timed = ((searched.stages, kept), (other_rows, other), (mixed, stages_of(problem, cluster, mixed, comm=comm)))
        for drafts, stages in timed:
            period, latency = period_and_latency(cluster, stages)
            if latency <= self.limit_s or drafts is searched.stages:
                yield period, drafts


def _searched(
    outcome: tuple[float, float, bool, int, list[FoundStage]], form: CanonicalDevices, clock: Clock
) -> SetSearchResult:
    period, bound, finished, states, stages = outcome
    clock.count(states)
    return SetSearchResult(period, bound, finished, states, _drafts_of(stages, form.order))


def _all_banned(form: CanonicalDevices, banned: _Banned) -> _Banned:
    """The entries (start, stop, device) of `banned` whose segment is banned for all devices of that type."""
    alike = {kind: [k for k, other in enumerate(form.type) if other == kind] for kind in form.type}
    return frozenset(
        (start, stop, place)
        for start, stop, place in banned
        if all((start, stop, k) in banned for k in alike[form.type[place]])
    )


def _balanced(problem: PricedChain, cluster: Cluster, drafts: StageDrafts) -> StageDrafts:
    """The same stages with rows that take all devices the same computing time."""
    return tuple(
        StageDraft(stage.leader, tuple(_balanced_split(problem, cluster, split) for split in stage.splits))
        for stage in drafts
    )


def _balanced_split(problem: PricedChain, cluster: Cluster, split: Split) -> Split:
    devices = [tile.device for tile in split.tiles]
    speeds = [cluster.devices[device].speed for device in devices]
    return replace(split, tiles=tiles(devices, balanced_rows(problem.segment(split.start, split.stop), speeds)))


def _round_class(device: Device, comm: CommName) -> WorkClass:
    return WorkClass((), 0.0) if comm == "paper" else work_class(device)


def _drafts_of(stages: Sequence[FoundStage], order: Sequence[int]) -> StageDrafts:
    """The stages of the compiled search with devices of the cluster. `order`: the devices in the order of strips."""
    drafts = []
    for leader, blocks, devices in stages:
        names = [order[device] for device in devices]
        splits = tuple(Split(start, stop, tiles(names, bounds)) for start, stop, bounds in blocks)
        drafts.append(StageDraft(order[leader], splits))
    return tuple(drafts)
