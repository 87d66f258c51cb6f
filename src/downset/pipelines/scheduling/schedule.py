"""Cyclic schedules of least period: the order in which every resource does its work, round after round.

Source: modulo scheduling (Rau, MICRO 1994), and for ends that form trees the colouring of their edges on a circle.
Names: P → the period tried; phase → a task's start modulo P; behind → the number of rounds by which a frame gets to a
task late.
If enough frames may be inside, what a task waits for in its frame only decides in which round it runs. So any phases at
which no resource is taken twice are a schedule of period P. If transfers form a tree of ends, a walk over the tree that
puts the arcs of an end one behind the other always finds such phases at the load bound: the first arc of an end leaves
one free arc, into which all its other arcs fit. Otherwise periods above the bound are tried one after another.
Complexity: O(tasks² · log tasks) for each period, rule and order tried, plus computing the period of the orders found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from downset.budget import Clock
from downset.pipelines.scheduling.circle import Circle
from downset.pipelines.scheduling.events import (
    Deadlock,
    Schedule,
    TimedTask,
    check_live,
    event_graph,
    period_s,
    window_needed,
)
from downset.pipelines.scheduling.loads import load_bound_s, loads_s
from downset.results.pipelines import Turn

__all__ = ["ScheduleResult", "cyclic_schedule", "lone_frame_s", "one_at_a_time", "sequence"]

_STEPS = (0.0, 1e-3, 3e-3, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
"""By how much the tried periods are above the load bound."""
_TRIES = 64
"""The most tries to place all tasks of a period, each in another order."""
_WALKED = 4
"""Walks along trees need several frames inside; with a smaller frame window they are not tried."""


@dataclass(frozen=True, slots=True)
class _SchedulingProblem:
    """The tasks, an order in which a frame can do them, and the medium, which all transfers hold in addition to both
    ends."""

    tasks: Sequence[TimedTask]
    resources: int
    order: Sequence[int]
    medium: int | None
    window: int | None
    clock: Clock | None

    def late(self) -> bool:
        return self.clock is not None and self.clock.late()

    def ends(self, index: int) -> list[int]:
        return [resource for resource in self.tasks[index].resources if resource != self.medium]


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """`period_s`: the period that the orders reach with the window. `bound_s`: the load bound, a lower bound for all
    orders."""

    schedule: Schedule
    period_s: float
    bound_s: float

    @property
    def tight(self) -> bool:
        return self.period_s <= self.bound_s * (1 + 1e-9)


def cyclic_schedule(
    tasks: Sequence[TimedTask],
    resources: int,
    *,
    medium: int | None = None,
    window: int | None = None,
    clock: Clock | None = None,
) -> ScheduleResult:
    """The best orders found with at most `window` frames inside (None: as many as help); of equal periods the orders
    that need the fewest frames. A larger window never gives a longer period. `medium`: the resource that transfers hold
    in addition to both ends, if there is one. At the end of the clock the best orders so far, at worst
    one frame after another."""
    order = sequence(tasks)
    work = _SchedulingProblem(tasks, resources, order, medium, window, clock)
    bound = load_bound_s(tasks, resources)
    serial = one_at_a_time(tasks, resources, order)
    longest = max(bound, lone_frame_s(tasks, serial))
    best = ScheduleResult(serial, longest, bound)
    if best.tight or bound == 0 or window == 1 or work.late():
        return best
    best = min(best, _timed(work, serial, bound), key=_rank)
    for step in _STEPS:
        period = bound * (1 + step)
        if best.tight or period >= longest:
            break
        for phases in _candidates(work, period, exact=step == 0):
            schedule = _from_phases(work, phases, period)
            if schedule is not None:
                best = min(best, _timed(work, schedule, bound), key=_rank)
            if work.late():
                return best
    return best


def _candidates(work: _SchedulingProblem, period: float, *, exact: bool) -> Iterator[list[float]]:
    """Phases to judge. The candidates of a window are candidates of all larger windows too."""
    yield from _as_ready(work, period)
    yield from _longest_first(work, period)
    if exact and (work.window is None or work.window >= _WALKED):
        yield from _along_trees(work, period)


def _rank(schedule: ScheduleResult) -> tuple[float, int]:
    """The key by which shorter periods come first, up to rounding, then fewer frames inside."""
    return (float(f"{schedule.period_s:.9g}"), schedule.schedule.window)


def _timed(work: _SchedulingProblem, schedule: Schedule, bound: float) -> ScheduleResult:
    tasks, window = work.tasks, work.window
    period = period_s(event_graph(tasks, schedule, window=False), at_least=bound)
    needed = window_needed(tasks, schedule, period, clock=work.clock)
    if window is None or needed <= window:
        return ScheduleResult(Schedule(schedule.orders, needed), period, bound)
    narrower = Schedule(schedule.orders, window)
    return ScheduleResult(narrower, period_s(event_graph(tasks, narrower), at_least=period), bound)


def sequence(tasks: Sequence[TimedTask]) -> list[int]:
    """The tasks in an order in which a frame can do them: next is the task that can start earliest, of equals the
    lowest."""
    done_s = [0.0] * len(tasks)
    waiting = [len(set(task.after)) for task in tasks]
    followers: list[list[int]] = [[] for _ in tasks]
    for index, task in enumerate(tasks):
        for other in set(task.after):
            followers[other].append(index)
    ready = {index for index, count in enumerate(waiting) if not count}
    free_s: dict[int, float] = {}
    order = []
    while ready:
        starts = {
            index: max(
                [
                    *(done_s[other] for other in tasks[index].after),
                    *(free_s.get(r, 0.0) for r in tasks[index].resources),
                    0.0,
                ]
            )
            for index in ready
        }
        index = min(ready, key=lambda one: (starts[one], one))
        ready.remove(index)
        order.append(index)
        done_s[index] = starts[index] + tasks[index].lasts_s
        for resource in tasks[index].resources:
            free_s[resource] = starts[index] + tasks[index].seconds
        for follower in followers[index]:
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.add(follower)
    if len(order) < len(tasks):
        raise Deadlock([index for index, count in enumerate(waiting) if count])
    return order


def one_at_a_time(tasks: Sequence[TimedTask], resources: int, order: Sequence[int]) -> Schedule:
    """Orders in which every resource does all work of a frame, in the order given, before that of the next. With a
    window of 1 one frame follows another."""
    orders = tuple(
        tuple(Turn(index, 0) for index in order if resource in tasks[index].resources) for resource in range(resources)
    )
    return Schedule(orders, 1)


def lone_frame_s(tasks: Sequence[TimedTask], schedule: Schedule) -> float:
    """Seconds of a frame that meets no other frame, if each resource does its tasks in the order of the schedule."""
    turn_before: list[list[int]] = [[] for _ in tasks]
    for turns in schedule.orders:
        own = [turn.task for turn in sorted(turns, key=lambda turn: turn.behind)]
        for first, second in pairwise(own):
            turn_before[second].append(first)
    start: dict[int, float] = {}
    for index in sequence(
        [TimedTask(task.seconds, (), (*task.after, *turns)) for task, turns in zip(tasks, turn_before, strict=True)]
    ):
        done = [start[other] + tasks[other].lasts_s for other in tasks[index].after]
        free = [start[other] + tasks[other].seconds for other in turn_before[index]]
        start[index] = max([*done, *free], default=0.0)
    return max((start[index] + task.lasts_s for index, task in enumerate(tasks)), default=0.0)


def _from_phases(work: _SchedulingProblem, phases: Sequence[float], period: float) -> Schedule | None:
    """The orders by phase. Each task is behind by as many rounds as the tasks that it waits for require."""
    tasks, grid = work.tasks, 1e-9 * period
    ticks = [round(phase / grid) % round(period / grid) * grid for phase in phases]
    place = {index: number for number, index in enumerate(work.order)}
    behind = [0] * len(tasks)
    for index in work.order:
        ready = max((ticks[o] + behind[o] * period + tasks[o].lasts_s for o in tasks[index].after), default=0.0)
        behind[index] = max(0, math.ceil((ready - ticks[index]) / period - 1e-8))
    orders = []
    for resource in range(work.resources):
        own = [index for index, task in enumerate(tasks) if resource in task.resources]
        own.sort(key=lambda index: (ticks[index], place[index]))
        orders.append(tuple(Turn(index, behind[index]) for index in own))
    schedule = Schedule(tuple(orders), 1)
    try:
        check_live(event_graph(tasks, schedule, window=False))
    except Deadlock:  # tasks shorter than the grid
        return None
    return schedule


def _as_ready(work: _SchedulingProblem, period: float) -> Iterator[list[float]]:
    """Each task as soon as the tasks that it waits for are done (modulo scheduling), so that few frames are inside."""
    circle = Circle(work.resources, period)
    starts = [0.0] * len(work.tasks)
    for index in work.order:
        task = work.tasks[index]
        ready = max((starts[other] + work.tasks[other].lasts_s for other in task.after), default=0.0)
        start_s = circle.first_free(task.resources, task.seconds, ready)
        if start_s is None:
            return
        circle.take(task.resources, task.seconds, start_s)
        starts[index] = start_s
    yield [start % period for start in starts]


def _longest_first(work: _SchedulingProblem, period: float) -> Iterator[list[float]]:
    """Tasks with most resources first, then those of the busiest resources, wherever there is room. A task that finds
    none comes first in the next try (squeaky wheel optimisation, Joslin and Clements, 1999)."""
    loads = loads_s(work.tasks, work.resources)
    place = {index: number for number, index in enumerate(work.order)}

    def weight(index: int) -> tuple[float, ...]:
        task = work.tasks[index]
        busiest = max((loads[resource] for resource in task.resources), default=0.0)
        return (-len(task.resources), -busiest, -task.seconds, place[index])

    order = sorted(work.order, key=weight)
    for _ in range(_TRIES):
        circle, phases = Circle(work.resources, period), [0.0] * len(work.tasks)
        for position, index in enumerate(order):
            task = work.tasks[index]
            start_s = circle.first_free(task.resources, task.seconds, 0.0)
            if start_s is None:
                order.insert(0, order.pop(position))
                break
            phases[index] = circle.take(task.resources, task.seconds, start_s)
        else:
            yield phases
            return
        if work.late():
            return


def _along_trees(work: _SchedulingProblem, period: float) -> Iterator[list[float]]:
    """Walks from end to end that put the tasks of each pair and each end one behind the other: from the busiest end and
    from both far ends, along the order of a frame and against it."""
    loads = loads_s(work.tasks, work.resources)
    ends = [resource for resource in range(work.resources) if loads[resource] > 0 and resource != work.medium]
    partners: dict[int, list[int]] = {end: [] for end in ends}
    for index in work.order:
        for end in work.ends(index):
            partners.setdefault(end, []).extend(other for other in work.ends(index) if other != end)
    for root in dict.fromkeys(_roots(ends, partners, loads)):
        for order in (work.order, work.order[::-1]):
            phases = _PhaseSearch(work, order, partners, period).phases(root)
            if phases is not None:
                yield phases


def _roots(ends: Sequence[int], partners: dict[int, list[int]], loads: Sequence[float]) -> list[int]:
    """The busiest end, and the two ends of a longest path through a tree."""

    def farthest(start: int) -> int:
        reached = [start]
        for end in reached:
            reached += sorted(set(partners[end]) - set(reached))
        return reached[-1]

    if not ends:
        return []
    first = farthest(ends[0])
    return [max(ends, key=lambda end: loads[end]), first, farthest(first)]


class _PhaseSearch:
    """One walk over the ends that takes arcs on the way."""

    def __init__(
        self, work: _SchedulingProblem, order: Sequence[int], partners: dict[int, list[int]], period: float
    ) -> None:
        self.work, self.order, self.partners = work, order, partners
        self.circle = Circle(work.resources, period)
        self.placed: dict[int, float] = {}

    def phases(self, root: int) -> list[float] | None:
        """The phases of all tasks; None if a task found no room."""
        seen: set[int] = set()
        for first in (root, *self.partners):
            stack = [(first, 0.0)]
            while stack:
                end, wanted = stack.pop()
                if end in seen:
                    continue
                seen.add(end)
                reached = self.transfers_of(end, wanted)
                if reached is None:
                    return None
                stack += reached
        for index in self.order:  # tasks with one resource, behind those that they wait for
            before = max(
                (self.done(other) for other in self.work.tasks[index].after if other in self.placed), default=0.0
            )
            if index not in self.placed and self.put(index, before) is None:
                return None
        return [self.placed[index] for index in range(len(self.work.tasks))]

    def transfers_of(self, end: int, wanted: float) -> list[tuple[int, float]] | None:
        """Place the transfers of an end from `wanted` on. Returns its partners, each with the place where to go on;
        None if there is no room."""
        own: dict[int, list[int]] = {}
        for index in self.order:
            ends = self.work.ends(index)
            if end in ends and len(ends) > 1 and index not in self.placed:
                own.setdefault(next(other for other in ends if other != end), []).append(index)
        following = []
        # Partners without other partners come first, so that the walk goes on where this end's arcs end.
        for partner in sorted(own, key=lambda one: len(set(self.partners[one])) > 1):
            for index in own[partner]:
                stop = self.put(index, wanted)
                if stop is None:
                    return None
                wanted = stop
            following.append((partner, wanted))
        return following

    def put(self, index: int, wanted: float) -> float | None:
        task = self.work.tasks[index]
        start_s = self.circle.first_free(task.resources, task.seconds, wanted)
        if start_s is None:
            return None
        self.placed[index] = self.circle.take(task.resources, task.seconds, start_s)
        return start_s + task.seconds

    def done(self, index: int) -> float:
        return self.placed[index] + self.work.tasks[index].lasts_s
