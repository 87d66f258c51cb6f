"""A pipeline run frame by frame: an event simulation to judge plans, and the analytic times, by.

Frames queue for stages; a stage waits for its input, does its rounds of transfers and its blocks, and passes on. Links
carry a round in the time of its busiest device; a shared network carries one round at a time, whichever stage asks.
Where the network overlaps, a stage computes one frame while another frame's transfers run; else it does one frame at a
time. Older frames go first. Built on SimPy (extra `sim`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from downset.errors import UsageError
from downset.extras import optional_library
from downset.pipelines.paper_timing import round_seconds
from downset.pipelines.tasks import compute_s
from downset.plans import Pipeline, PipelineStage, Strip, Transfer
from downset.results import Simulation

__all__ = ["Disturbance", "simulate"]


@dataclass(frozen=True, slots=True)
class Disturbance:
    """From `at_s` on the device takes `factor` times as long; infinity: it is dead."""

    device: int
    at_s: float
    factor: float = math.inf


def simulate(
    plan: Pipeline,
    *,
    frames: int = 1000,
    arrival_s: float | None = None,
    jitter: float = 0.0,
    seed: int = 0,
    disturbances: Sequence[Disturbance] = (),
    in_flight: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Simulation:
    """Run `frames` frames through a plan.

    A frame comes every `arrival_s` seconds (None: one is always waiting). `jitter` is the coefficient of variation of
    computing times, log-normal with mean 1, drawn from `seed`. At most `in_flight` frames are inside at once where one
    is always waiting; latencies grow with it (default: one more than fit into a latency; where frames can hold each
    other up twice that and two, and six for every block of a stage of several). `progress` is told how many frames
    have left. Raises UsageError for arguments without sense, UnsupportedError without SimPy."""
    if (
        frames < 1
        or not 0 <= jitter <= 100
        or (arrival_s is not None and arrival_s <= 0)
        or (in_flight is not None and in_flight < 1)
    ):
        raise UsageError("simulate needs at least one frame, a jitter from 0 to 100 and an arrival above 0 s")
    for disturbance in disturbances:
        if not 0 <= disturbance.device < len(plan.cluster.devices) or disturbance.at_s < 0 or disturbance.factor <= 0:
            raise UsageError(
                f"a disturbance of device {disturbance.device} at {disturbance.at_s:g} s by {disturbance.factor:g}: "
                f"the plan has {len(plan.cluster.devices)} devices, times are 0 or more, factors above 0"
            )
    simpy = optional_library("simpy", what="the simulator", extra="sim")
    run = _Run(plan, simpy.Environment(), simpy, jitter, seed, disturbances, progress or (lambda _: None))
    fitting = math.ceil(plan.latency_s / plan.period_s - 1e-9) + 1 if plan.period_s > 0 else 1
    contended = jitter > 0 or plan.cluster.network.overlap or plan.cluster.network.kind == "shared"
    # Frames that hold each other up need room at every block of a stage: less, and the busiest waits at times.
    several = sum(len(stage.blocks) for stage in plan.stages if len(stage.blocks) > 1)
    window = in_flight or (2 * fitting + 2 + 6 * several if contended else fitting)
    run.env.process(run.source(frames, arrival_s, window))
    run.env.run()
    return run.result(frames, window)


class _Run:
    def __init__(
        self, plan: Pipeline, env: Any, simpy: Any, jitter: float, seed: int, disturbances: Sequence[Disturbance],
        progress: Callable[[int], None],
    ) -> None:  # fmt: skip
        self.plan, self.env, self.simpy = plan, env, simpy
        self.jitter, self.random = jitter, random.Random(seed)
        self.disturbances = sorted(disturbances, key=lambda item: item.at_s)
        self.dead = [_dead(self.disturbances, device) for device in range(len(plan.cluster.devices))]
        self.steps = [_steps(plan, stage) for stage in range(len(plan.stages))]
        self.overlap = plan.cluster.network.overlap
        resource = simpy.PriorityResource
        self.medium = resource(env, 1) if plan.cluster.network.kind == "shared" else None
        # Overlapping stages have one worker that computes and one that transfers; others a single one for both.
        self.workers = [resource(env, 1) for _ in plan.stages]
        self.radios = [resource(env, 1) for _ in plan.stages]
        self.busy = [0.0] * len(plan.cluster.devices)
        self.begun: dict[int, float] = {}
        self.left: list[float] = []
        self.latencies: list[float] = []
        self.stalled_at: float | None = None
        self.progress = progress

    def source(self, frames: int, arrival_s: float | None, in_flight: int) -> Iterator[Any]:
        tokens = self.simpy.Resource(self.env, in_flight)
        for frame in range(frames):
            if arrival_s is not None and frame:
                yield self.env.timeout(arrival_s)
            if arrival_s is None:
                token = tokens.request()
                yield token
            else:
                token = None
            self.env.process(self.frame(frame, tokens, token))

    def frame(self, frame: int, tokens: Any, token: Any) -> Iterator[Any]:
        for index, stage in enumerate(self.plan.stages):
            if self.overlap:
                yield from self.overlapped(frame, index, stage)
            else:
                with self.workers[index].request(priority=frame) as turn:
                    yield turn
                    self.begin(frame)
                    yield from self.whole_stage(frame, index, stage)
        self.left.append(self.env.now)
        self.progress(len(self.left))
        self.latencies.append(self.env.now - self.begun.pop(frame))
        if token is not None:
            tokens.release(token)

    def begin(self, frame: int) -> None:
        """Its latency counts from here: waiting for the first stage is the source's, not the pipeline's."""
        self.begun.setdefault(frame, self.env.now)

    def whole_stage(self, frame: int, index: int, stage: PipelineStage) -> Iterator[Any]:
        yield from self.reached([stage.leader], 0.0)
        for transfers, strips in self.steps[index]:
            if transfers:
                yield from self.transfer(frame, transfers)
            if strips:
                yield from self.compute(strips)

    def overlapped(self, frame: int, index: int, stage: PipelineStage) -> Iterator[Any]:
        yield from self.reached([stage.leader], 0.0)
        for transfers, strips in self.steps[index]:
            if transfers:
                with self.radios[index].request(priority=frame) as turn:
                    yield turn
                    self.begin(frame)
                    yield from self.transfer(frame, transfers)
            if strips:
                with self.workers[index].request(priority=frame) as turn:
                    yield turn
                    self.begin(frame)
                    yield from self.compute(strips)

    def transfer(self, frame: int, transfers: Sequence[Transfer]) -> Iterator[Any]:
        ends = sorted({device for transfer in transfers for device in (transfer.source, transfer.target)})
        seconds = round_seconds(self.plan.cluster, transfers)
        if self.medium is None:
            yield from self.reached(ends, seconds)
            return
        with self.medium.request(priority=frame) as turn:
            yield turn
            done = self.while_alive(ends, self.env.now, seconds)
            if done < math.inf:
                yield self.env.timeout(done - self.env.now)
                return
            yield self.env.timeout(max(0.0, self.died(ends) - self.env.now))
        yield from self.reached(ends, 0.0)  # never; the others have the network again

    def reached(self, devices: Sequence[int], seconds: float) -> Iterator[Any]:
        """Wait until all these devices were alive for so long."""
        done = self.while_alive(devices, self.env.now, seconds)
        if done == math.inf:
            yield from self.stall(devices)
        if done > self.env.now:
            yield self.env.timeout(done - self.env.now)

    def stall(self, devices: Sequence[int]) -> Iterator[Any]:
        if self.stalled_at is None:
            self.stalled_at = max(self.env.now, self.died(devices))
        yield self.env.event()  # never comes

    def died(self, devices: Sequence[int]) -> float:
        return min(start for device in devices for start, stop in self.dead[device] if stop == math.inf)

    def while_alive(self, devices: Sequence[int], begin: float, seconds: float) -> float:
        """When something of `seconds` that starts at `begin`, and rests while one of the devices is dead, is done."""
        now, left = begin, seconds
        for start, stop in sorted(interval for device in devices for interval in self.dead[device]):
            if stop <= now or (start > now and start >= now + left):
                continue
            now, left = stop, left - max(0.0, start - now)
        return now + left

    def compute(self, strips: Sequence[Strip]) -> Iterator[Any]:
        by_device: dict[int, float] = {}
        for strip in strips:
            named = self.plan.cluster.devices[strip.device]
            seconds = strip.macs / named.speed if self.plan.comm == "paper" else compute_s(named, strip)
            by_device[strip.device] = by_device.get(strip.device, 0.0) + seconds
        longest = 0.0
        for device, alone in by_device.items():
            seconds = alone * self.noise()
            ends = self.ends(device, self.while_alive([device], self.env.now, 0.0), seconds)
            if ends == math.inf:
                yield from self.stall([device])
            self.busy[device] += ends - self.env.now
            longest = max(longest, ends - self.env.now)
        yield self.env.timeout(longest)

    def noise(self) -> float:
        if self.jitter == 0:
            return 1.0
        variance = math.log1p(self.jitter**2)
        return self.random.lognormvariate(-variance / 2, math.sqrt(variance))

    def ends(self, device: int, begin: float, seconds: float) -> float:
        """When work of `seconds` at full speed that starts at `begin` is done, the device changing speed on the way."""
        now, left, factor = begin, seconds, 1.0
        for change in self.disturbances:
            if change.device != device:
                continue
            if change.at_s > now and left > 0:
                done = (change.at_s - now) / factor if factor != math.inf else 0.0
                if done >= left:
                    return now + left * factor
                left, now = left - done, change.at_s
            factor = change.factor
        return now + left * factor if left > 0 else now

    def result(self, frames: int, window: int) -> Simulation:
        completed = len(self.left)
        end = self.left[-1] if self.left else self.env.now
        # Not while the pipeline fills, nor while it drains: the last frames meet nobody behind them.
        filled = min(max(completed // 5, window), max(completed - 2, 0))
        drained = max(completed - 1 - window, filled + 1)
        last = min(drained, completed - 1)
        period = (self.left[last] - self.left[filled]) / (last - filled) if last > filled else end
        ordered = sorted(self.latencies)
        spans = (
            [ordered[min(completed - 1, math.ceil(q * completed) - 1)] for q in (0.5, 0.9, 0.99, 1.0)]
            if ordered
            else [0.0] * 4
        )
        devices = self.plan.cluster.devices
        utilisation = tuple(min(1.0, busy / end) if end else 0.0 for busy in self.busy)
        macs, redundant = [0] * len(devices), [0] * len(devices)
        for stage in self.plan.stages:
            for block in stage.blocks:
                for strip in block.strips:
                    macs[strip.device] += strip.macs
                    redundant[strip.device] += strip.redundant_macs
        redundancy = tuple(part / all_ if all_ else 0.0 for part, all_ in zip(redundant, macs, strict=True))
        energy = 0.0 if completed else None
        for device, busy in zip(devices, self.busy, strict=True):
            if energy is None or device.power_busy_w is None or device.power_idle_w is None:
                energy = None
                break
            worked = min(busy, end)
            energy += (worked * device.power_busy_w + (end - worked) * device.power_idle_w) / completed
        return Simulation(
            frames, completed, period, (spans[0], spans[1], spans[2], spans[3]), utilisation, redundancy, energy, end,
            self.stalled_at, window,
        )  # fmt: skip


def _dead(disturbances: Sequence[Disturbance], device: int) -> list[tuple[float, float]]:
    """When a device is dead: from a factor of infinity to its next one, if there is any."""
    own = [change for change in disturbances if change.device == device]
    own = [change for at, change in enumerate(own) if not at or change.factor != own[at - 1].factor]
    stops = [*(change.at_s for change in own[1:]), math.inf]
    return [(change.at_s, stop) for change, stop in zip(own, stops, strict=False) if change.factor == math.inf]


def _steps(plan: Pipeline, stage: int) -> list[tuple[list[Transfer], list[Strip]]]:
    """A stage as rounds: transfers, or the strips of a block. Tasks of a round do not wait for each other."""
    found: list[tuple[list[Transfer], list[Strip]]] = []
    members: list[int] = []
    for number, task in enumerate(plan.tasks):
        if task.stage != stage:
            continue
        first = plan.tasks[members[0]] if members else task
        alike = (first.block, first.transfer is None) == (task.block, task.transfer is None)
        if not members or not alike or set(task.after) & set(members):
            found.append(([], []))
            members = []
        members.append(number)
        if task.transfer is not None:
            found[-1][0].append(task.transfer)
        else:
            found[-1][1].append(plan.stages[stage].blocks[task.block].strips[task.strip])
    return found
