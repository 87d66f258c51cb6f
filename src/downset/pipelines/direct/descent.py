"""Drafts of direct hand-over and the loads that they make; coordinate descent on a draft by its loads.

Source: ours. One change at a time is kept if the loads, sorted from the largest, become less. A boundary between two
devices moves (alike in all blocks of the stage); a block is divided into two or two blocks are joined; a cut between
two stages moves; a device changes its stage, or two devices change places; another device becomes the entry or the
exit; the blocks of one stage change each by itself (`block_moves`). Stages of the busiest devices are changed first.
Names: load → seconds of a resource for one frame.
Complexity: one price (O(tasks)) for each change tried, until no change helps or the budget ends; O(devices · log rows)
for each of about forty trials of a balance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from downset.budget import Clock
from downset.clusters.model import Cluster
from downset.pipelines.accounting import Accounting
from downset.pipelines.direct.block_moves import block_moves
from downset.pipelines.direct.least_period import Stages
from downset.pipelines.direct.limits import (
    ENTRY,
    EXIT,
    DeviceType,
    Limit,
    device_types,
    limits_of,
    segment_bytes,
)
from downset.pipelines.drafts import Split, StageDraft, StageDrafts
from downset.pipelines.floors import Reads
from downset.pipelines.prices import PricedChain
from downset.pipelines.scheduling.loads import load_bound_s, loads_s
from downset.pipelines.strips import tiles
from downset.pipelines.tasks import HaloBlocks, frame_tasks, timed_tasks

__all__ = ["DirectDrafts", "Loads", "descended", "directly"]

_CLOSE = 1e-9
_SHIFTS = (1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 0.0)
"""The shares of a stage's rows by which a boundary moves; 0: by one row."""


def descended(drafts: StageDrafts, priced: DirectDrafts, *, at_least_s: float, clock: Clock) -> StageDrafts:
    """The drafts after all changes that helped. The descent ends early when the loads are down to `at_least_s`."""
    best = priced.loads(drafts)
    while best.bound_s > at_least_s * (1 + _CLOSE):
        changed_drafts = None
        for changed in _changes(drafts, priced, best):
            if clock.late():
                return drafts
            loads = priced.loads(changed)
            if _less(loads, best):
                changed_drafts, best = changed, loads
                break
        if changed_drafts is None:
            return drafts
        drafts = changed_drafts
    return drafts


def _less(one: Loads, two: Loads) -> bool:
    if abs(one.bound_s - two.bound_s) > _CLOSE * two.bound_s:
        return one.bound_s < two.bound_s
    for mine, other in zip(one.sorted_s, two.sorted_s, strict=False):
        if abs(mine - other) > _CLOSE * other:
            return mine < other
    return False


def _changes(drafts: StageDrafts, priced: DirectDrafts, loads: Loads) -> Iterator[StageDrafts]:
    """All changes, those of the busiest stages first, and small ones before large ones."""

    def busiest(stage: StageDraft) -> float:
        return max(loads.by_device.get(tile.device, 0.0) for split in stage.splits for tile in split.tiles)

    order = sorted(range(len(drafts)), key=lambda place: -busiest(drafts[place]))
    for shift in _SHIFTS:
        for place in order:
            for stage in _shifted(drafts[place], priced, shift):
                yield _with(drafts, place, stage)
    for place in order:
        for stage in _ends(drafts, place, priced):
            yield _with(drafts, place, stage)
    for place in order:
        for stage in _blocks(drafts[place], priced):
            yield _with(drafts, place, stage)
    yield from _cuts(drafts, priced)
    yield from _devices(drafts, priced, order)
    speeds = [device.speed for device in priced.cluster.devices]
    for place in order:
        for stage in block_moves(drafts[place], priced.problem, speeds, _SHIFTS):
            yield _with(drafts, place, stage)


def _with(drafts: StageDrafts, place: int, *stages: StageDraft) -> StageDrafts:
    return (*drafts[:place], *stages, *drafts[place + len(stages) :])


def _members(stage: StageDraft) -> list[int]:
    return list(dict.fromkeys(tile.device for split in stage.splits for tile in split.tiles))


def _shifted(stage: StageDraft, priced: DirectDrafts, shift: float) -> Iterator[StageDraft]:
    devices = sorted(_members(stage), key=priced.order.index)
    bounds = [_bounds(split, devices) for split in stage.splits]
    if any(one is None for one in bounds):
        return
    for place in range(1, len(devices)):
        for sign in (1, -1):
            splits = []
            for split, own in zip(stage.splits, bounds, strict=True):
                assert own is not None
                moved = list(own)
                moved[place] += sign * max(1, round(shift * own[-1]))
                moved[place] = min(max(moved[place], own[place - 1]), own[place + 1])
                splits.append(replace(split, tiles=tiles(devices, moved)))
            yield replace(stage, splits=tuple(splits))


def _bounds(split: Split, devices: Sequence[int]) -> list[int] | None:
    """Boundaries of a block's rows, by device in the given order; None if its strips lie in another order."""
    own = {tile.device: (tile.start, tile.stop) for tile in split.tiles}
    bounds = [0]
    for device in devices:
        start, stop = own.get(device, (bounds[-1], bounds[-1]))
        if start != bounds[-1]:
            return None
        bounds.append(stop)
    return bounds if len(own) == len(split.tiles) else None


def _blocks(stage: StageDraft, priced: DirectDrafts) -> Iterator[StageDraft]:
    """The stage with one block divided in two of the same rows, or with two blocks joined."""
    devices = sorted(_members(stage), key=priced.order.index)
    if len(devices) < 2:
        return
    for place, split in enumerate(stage.splits):
        bounds = _bounds(split, devices)
        if bounds is None:
            continue
        for cut in range(split.start + 1, split.stop):
            parts = [
                _like(priced, start, stop, devices, bounds) for start, stop in pairwise((split.start, cut, split.stop))
            ]
            yield replace(stage, splits=(*stage.splits[:place], *parts, *stage.splits[place + 1 :]))
    for place, (one, two) in enumerate(pairwise(stage.splits)):
        bounds = _bounds(two, devices)
        if bounds is not None:
            joined = _like(priced, one.start, two.stop, devices, bounds)
            yield replace(stage, splits=(*stage.splits[:place], joined, *stage.splits[place + 2 :]))


def _like(priced: DirectDrafts, start: int, stop: int, devices: Sequence[int], bounds: Sequence[int]) -> Split:
    rows = priced.problem.segment(start, stop).rows
    scaled = [round(bound * rows / bounds[-1]) for bound in bounds]
    return Split(start, stop, tiles(devices, scaled), halo=True)


def _ends(drafts: StageDrafts, place: int, priced: DirectDrafts) -> Iterator[StageDraft]:
    stage = drafts[place]
    for device in _members(stage) if place == 0 and priced.accounting.source is None else ():
        yield replace(stage, entry=device)
    for device in _members(stage) if place == len(drafts) - 1 and priced.accounting.sink is None else ():
        yield replace(stage, exit=device)


def _cuts(drafts: StageDrafts, priced: DirectDrafts) -> Iterator[StageDrafts]:
    """The drafts with a cut between two stages moved; both stages are then one block."""
    for place, (one, two) in enumerate(pairwise(drafts)):
        start, cut, stop = one.splits[0].start, two.splits[0].start, two.splits[-1].stop
        for away in (1, -1, 2, -2):
            if start < cut + away < stop:
                stages = [
                    priced.stage(first, last, _members(stage))
                    for stage, (first, last) in zip((one, two), pairwise((start, cut + away, stop)), strict=True)
                ]
                yield _with(drafts, place, *stages)


def _devices(drafts: StageDrafts, priced: DirectDrafts, order: Sequence[int]) -> Iterator[StageDrafts]:
    """The drafts with a device changed: an idle device, or one of another stage, joins; two devices change places; one
    is left out."""
    members = [_members(stage) for stage in drafts]
    used = {device for own in members for device in own}
    idle = [device for device in priced.order if device not in used]
    for place in order:
        for device in idle:
            yield from _reassigned(drafts, priced, {place: [*members[place], device]})
            for other in members[place]:
                yield from _reassigned(
                    drafts, priced, {place: [device if one == other else one for one in members[place]]}
                )
        for away in order[::-1]:
            if away == place:
                continue
            for device in members[away]:
                left = [one for one in members[away] if one != device]
                if left:
                    yield from _reassigned(drafts, priced, {place: [*members[place], device], away: left})
                for other in members[place]:
                    swapped = [device if one == other else one for one in members[place]]
                    yield from _reassigned(drafts, priced, {place: swapped, away: [*left, other]})


def _reassigned(drafts: StageDrafts, priced: DirectDrafts, members: dict[int, list[int]]) -> Iterator[StageDrafts]:
    reassigned = list(drafts)
    for place, devices in members.items():
        start, stop = drafts[place].splits[0].start, drafts[place].splits[-1].stop
        if any((start, stop, device) in priced.forbidden for device in devices):
            return
        reassigned[place] = priced.stage(start, stop, devices)
    yield tuple(reassigned)


def directly(drafts: StageDrafts) -> StageDrafts | None:
    """The same strips handed over directly; the leaders of the first and last stage become entry and exit. None for
    tiles with columns."""
    if any(tile.columns is not None for stage in drafts for split in stage.splits for tile in split.tiles):
        return None
    return tuple(
        StageDraft(-1, tuple(Split(s.start, s.stop, s.tiles, halo=True) for s in stage.splits), *_ends_of(stage))
        for stage in drafts
    )


def _ends_of(stage: StageDraft) -> tuple[int, int]:
    return (stage.entry, stage.exit) if stage.leader < 0 else (stage.leader, stage.leader)


@dataclass(frozen=True, slots=True)
class Loads:
    """Seconds of every resource for one frame, the largest first. `by_device`: the largest of a device."""

    bound_s: float
    sorted_s: tuple[float, ...]
    by_device: dict[int, float]


@dataclass
class DirectDrafts:
    """Makes drafts of stages and prices them by their loads."""

    problem: PricedChain
    cluster: Cluster
    accounting: Accounting
    order: tuple[int, ...]
    """Devices in the order in which strips lie."""
    forbidden: frozenset[tuple[int, int, int]] = frozenset()
    loads_of: dict[StageDrafts, Loads] = field(default_factory=dict)
    halo_blocks: HaloBlocks = field(default_factory=dict)
    _limits: dict[tuple[int, int, int, int], list[Limit]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kinds: dict[int, DeviceType] = {
            device: device_types(self.cluster, [[device]])[0] for device in range(len(self.cluster.devices))
        }
        self.reads = Reads(self.problem)

    def loads(self, drafts: StageDrafts) -> Loads:
        if drafts not in self.loads_of:
            frame = frame_tasks(self.problem, self.cluster, drafts, self.accounting, self.halo_blocks)
            timed, resources = timed_tasks(self.cluster, frame)
            loads = loads_s(timed, len(resources))
            by_device: dict[int, float] = {}
            for resource, seconds in zip(resources, loads, strict=True):
                by_device[resource.device] = max(by_device.get(resource.device, 0.0), seconds)
            self.loads_of[drafts] = Loads(
                load_bound_s(timed, len(resources)), tuple(sorted(loads, reverse=True)), by_device
            )
        return self.loads_of[drafts]

    def alone_s(self) -> float:
        """The load, in seconds, of the best device by itself."""
        cuts = self.problem.cuts
        return min(self.loads((self.stage(0, cuts, [device]),)).bound_s for device in self.kinds)

    def allowed(self, drafts: StageDrafts) -> bool:
        """Whether no stage of the drafts is forbidden."""
        return not any(
            (stage.splits[0].start, stage.splits[-1].stop, tile.device) in self.forbidden
            for stage in drafts
            for split in stage.splits
            for tile in split.tiles
        )

    def draft(self, types: Sequence[Sequence[int]], stages: Stages) -> StageDrafts | None:
        """Drafts with devices for the types of the stages and with balanced rows; None if all devices left are
        forbidden."""
        free = [list(members) for members in types]
        drafts_found = []
        for start, stop, counts in stages:
            chosen: list[int] = []
            for members, count in zip(free, counts, strict=True):
                may = [device for device in members if (start, stop, device) not in self.forbidden]
                if len(may) < count:
                    return None
                chosen += may[:count]
                for device in may[:count]:
                    members.remove(device)
            drafts_found.append(self.stage(start, stop, chosen))
        return tuple(drafts_found)

    def stage(self, start: int, stop: int, devices: Sequence[int]) -> StageDraft:
        """One fused block on the devices. The rows are balanced by each device's own work, without that of its
        neighbours."""
        devices = sorted(devices, key=self.order.index)
        rows = self.problem.segment(start, stop).rows
        entry = exit_ = -1
        if start == 0 and self.accounting.source is None:
            entry = devices[0]
        if stop == self.problem.cuts and self.accounting.sink is None:
            exit_ = devices[0]
        roles = [
            ENTRY * (start == 0 and device in (entry, self.accounting.source))
            | EXIT * (stop == self.problem.cuts and device in (exit_, self.accounting.sink))
            for device in devices
        ]
        limits = [self.limits(start, stop, device, role) for device, role in zip(devices, roles, strict=True)]
        bounds = balanced(limits, rows)
        return StageDraft(-1, (Split(start, stop, tiles(devices, bounds), halo=True),), entry, exit_)

    def limits(self, start: int, stop: int, device: int, role: int) -> list[Limit]:
        key = (start, stop, device, role)
        if key not in self._limits:
            table = segment_bytes(
                self.problem,
                start,
                stop,
                self.reads,
                frame_is_held=self.accounting.source is not None,
                results_are_held=self.accounting.sink is not None,
            )
            self._limits[key] = limits_of(self.cluster, self.kinds[device], table, role)
        return self._limits[key]


def balanced(limits: Sequence[Sequence[Limit]], rows: int) -> list[int]:
    """Boundaries of nearly least maximum over the limits of all devices in order: bisection on the maximum, filling
    greedily."""
    high = max(_seconds(limit, 0, rows, rows) for limit in limits[0])
    low, best = 0.0, [0] + [rows] * len(limits)
    for _ in range(40):
        middle = (low + high) / 2
        bounds = [0]
        for own in limits:
            bounds.append(_reach(own, bounds[-1], rows, middle))
        if bounds[-1] == rows:
            best, high = bounds, middle
        else:
            low = middle
        if high - low <= 1e-6 * high:
            break
    return best


def _reach(limits: Sequence[Limit], lo: int, rows: int, period: float) -> int:
    if lo == rows or all(limit.final[lo] + limit.fixed <= period for limit in limits):
        return rows
    reach = rows - 1
    for limit in limits:
        fits = np.flatnonzero(limit.upper[lo + 1 : reach + 1] - limit.lower[lo] + limit.fixed <= period)
        reach = lo + 1 + int(fits[-1]) if len(fits) else lo
    return reach


def _seconds(limit: Limit, lo: int, hi: int, rows: int) -> float:
    own = limit.final[lo] if hi == rows else limit.upper[hi] - limit.lower[lo]
    return float(own) + limit.fixed if hi > lo else -math.inf
