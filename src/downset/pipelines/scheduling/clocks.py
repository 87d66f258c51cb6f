"""Which tasks of which frames come before which in every run of a schedule, and how long a frame takes alone.

Source: vector clocks (Fidge, Mattern, 1988), read backwards. A resource does one task at a time in a cyclic order, so
that of all its turns that come behind a task only the first has to be known.
Names: turn → the place of (task, frame) in the endless order of its resource; clock → by resource that first turn.
Complexity: O(arcs · resources) for each pass, a few passes more than frames are inside; O(tasks²) for what is read off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from downset.pipelines.scheduling.events import Schedule, TimedBuffer, TimedTask, event_graph

__all__ = ["frames_between", "lone_latency_s"]

_FAR = 1 << 40


def frames_between(
    tasks: Sequence[TimedTask], schedule: Schedule, buffers: Iterable[TimedBuffer] = ()
) -> npt.NDArray[np.int64]:
    """[u, v]: the least f such that in every run task u of a frame ends before task v of the f-th frame behind it
    begins (0: of the same frame, -1: of the frame before it).

    Every task holds a resource, and the orders do not deadlock."""
    place = np.zeros(len(tasks), np.int64)
    behind = np.zeros(len(tasks), np.int64)
    resource = np.zeros(len(tasks), np.int64)
    for number, order in enumerate(schedule.orders):
        for position, turn in enumerate(order):
            place[turn.task], behind[turn.task], resource[turn.task] = position, turn.behind, number
    lengths = np.array([max(len(order), 1) for order in schedule.orders], np.int64)
    clocks = _clocks(tasks, schedule, buffers, lengths)
    frames = -((place[None, :] - clocks[:, resource]) // lengths[resource][None, :]) - behind[None, :]
    np.fill_diagonal(frames, 1)  # a task comes before itself one frame later, by the order of its resource
    return frames


def _clocks(
    tasks: Sequence[TimedTask], schedule: Schedule, buffers: Iterable[TimedBuffer], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """[task, resource]: the first turn of the resource that comes behind the task's frame 0, itself included."""
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
        for tail, own, later in reversed(arcs):  # tasks are listed as a frame can do them
            first = (clocks[own] + later).min(axis=0)
            if (first < clocks[tail]).any():
                np.minimum(clocks[tail], first, out=clocks[tail])
                moved = True
    return clocks[: graph.tasks]


def lone_latency_s(tasks: Sequence[TimedTask], schedule: Schedule, buffers: Iterable[TimedBuffer] = ()) -> float:
    """How long a frame takes while all others take no time: what the orders, the window and the slots make it wait for
    of its own tasks, through other frames' turns too."""
    before = frames_between(tasks, schedule, buffers) <= 0
    seconds = np.array([task.seconds for task in tasks])
    done = np.zeros(len(tasks))
    # What comes before is transitive: who has fewer tasks before itself comes first.
    for index in np.argsort(before.sum(axis=0), kind="stable").tolist():
        done[index] = seconds[index] + done[before[:, index]].max(initial=0.0)
    return float(done.max(initial=0.0))
