"""Makes drafts of direct hand-over: devices for types, balanced rows, and the loads of a draft.

Names: load → seconds of a resource for one frame.
Complexity: O(devices · log rows) for each of about forty trials of a balance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from downset.clusters.model import Cluster
from downset.pipelines.accounting import Accounting
from downset.pipelines.direct.least_period import Stages
from downset.pipelines.direct.reads import Reads
from downset.pipelines.direct.tables import (
    ENTRY,
    EXIT,
    DeviceType,
    Limit,
    device_types,
    limits_of,
    segment_bytes,
)
from downset.pipelines.drafts import Drafted, Split, StageDraft
from downset.pipelines.fetches import HaloBlocks, frame_tasks
from downset.pipelines.problem import SplitProblem
from downset.pipelines.scheduling.loads import load_bound_s, loads_s
from downset.pipelines.strips import tiles
from downset.pipelines.tasks import timed_tasks

__all__ = ["DirectDrafts", "Loads", "directly"]


def directly(drafts: Drafted) -> Drafted | None:
    """The same strips handed over directly; the leaders of the first and last stage become entry and exit. None for
    tiles with columns."""
    if any(tile.columns is not None for stage in drafts for split in stage.splits for tile in split.tiles):
        return None
    return tuple(
        StageDraft(-1, tuple(Split(s.start, s.stop, s.tiles, halo=True) for s in stage.splits), *_ends(stage))
        for stage in drafts
    )


def _ends(stage: StageDraft) -> tuple[int, int]:
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

    problem: SplitProblem
    cluster: Cluster
    accounting: Accounting
    order: tuple[int, ...]
    """Devices in the order in which strips lie."""
    forbidden: frozenset[tuple[int, int, int]] = frozenset()
    loads_of: dict[Drafted, Loads] = field(default_factory=dict)
    halo_blocks: HaloBlocks = field(default_factory=dict)
    _limits: dict[tuple[int, int, int, int], list[Limit]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kinds: dict[int, DeviceType] = {
            device: device_types(self.cluster, [[device]])[0] for device in range(len(self.cluster.devices))
        }
        self.reads = Reads(self.problem)

    def loads(self, drafts: Drafted) -> Loads:
        if drafts not in self.loads_of:
            asked = self.accounting
            frame = frame_tasks(
                self.problem,
                self.cluster,
                drafts,
                comm=asked.comm,
                source=asked.source,
                sink=asked.sink,
                halo_blocks=self.halo_blocks,
            )
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

    def allowed(self, drafts: Drafted) -> bool:
        """Whether no stage of the drafts is forbidden."""
        return not any(
            (stage.splits[0].start, stage.splits[-1].stop, tile.device) in self.forbidden
            for stage in drafts
            for split in stage.splits
            for tile in split.tiles
        )

    def draft(self, types: Sequence[Sequence[int]], stages: Stages) -> Drafted | None:
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
