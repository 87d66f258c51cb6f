"""Simulates plans: how often frames leave, how long they take, what devices do, and what is left when one dies.

The simulator reads a plan and its cluster and uses nothing of the planners. Transfers, orders and buffers are the
plan's; times are priced from its MACs, bytes and cluster (`results.task_times`). Plans with orders run in `plan_run`,
plans by the paper's equations in `paper_run`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from downset.distributed.paper_run import run_paper
from downset.distributed.plan_run import run_plan
from downset.distributed.simulated_run import Conditions, Disturbance, RunRecord
from downset.errors import InvalidPlan, UsageError
from downset.results.pipelines import Pipeline
from downset.results.serving import Simulation, percentiles
from downset.results.task_times import plan_seconds
from downset.text import unheard

__all__ = ["Disturbance", "simulate"]

_PACE = 0.95
"""The share of the sustained rate at which frames arrive in the run for latencies."""
_PACED_TASKS = 2_000_000
"""About how many tasks are simulated for latencies. Empty frames cost as much as others."""


def simulate(  # noqa: PLR0913 - users know its keywords
    plan: Pipeline,
    *,
    frames: int = 1000,
    arrival_s: float | None = None,
    jitter: float = 0.0,
    seed: int = 0,
    disturbances: Sequence[Disturbance] = (),
    progress: Callable[[int, int], None] | None = None,
    observe: Callable[[int, int, float, float], None] | None = None,
) -> Simulation:
    """Run `frames` frames through a plan.

    A saturated run without disturbances, in which a frame is always waiting, gives the period that the plan sustains.
    `arrival_s`: seconds between two arriving frames. None: a frame is always waiting, and a further run at 0.95 of the
    sustained rate gives the latencies. `jitter`: the coefficient of variation of computing times, log-normal with mean
    1, drawn from `seed`. `progress` is called with the number of frames that have left, and with the most that may
    leave in all runs. `observe` is called with (frame, task, begin, end) for the tasks of the requested run, for plans
    with a schedule. Raises UsageError for arguments out of range, InvalidPlan for orders that cannot be followed."""
    _check(plan, frames, arrival_s, jitter, disturbances)
    runs = _Runs(plan, frames, jitter, seed, progress or unheard, observe)
    runs.planned = 1 + (arrival_s is not None or bool(disturbances)) + (arrival_s is None)
    saturated = runs.run(frames, None, (), observed=arrival_s is None and not disturbances)
    sustained_s = _period_s(saturated)
    if arrival_s is None:
        main_run = runs.run(frames, None, disturbances, observed=True) if disturbances else saturated
        pace_s = (sustained_s or plan.period_s) / _PACE
        latest = runs.run(_paced_frames(plan, frames), pace_s, disturbances) if pace_s > 0 else main_run
    else:
        pace_s = arrival_s
        main_run = latest = runs.run(frames, arrival_s, disturbances, observed=True)
    return _summary(plan, frames, main_run, latest, sustained_s, pace_s)


def _check(
    plan: Pipeline, frames: int, arrival_s: float | None, jitter: float, disturbances: Sequence[Disturbance]
) -> None:
    for task, seconds in zip(plan.tasks, plan_seconds(plan), strict=True):
        if not 0 <= seconds < math.inf:
            raise InvalidPlan(f"a task of stage {task.stage} takes {seconds} s")
    if not 1 <= frames < math.inf:
        raise UsageError(f"frames must be at least 1; given {frames:g}")
    if not 0 <= jitter <= 100:
        raise UsageError(f"jitter must be from 0 to 100; given {jitter:g}")
    if arrival_s is not None and not 0 < arrival_s < math.inf:
        raise UsageError(f"arrival_s must be above 0 s; given {arrival_s:g}")
    for disturbance in disturbances:
        if not 0 <= disturbance.device < len(plan.cluster.devices) or not (
            disturbance.at_s >= 0 and disturbance.factor > 0
        ):
            raise UsageError(
                f"a disturbance of device {disturbance.device} at {disturbance.at_s:g} s by {disturbance.factor:g}: "
                f"the plan has {len(plan.cluster.devices)} devices, times must be 0 or more, factors above 0"
            )


def _paced_frames(plan: Pipeline, frames: int) -> int:
    window = 1 if plan.schedule is None else plan.schedule.window
    return min(frames, max(100, _PACED_TASKS // max(window * len(plan.tasks), 1)))


@dataclass(slots=True)
class _Runs:
    """The runs of one simulation, each with the same jitter."""

    plan: Pipeline
    frames: int
    jitter: float
    seed: int
    progress: Callable[[int, int], None]
    observe: Callable[[int, int, float, float], None] | None = None
    planned: int = 1
    left: int = 0

    def run(
        self, frames: int, arrival_s: float | None, disturbances: Sequence[Disturbance], *, observed: bool = False
    ) -> RunRecord:
        devices = len(self.plan.cluster.devices)
        conditions = Conditions(devices, jitter=self.jitter, seed=self.seed, disturbances=disturbances)
        if self.plan.schedule is None:
            return run_paper(
                self.plan, conditions, frames=frames, arrival_s=arrival_s, jitters=self.jitter > 0, progress=self.tell
            )
        return run_plan(
            self.plan,
            conditions,
            frames=frames,
            arrival_s=arrival_s,
            progress=self.tell,
            observe=self.observe if observed else None,
        )

    def tell(self) -> None:
        self.left += 1
        self.progress(self.left, self.planned * self.frames)


def _period_s(record: RunRecord) -> float | None:
    """Mean seconds between frames that left, without the first fifth and without the times in which the pipeline fills
    or drains.

    If the run stalled, only frames that left before count; None if they are too few."""
    stalled = record.stalled_at_s
    left = [when for _, when in record.left if stalled is None or when <= stalled]
    count, drains = len(left), stalled is None
    if count < 2 or (stalled is not None and count < 3 * record.window + 3):
        return None
    first = min(max(count // 5, record.window), count - 2)
    last = min(max(count - 1 - (record.window if drains else 0), first + 1), count - 1)
    return (left[last] - left[first]) / (last - first)


def _summary(
    plan: Pipeline, frames: int, main_run: RunRecord, latest: RunRecord, sustained_s: float | None, pace_s: float
) -> Simulation:
    end = max([main_run.stalled_at_s or 0.0, *(when for _, when in main_run.left[-1:])])
    waiting = latest.waiting()
    macs, redundant = [0] * len(plan.cluster.devices), [0] * len(plan.cluster.devices)
    for strip in (strip for stage in plan.stages for block in stage.blocks for strip in block.strips):
        macs[strip.device] += strip.macs
        redundant[strip.device] += strip.redundant_macs
    return Simulation(
        frames=frames,
        completed=len(main_run.left),
        period_s=_period_s(main_run),
        latency_s=percentiles(latest.latencies_s()),
        utilisation=_shares(main_run.computing_s, end),
        redundancy=tuple(part / whole if whole else 0.0 for part, whole in zip(redundant, macs, strict=True)),
        energy_j=_energy_j(plan, main_run, end),
        seconds=end,
        stalled_at_s=main_run.stalled_at_s,
        window=main_run.window,
        sending=_shares(main_run.sending_s, end),
        receiving=_shares(main_run.receiving_s, end),
        buffer_bytes=tuple(main_run.most_buffer_bytes),
        sustained_period_s=sustained_s,
        arrival_s=pace_s,
        most_waiting=max(waiting, default=0),
        last_waiting=waiting[-1] if waiting else 0,
    )


def _shares(seconds: Sequence[float], end: float) -> tuple[float, ...]:
    return tuple(min(1.0, part / end) if end else 0.0 for part in seconds)


def _energy_j(plan: Pipeline, record: RunRecord, end: float) -> float | None:
    total = 0.0
    for device, busy in zip(plan.cluster.devices, record.busy_s, strict=True):
        if not record.left or device.power_busy_w is None or device.power_idle_w is None:
            return None
        worked = min(busy, end)
        total += worked * device.power_busy_w + (end - worked) * device.power_idle_w
    return total / len(record.left)
