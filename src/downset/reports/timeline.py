"""Timelines of devices and lanes: pipelines and stages as slices of time, which pages and traces draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from downset.results.pipelines import Pipeline, PipelineSchedule, Resource, Task
from downset.results.plans import StagePlan
from downset.results.serving import RanTask
from downset.results.task_times import occupied_seconds, plan_seconds
from downset.text import format_bytes, printable

__all__ = [
    "Slice",
    "Timeline",
    "busiest_resource",
    "measured_timeline",
    "planned_timeline",
    "resource_name",
    "simulated_timeline",
    "stage_timeline",
    "task_name",
]

PERIODS_SHOWN = 3
_DOING = ("computing", "sending", "receiving")


@dataclass(frozen=True, slots=True)
class Slice:
    """An activity of a lane from `start_s` to `stop_s`. `frame`: the number of a frame of a pipeline, or of a stage.
    `task`: its index in the plan, or the number of a unit."""

    lane: int
    start_s: float
    stop_s: float
    name: str
    frame: int
    task: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Slices of `lanes` from 0 to `end_s`. `note`: whether the times are planned, simulated or measured."""

    heading: str
    lanes: tuple[str, ...]
    slices: tuple[Slice, ...]
    end_s: float
    note: str = ""


def planned_timeline(plan: Pipeline) -> Timeline:
    """The plan's cyclic order of work in its steady state, over a few periods; for a plan without orders one frame
    alone."""
    lanes = _lanes(plan)
    seconds = plan_seconds(plan)
    if plan.schedule is None or plan.period_s <= 0:
        starts = _alone(plan, seconds)
        end = max((start + took for start, took in zip(starts, seconds, strict=True)), default=0.0)
        slices = [
            piece
            for index, start in enumerate(starts)
            for piece in _pieces(plan, lanes, index, 0, start, start + seconds[index])
        ]
        return _timeline("planned", plan, lanes, slices, end, "one frame alone, by the paper's equations (analytic)")
    occupied = occupied_seconds(plan)
    starts = _steady_starts(plan, plan.schedule, seconds, occupied)
    end = PERIODS_SHOWN * plan.period_s
    shift = max(starts, default=0.0)  # the first frame shown then has others ahead of it
    slices = []
    for index, start in enumerate(starts):
        behind = math.floor((start - shift) / plan.period_s)
        for frame in range(-behind - 1, PERIODS_SHOWN + 1 - behind):
            begin = start - shift + frame * plan.period_s
            slices += _pieces(plan, lanes, index, frame, max(begin, 0.0), min(begin + occupied[index], end))
    first = min((piece.frame for piece in slices), default=0)
    slices = [replace(piece, frame=piece.frame - first) for piece in slices]
    return _timeline("planned", plan, lanes, slices, end, f"{PERIODS_SHOWN} periods of its steady state (analytic)")


def simulated_timeline(plan: Pipeline, ran: Iterable[RanTask]) -> Timeline:
    """The tasks that a simulation observed, over a few periods in its middle. A message is drawn while it occupies the
    network."""
    occupied = [
        math.inf if task.transfer is None or seconds == whole else seconds
        for task, whole, seconds in zip(plan.tasks, plan_seconds(plan), occupied_seconds(plan), strict=True)
    ]
    drawn = ((frame, task, begin, min(end, begin + occupied[task])) for frame, task, begin, end in ran)
    return _middle("simulated", plan, drawn, plan.period_s, "(simulated)")


def measured_timeline(plan: Pipeline, ran: Iterable[RanTask], period_s: float | None) -> Timeline:
    """The tasks that devices ran by the plan, over a few measured periods in the middle of the record. A task ends when
    the driver hears of it."""
    note = "(measured; a task ends when the driver hears of it)"
    return _middle("measured", plan, ran, period_s or plan.period_s, note)


def _middle(heading: str, plan: Pipeline, ran: Iterable[RanTask], period_s: float, title: str) -> Timeline:
    observed = sorted(ran, key=lambda item: item[2])
    first = observed[0][2] if observed else 0.0
    last = max((end for _, _, _, end in observed), default=0.0)
    period = period_s or last or 1.0
    begin = max(first, min(0.5 * (first + last), last - PERIODS_SHOWN * period))
    end = begin + PERIODS_SHOWN * period
    lanes = _lanes(plan)
    slices = []
    for frame, index, start, stop in observed:
        if stop > begin and start < end:
            slices += _pieces(plan, lanes, index, frame, max(start, begin) - begin, min(stop, end) - begin)
    note = f"{PERIODS_SHOWN} periods from {begin:.4g} s on {title}"
    return _timeline(heading, plan, lanes, slices, end - begin, note)


def stage_timeline(plan: StagePlan, unit_s: Sequence[float] = (), unit_names: Sequence[str] = ()) -> Timeline:
    """The lanes of the stages: groups of a stage side by side, stages one after another. Units have the lengths that
    they took alone if that was measured, else equal lengths."""
    has_times = len(unit_s) == len(plan.units)
    took = list(unit_s) if has_times else [1.0] * len(plan.units)
    names = [f"unit {unit}" for unit in range(len(plan.units))]
    if len(unit_names) == len(plan.units):
        names = [f"{name} ({printable(unit_name)})" for name, unit_name in zip(names, unit_names, strict=True)]
    lanes = max((1 if stage.merged else len(stage.groups) for stage in plan.stages), default=1)
    slices, now = [], 0.0
    for number, stage in enumerate(plan.stages):
        if stage.merged:
            length = max((took[unit] for unit in stage.units), default=0.0)
            name = f"stage {number}: {', '.join(names[unit] for unit in stage.units)} merged"
            slices.append(Slice(0, now, now + length, name, number, stage.units[0]))
            now += length
            continue
        longest = now
        for lane, group in enumerate(stage.groups):
            start_s = now
            for unit in group:
                name = f"stage {number}: {names[unit]}"
                slices.append(Slice(lane, start_s, start_s + took[unit], name, number, unit))
                start_s += took[unit]
            longest = max(longest, start_s)
        now = longest
    note = (
        "each unit as long as alone (measured); units side by side may take longer."
        if has_times
        else "every unit as long as every other; their times are not known."
    )
    return Timeline("stages", tuple(f"lane {lane}" for lane in range(lanes)), tuple(slices), now, note)


def busiest_resource(plan: Pipeline) -> tuple[str, float] | None:
    """The resource with the most work for a frame, and its seconds; None without a schedule."""
    if plan.schedule is None or not plan.schedule.orders:
        return None
    took = occupied_seconds(plan)
    loads = [(sum(took[turn.task] for turn in order.turns), order.resource) for order in plan.schedule.orders]
    seconds, resource = max(loads, key=lambda item: item[0])
    return resource_name(plan, resource), seconds


def resource_name(plan: Pipeline, resource: Resource) -> str:
    """A name of a resource: "processor of rpi_3", "the medium"."""
    if resource.device < 0:
        return "the medium"
    device = printable(plan.cluster.devices[resource.device].name)
    return device if resource.kind == "device" else f"{resource.kind} of {device}"


def task_name(plan: Pipeline, task: Task) -> str:
    """A description of a task."""
    where = f"stage {task.stage}, block {task.block}"
    names = plan.cluster.devices
    if task.transfer is not None:
        ends = f"{printable(names[task.transfer.source].name)} to {printable(names[task.transfer.target].name)}"
        return f"{where}: {ends}, {format_bytes(task.transfer.nbytes)} B"
    strip = plan.stages[task.stage].blocks[task.block].strips[task.strip]
    return f"{where}: rows {strip.start}-{strip.stop}, {strip.macs / 1e6:,.3g} MMACs"


Lanes = dict[tuple[int, str], int]


def _lanes(plan: Pipeline) -> Lanes:
    """The lanes in use: the activities of each device, computing first."""
    used: set[tuple[int, str]] = set()
    for task in plan.tasks:
        if task.transfer is None:
            used.add((task.device, "computing"))
        else:
            used |= {(task.transfer.source, "sending"), (task.transfer.target, "receiving")}
    ordered = sorted(used, key=lambda item: (item[0], _DOING.index(item[1])))
    return {key: lane for lane, key in enumerate(ordered)}


def _pieces(plan: Pipeline, lanes: Lanes, index: int, frame: int, start: float, stop: float) -> list[Slice]:
    if stop <= start:
        return []
    task = plan.tasks[index]
    name = task_name(plan, task)
    if task.transfer is None:
        return [Slice(lanes[task.device, "computing"], start, stop, name, frame, index)]
    ends = ((task.transfer.source, "sending"), (task.transfer.target, "receiving"))
    return [Slice(lanes[end], start, stop, name, frame, index) for end in ends]


def _timeline(heading: str, plan: Pipeline, lanes: Lanes, slices: list[Slice], end: float, note: str) -> Timeline:
    words = {"computing": "", "sending": " out", "receiving": " in"}  # a name's end tells devices apart
    names = tuple(f"{printable(plan.cluster.devices[device].name)}{words[doing]}" for device, doing in lanes)
    return Timeline(heading, names, tuple(sorted(slices, key=lambda one: (one.lane, one.start_s))), end, note)


def _alone(plan: Pipeline, seconds: Sequence[float]) -> list[float]:
    """When each task of a lone frame starts, if its device and transfers do one task at a time in task order."""
    starts, free = [0.0] * len(seconds), dict[int, float]()
    for index, task in enumerate(plan.tasks):
        ends = (task.device,) if task.transfer is None else (task.transfer.source, task.transfer.target)
        ready = [starts[other] + seconds[other] for other in task.after] + [free.get(end, 0.0) for end in ends]
        starts[index] = max(ready, default=0.0)
        free |= dict.fromkeys(ends, starts[index] + seconds[index])
    return starts


def _steady_starts(
    plan: Pipeline, schedule: PipelineSchedule, seconds: Sequence[float], occupied: Sequence[float]
) -> list[float]:
    """The earliest starts of frame 0 that keep every order, buffer and window at the plan's period: longest paths by
    relaxation, which ends because no cycle has a positive sum. O(tasks · arcs) at worst."""
    arcs: list[tuple[int, int, float]] = []
    period = plan.period_s * (1 + 1e-9)
    for number, task in enumerate(plan.tasks):
        arcs += [(other, number, seconds[other]) for other in task.after]
    for order in schedule.orders:
        for one, two in pairwise(order.turns):
            arcs.append((one.task, two.task, occupied[one.task] - (one.behind - two.behind) * period))
        if order.turns:
            last, first = order.turns[-1], order.turns[0]
            arcs.append((last.task, first.task, occupied[last.task] - (1 + last.behind - first.behind) * period))
    for buffer in schedule.buffers:
        arcs += [(one, two, seconds[one] - buffer.slots * period) for one in buffer.users for two in buffer.writers]
    entries = [number for number, task in enumerate(plan.tasks) if not task.after]
    for number, took in enumerate(seconds):  # a frame is let in when an earlier one, a window before, has left
        arcs += [(number, entry, took - schedule.window * period) for entry in entries]
    starts = [0.0] * len(seconds)
    for _ in range(len(seconds) + 1):
        changed = False
        for tail, head, length in arcs:
            if starts[tail] + length > starts[head] + 1e-12:
                starts[head], changed = starts[tail] + length, True
        if not changed:
            break
    return starts
