"""Simulates a plan by the paper's equations: stages are servers that take a frame through rounds.

Plans of comm="paper" have no orders of work. As in eq. 7 to 12, a stage does its rounds of transfers and of computing
one after another; a round takes as long as its busiest device, or on a shared network as all its bytes. A shared
network carries one round at a time. If the network overlaps, a stage computes one frame while another frame's transfers
run; otherwise it does one frame at a time. Older frames go first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from downset.distributed.simulated_run import Conditions, RunRecord
from downset.results.pipelines import Pipeline
from downset.results.task_times import ends_of, plan_seconds

__all__ = ["run_paper"]

_MEDIUM = (-1, True)


def run_paper(
    plan: Pipeline,
    conditions: Conditions,
    *,
    frames: int,
    arrival_s: float | None = None,
    jitters: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> RunRecord:
    """Run `frames` frames that arrive every `arrival_s` seconds. None: a frame is always waiting, and enough frames are
    inside that the busiest stage never waits, `jitters` or not. `progress` is called when a frame leaves."""
    record = RunRecord(len(plan.cluster.devices), _inside(plan, jitters=jitters))
    run = _PaperRun(plan, conditions, frames, progress, record)
    run.go(arrival_s)
    return run.record


def _inside(plan: Pipeline, *, jitters: bool) -> int:
    """The number of frames inside: one more than the latency has periods. If frames delay each other it is larger: each
    block of a stage of several blocks then has room for some frames."""
    fitting = math.ceil(plan.latency_s / plan.period_s - 1e-9) + 1 if plan.period_s > 0 else 1
    if not (jitters or plan.cluster.network.overlap or plan.cluster.network.kind == "shared"):
        return fitting
    several = sum(len(stage.blocks) for stage in plan.stages if len(stage.blocks) > 1)
    return 2 * fitting + 2 + 6 * several


@dataclass(slots=True)
class _Station:
    """A server that serves one frame at a time, the oldest first."""

    busy: bool = False
    waiting: list[tuple[int, int]] = field(default_factory=list)


_Steps = Iterator["float | tuple[int, bool]"]
"""The way of a frame: yields the time until which it waits, or the station that it needs next."""


class _PaperRun:
    def __init__(
        self, plan: Pipeline, conditions: Conditions, frames: int, progress: Callable[[], None], record: RunRecord
    ) -> None:
        self.plan, self.conditions, self.frames, self.progress, self.record = plan, conditions, frames, progress, record
        self.shared, self.overlap = plan.cluster.network.kind == "shared", plan.cluster.network.overlap
        self.stations: dict[tuple[int, bool], _Station] = {}
        self.rounds = _rounds(plan)
        self.seconds = plan_seconds(plan)
        self.now = 0.0
        self.events: list[tuple[float, int, int, _Steps]] = []
        self.count = self.begun = 0
        self.on_way: dict[int, _Steps] = {}

    def go(self, arrival_s: float | None) -> None:
        first = self.frames if arrival_s is not None else min(self.record.window, self.frames)
        if arrival_s is not None:
            self.record.came = [frame * arrival_s for frame in range(self.frames)]
        for frame in range(first):
            self.enter(frame, frame * (arrival_s or 0.0))
        while self.events:
            self.now, _, frame, steps = heapq.heappop(self.events)
            self.advance(frame, steps)
            if frame not in self.on_way and arrival_s is None and self.begun < self.frames:
                self.enter(self.begun, self.now)

    def enter(self, frame: int, when: float) -> None:
        self.begun += 1
        self.on_way[frame] = steps = self.way(frame)
        self.resume(frame, steps, when)

    def resume(self, frame: int, steps: _Steps, when: float) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, frame, steps))

    def advance(self, frame: int, steps: _Steps) -> None:
        wanted = next(steps, None)
        if isinstance(wanted, float):
            if wanted < math.inf:
                self.resume(frame, steps, wanted)
        elif wanted is not None:
            station = self.stations.setdefault(wanted, _Station())
            heapq.heappush(station.waiting, (frame, self.count))
            self.serve(wanted)

    def serve(self, key: tuple[int, bool]) -> None:
        station = self.stations[key]
        if not station.busy and station.waiting:
            station.busy = True
            frame, _ = heapq.heappop(station.waiting)
            self.resume(frame, self.on_way[frame], self.now)

    def free(self, key: tuple[int, bool]) -> None:
        self.stations[key].busy = False
        self.serve(key)

    def begin(self, frame: int) -> None:
        if frame == len(self.record.let_in):
            self.record.let_in.append(self.now)

    def way(self, frame: int) -> _Steps:
        for place, stage in enumerate(self.plan.stages):
            whole = (place, False)
            if not self.overlap:
                yield whole
                self.begin(frame)
            if stage.leader >= 0:
                yield from self.until([stage.leader], self.conditions.transferred_at([stage.leader], self.now, 0.0))
            for transfers, members in self.rounds[place]:
                if self.overlap:
                    yield (place, transfers)
                    self.begin(frame)
                yield from self.transfer(members) if transfers else self.compute(members)
                if self.overlap:
                    self.free((place, transfers))
            if not self.overlap:
                self.free(whole)
        self.record.left.append((frame, self.now))
        del self.on_way[frame]
        self.progress()

    def until(self, devices: Sequence[int], when: float) -> _Steps:
        if when == math.inf:
            self.record.stall(max(self.now, self.conditions.died_at(devices)))
        if when > self.now:
            yield when

    def transfer(self, members: Sequence[int]) -> _Steps:
        busy: dict[int, float] = {}
        ends: set[int] = set()
        for index in members:
            task = self.plan.tasks[index]
            ends.update(ends_of(task))
            for end in (-1,) if self.shared else ends_of(task):
                busy[end] = busy.get(end, 0.0) + self.seconds[index]
        devices, seconds = sorted(ends), max(busy.values())
        if not self.shared:
            yield from self.until(devices, self.conditions.transferred_at(devices, self.now, seconds))
            return
        yield _MEDIUM
        done = self.conditions.transferred_at(devices, self.now, seconds)
        yield max(self.now, min(done, self.conditions.died_at(devices) if done == math.inf else done))
        self.free(_MEDIUM)
        yield from self.until(devices, self.now if done < math.inf else math.inf)

    def compute(self, members: Sequence[int]) -> _Steps:
        longest, last = self.now, self.plan.tasks[members[0]].device
        by_device: dict[int, float] = {}
        for index in members:
            device, seconds = self.plan.tasks[index].device, self.seconds[index] * self.conditions.noise(index)
            by_device[device] = by_device.get(device, 0.0) + seconds
        for device, seconds in by_device.items():
            stop = self.conditions.computed_at(device, self.now, seconds)
            if stop < math.inf:
                self.record.computing_s[device] += stop - self.now
                self.record.busy_s[device] += stop - self.now
            if stop > longest:
                longest, last = stop, device
        yield from self.until([last], longest)


def _rounds(plan: Pipeline) -> list[list[tuple[bool, list[int]]]]:
    """The rounds of each stage as (whether it transfers, tasks). The tasks of a round follow each other in the plan,
    belong to one block, and do not wait for each other."""
    rounds: list[list[tuple[bool, list[int]]]] = [[] for _ in plan.stages]
    block = -1
    for index, task in enumerate(plan.tasks):
        own, transfers = rounds[task.stage], task.transfer is not None
        alike = bool(own) and own[-1][0] == transfers and block == task.block and not set(own[-1][1]) & set(task.after)
        if not alike:
            own.append((transfers, []))
        own[-1][1].append(index)
        block = task.block
    return rounds
