"""How many frames every buffer must hold at once, which buffers may share bytes, and how long a frame takes alone.

A buffer with n slots makes its writers wait until fewer than n frames are in it: an arc of n frames in the event graph.
So the slots hold for every run of the plan, with any delays, and not only for the planned times.
Source: vector clocks (Fidge, Mattern, 1988), read backwards. A resource does one task at a time in a cyclic order, so
it is enough to know the first of its turns that come behind a task.
Names: turn → the place of (task, frame) in the endless order of its resource; clock → the first such turn of each
resource.
Complexity: O(arcs) for each step of each slot that is tried; O(arcs · resources) for each pass over the clocks, with a
few passes more than frames are inside; O(tasks²) and O(buffers²) for the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from downset.budget import Clock
from downset.pipelines.scheduling.events import (
    Deadlock,
    EventGraph,
    Schedule,
    TimedBuffer,
    TimedTask,
    check_live,
    earliest_starts,
    event_graph,
    period_s,
    positive_cycle,
)

__all__ = ["conflicts", "fewest_slots", "frames_between", "lone_latency_s"]


def fewest_slots(
    tasks: Sequence[TimedTask],
    schedule: Schedule,
    period: float,
    buffers: Sequence[TimedBuffer],
    *,
    clock: Clock | None = None,
) -> tuple[TimedBuffer, ...]:
    """The buffers with slots that keep the period. No single buffer can have one slot less.

    Each buffer first has as many slots as frames are in it if every task starts as early as it can. Then slots are
    taken away while the period stays, from the largest buffers first, until the end of the clock."""
    starts = earliest_starts(event_graph(tasks, schedule), period)
    slots = [_occupancy(tasks, starts, period, buffer, schedule.window) for buffer in buffers]
    counted = [replace(buffer, slots=count) for buffer, count in zip(buffers, slots, strict=True)]
    if period_s(event_graph(tasks, schedule, counted), at_least=period) > period * (1 + 1e-12):
        # Tasks of length 0 may wait for each other: with a slot for each frame inside, no buffer makes a task wait.
        slots = [schedule.window] * len(buffers)
    fewer = _Fewer(tasks, schedule, period, buffers, slots)
    for place in sorted(range(len(buffers)), key=lambda one: (-buffers[one].nbytes, one)):
        while slots[place] > 1 and not (clock and clock.late()) and fewer.keeps(place):
            slots[place] -= 1
    return tuple(replace(buffer, slots=count) for buffer, count in zip(buffers, slots, strict=True))


class _Fewer:
    """Whether the period stays with one slot less. From the known starts only nodes that move are followed."""

    def __init__(
        self,
        tasks: Sequence[TimedTask],
        schedule: Schedule,
        period: float,
        buffers: Sequence[TimedBuffer],
        slots: Sequence[int],
    ) -> None:
        slotted = [replace(buffer, slots=count) for buffer, count in zip(buffers, slots, strict=True)]
        plain = event_graph(tasks, schedule)
        arcs = [(one, two, place) for place, b in enumerate(slotted) for one in b.users for two in b.writers]
        tails, heads, owners = (
            np.array(column, np.int64) for column in (zip(*arcs, strict=True) if arcs else [()] * 3)
        )
        seconds = np.array([task.lasts_s for task in tasks])
        counts = np.array(slots, np.int64)
        owner = np.r_[np.full(len(plain.tails), -1), owners]
        head = np.r_[plain.heads, heads]
        order = np.argsort(head, kind="stable")
        self.owner = owner[order]
        self.graph = EventGraph(
            plain.tasks,
            np.r_[plain.tails, tails][order],
            head[order],
            np.r_[plain.seconds, seconds[tails]][order],
            np.r_[plain.frames, counts[owners]][order],
        )
        self.least = 1e-12 * max(period, float(seconds.max(initial=0.0)), 1e-300)
        # Cycles of tasks this short gain no more than rounding does: only `check_live` sees that they deadlock.
        self.instant = any(task.seconds <= 1e3 * self.least for task in tasks)
        for slack in (0.0, 1e-12, 1e-10, 1e-9):  # cycles of the period itself may gain by rounding
            self.period = period * (1 + slack)
            self.starts = np.full(plain.nodes, -math.inf)
            self.starts[plain.tasks] = 0.0
            if self._settles(self.graph, self.starts):
                break

    def keeps(self, place: int) -> bool:
        """Take one slot from the buffer if the period stays; whether it does."""
        fewer = replace(self.graph, frames=self.graph.frames - (self.owner == place))
        starts = self.starts.copy()
        if not self._settles(fewer, starts) or (self.instant and not _live(fewer)):
            return False
        self.graph, self.starts = fewer, starts
        return True

    def _settles(self, graph: EventGraph, starts: npt.NDArray[np.float64]) -> bool:
        weights = graph.seconds - self.period * graph.frames
        return positive_cycle(graph, weights, starts, self.least) is None


def _live(graph: EventGraph) -> bool:
    try:
        check_live(graph)
    except Deadlock:
        return False
    return True


def _occupancy(
    tasks: Sequence[TimedTask], starts: npt.NDArray[np.float64], period: float, buffer: TimedBuffer, window: int
) -> int:
    begin = min(float(starts[writer]) for writer in buffer.writers)
    end = max(float(starts[user]) + tasks[user].lasts_s for user in buffer.users)
    return min(window, max(1, math.ceil((end - begin) / period - 1e-9))) if period > 0 else 1


def conflicts(buffers: Sequence[TimedBuffer], between: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Pairs (first < second) of buffers that are in use at once in some run, for any two frames; all other pairs may
    share bytes. `between`: `frames_between` of the tasks with the buffers' slots."""
    if not buffers:
        return []
    users = {tasks: place for place, tasks in enumerate(dict.fromkeys(buffer.users for buffer in buffers))}
    writers = {tasks: place for place, tasks in enumerate(dict.fromkeys(buffer.writers for buffer in buffers))}
    reached = [between[list(tasks)].max(axis=0) for tasks in users]
    least = np.array([[row[list(tasks)].max() for tasks in writers] for row in reached])
    used = [users[buffer.users] for buffer in buffers]
    written = [writers[buffer.writers] for buffer in buffers]
    # A writer of the one is at most so many frames ahead of the users of the other, and the other way round.
    ahead = least[np.ix_(used, written)]
    pairs = np.argwhere(np.triu(ahead + ahead.T > 1, 1))
    return [(one, two) for one, two in pairs.tolist()]


_FAR = 1 << 40


def frames_between(
    tasks: Sequence[TimedTask], schedule: Schedule, buffers: Iterable[TimedBuffer] = ()
) -> npt.NDArray[np.int64]:
    """[u, v]: the least f such that, in every run, task u of a frame is done before task v of the f-th frame behind it
    begins (0: of the same frame, -1: of the frame before it).

    Every task must hold a resource, and the orders must not deadlock."""
    return _frames_between(tasks, schedule, buffers)[0]


def _frames_between(
    tasks: Sequence[TimedTask], schedule: Schedule, buffers: Iterable[TimedBuffer]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`frames_between`, and the same table with "no longer occupies its resources" in place of "is done"."""
    buffers = tuple(buffers)
    place = np.zeros(len(tasks), np.int64)
    behind = np.zeros(len(tasks), np.int64)
    resource = np.zeros(len(tasks), np.int64)
    for number, order in enumerate(schedule.orders):
        for position, turn in enumerate(order):
            place[turn.task], behind[turn.task], resource[turn.task] = position, turn.behind, number
    lengths = np.array([max(len(order), 1) for order in schedule.orders], np.int64)
    clocks = _clocks(tasks, schedule, buffers, lengths)

    def frames(first: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.asarray(-((place[None, :] - first[:, resource]) // lengths[resource][None, :]) - behind[None, :])

    free = frames(clocks[: len(tasks)])
    np.fill_diagonal(free, 1)  # by the order of its resource a task comes before itself one frame later
    done = free.copy()
    late = [index for index, task in enumerate(tasks) if task.delay_s > 0]
    if late:  # turns of a resource do not wait until a late task is done
        done[late] = frames(_behind(event_graph(tasks, Schedule((), schedule.window), buffers), clocks, lengths))[late]
    return done, free


def _behind(graph: EventGraph, clocks: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """[task, resource]: the first turn of the resource behind one of the task's arcs in this graph."""
    first = np.full_like(clocks, _FAR)
    np.minimum.at(first, graph.tails, clocks[graph.heads] + graph.frames[:, None] * lengths[None, :])
    return first[: graph.tasks]


def _clocks(
    tasks: Sequence[TimedTask], schedule: Schedule, buffers: Iterable[TimedBuffer], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """[node, resource]: the first turn of the resource that comes at or behind the start of the node in frame 0. A
    task's own turn counts."""
    graph = event_graph(tasks, schedule, buffers)
    clocks = np.full((graph.nodes, len(schedule.orders)), _FAR, np.int64)
    for number, order in enumerate(schedule.orders):
        for position, turn in enumerate(order):
            clocks[turn.task, number] = turn.behind * len(order) + position
    heads: list[list[tuple[int, int]]] = [[] for _ in range(graph.nodes)]
    for tail, head, frames in zip(graph.tails.tolist(), graph.heads.tolist(), graph.frames.tolist(), strict=True):
        heads[tail].append((head, frames))
    arcs = [
        (tail, np.array([head for head, _ in own]), np.array([frames for _, frames in own])[:, None] * lengths)
        for tail, own in enumerate(heads)
        if own
    ]
    moved = True
    while moved:
        moved = False
        for tail, own, later in reversed(arcs):  # tasks are listed in an order that a frame can do
            first = (clocks[own] + later).min(axis=0)
            if (first < clocks[tail]).any():
                np.minimum(clocks[tail], first, out=clocks[tail])
                moved = True
    return clocks


def lone_latency_s(tasks: Sequence[TimedTask], schedule: Schedule, buffers: Iterable[TimedBuffer] = ()) -> float:
    """Seconds that a frame takes while all other frames take no time. They contain what the orders, the window and the
    slots make the frame wait for of its own tasks, also through turns of other frames."""
    done, free = (frames <= 0 for frames in _frames_between(tasks, schedule, buffers))
    seconds, lasts = (np.array(each) for each in zip(*((task.seconds, task.lasts_s) for task in tasks), strict=True))
    start = np.zeros(len(tasks))
    # Coming before is transitive, so tasks with fewer tasks before them are visited first.
    for index in np.argsort(free.sum(axis=0), kind="stable").tolist():
        waits = (start + lasts)[done[:, index]].max(initial=0.0), (start + seconds)[free[:, index]].max(initial=0.0)
        start[index] = max(waits)
    return float((start + lasts).max(initial=0.0))
