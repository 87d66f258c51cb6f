"""Computes which tasks of which frames come before which in every run of a schedule, and how long a frame takes alone.

Source: vector clocks (Fidge, Mattern, 1988), read backwards. A resource does one task at a time in a cyclic order, so
it is enough to know the first of its turns that come behind a task.
Names: turn → the place of (task, frame) in the endless order of its resource; clock → the first such turn of each
resource.
Complexity: O(arcs · resources) for each pass, with a few passes more than frames are inside; O(tasks²) for the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from downset.pipelines.scheduling.events import EventGraph, Schedule, TimedBuffer, TimedTask, event_graph

__all__ = ["frames_between", "lone_latency_s"]

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
