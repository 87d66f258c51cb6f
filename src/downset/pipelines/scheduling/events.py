"""The event graph of a cyclic schedule: when each task of each frame can start, and the period at which that settles.

Source: marked graphs (Commoner et al., 1971); maximum cycle ratio by Newton's method on the ratio (Dinkelbach). Each
step is a longest-path search that ends with a cycle above the ratio tried, or with none.
Names: node → a task's start, and two more: a frame begins, a frame is done; frames → the tokens of an arc.
Complexity: O(nodes · arcs) for each step; a few steps.
An arc (tail, head, seconds, frames) means: the head of frame k starts at least `seconds` after the tail of frame k -
frames. Frames below 0 do not exist, and no node waits for them. `frames` may be negative, because a resource may take a
later frame first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from downset import native
from downset.budget import Clock
from downset.errors import UnsupportedError
from downset.results.pipelines import Turn

__all__ = [
    "Arc",
    "Deadlock",
    "EventGraph",
    "Schedule",
    "TimedBuffer",
    "TimedTask",
    "check_live",
    "earliest_starts",
    "event_graph",
    "period_s",
    "positive_cycle",
    "positive_cycle_python",
    "window_needed",
]

Arc = tuple[int, int, float, int]
"""(tail, head, seconds, frames)."""


class Deadlock(Exception):
    """The orders make nodes wait for each other. `nodes`: those of one cycle, in order."""

    def __init__(self, nodes: Sequence[int]) -> None:
        super().__init__(f"tasks {', '.join(map(str, nodes))} wait for each other")
        self.nodes = tuple(nodes)


@dataclass(frozen=True, slots=True)
class TimedTask:
    """Work that every frame needs once. It occupies all its `resources` for `seconds`, after other tasks of its frame,
    and is done `delay_s` later; in that time it occupies none."""

    seconds: float
    resources: tuple[int, ...]
    after: tuple[int, ...] = ()
    delay_s: float = 0.0

    @property
    def lasts_s(self) -> float:
        """Seconds from its start until it is done."""
        return self.seconds + self.delay_s


@dataclass(frozen=True, slots=True)
class Schedule:
    """`orders[r]`: the tasks of resource r in every round, each once. At most `window` frames are inside."""

    orders: tuple[tuple[Turn, ...], ...]
    window: int


@dataclass(frozen=True, slots=True)
class TimedBuffer:
    """Room that a frame takes from the start of the first of its `writers` to the end of the last of its `users`, the
    tasks that write or read it. A writer waits until fewer than `slots` frames are in it (None: without limit)."""

    nbytes: int
    writers: tuple[int, ...]
    users: tuple[int, ...]
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class EventGraph:
    """Nodes 0 … tasks - 1 are the starts of tasks; node `tasks` begins a frame, node `tasks + 1` ends it."""

    tasks: int
    tails: npt.NDArray[np.int64]
    heads: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    frames: npt.NDArray[np.int64]

    @property
    def nodes(self) -> int:
        return self.tasks + 2


def event_graph(
    tasks: Sequence[TimedTask], schedule: Schedule, buffers: Iterable[TimedBuffer] = (), *, window: bool = True
) -> EventGraph:
    """The graph of what each start waits for: earlier tasks of its frame, the turn before on its resources, a slot, and
    the window. The next turn of a resource waits until a task no longer occupies it; all else waits until the task is
    done."""
    begin, end = len(tasks), len(tasks) + 1
    arcs: list[Arc] = []
    for index, task in enumerate(tasks):
        arcs.append((begin, index, 0.0, 0))
        arcs.append((index, end, task.lasts_s, 0))
        arcs += [(other, index, tasks[other].lasts_s, 0) for other in task.after]
    for order in schedule.orders:
        for first, second in pairwise(order):
            arcs.append((first.task, second.task, tasks[first.task].seconds, first.behind - second.behind))
        if order:  # the next round begins behind the last turn; a task alone waits for its previous frame
            last, first = order[-1], order[0]
            arcs.append((last.task, first.task, tasks[last.task].seconds, 1 + last.behind - first.behind))
    for buffer in buffers:
        if buffer.slots is not None:
            arcs += [
                (user, writer, tasks[user].lasts_s, buffer.slots) for user in buffer.users for writer in buffer.writers
            ]
    if window:
        arcs.append((end, begin, 0.0, schedule.window))
    return _graph(len(tasks), arcs)


def _graph(tasks: int, arcs: Sequence[Arc]) -> EventGraph:
    """The graph with arcs sorted by head, so that the latest arc of each head is one reduction."""
    arcs = sorted(arcs, key=lambda arc: arc[1])
    tails, heads, seconds, frames = zip(*arcs, strict=True)
    return EventGraph(
        tasks, np.array(tails, np.int64), np.array(heads, np.int64), np.array(seconds), np.array(frames, np.int64)
    )


def check_live(graph: EventGraph) -> None:
    """Raise Deadlock if tasks on a cycle wait for each other within one frame, or for later frames."""
    # These weights sum to more than 0 exactly on cycles of at most `nodes` arcs whose frames sum to 0 or less.
    weights = 1.0 - graph.frames.astype(np.float64) * (graph.nodes + 1)
    cycle = positive_cycle(graph, weights, np.zeros(graph.nodes), 0.5)
    if cycle is not None:
        raise Deadlock([int(graph.heads[arc]) for arc in cycle])


def period_s(graph: EventGraph, *, at_least: float = 0.0) -> float:
    """Seconds between two frames in the long run: the largest ratio of seconds to frames of any cycle, or `at_least`;
    infinity if the orders deadlock."""
    try:
        check_live(graph)
    except Deadlock:
        return math.inf
    ratio = at_least
    while True:
        weights = graph.seconds - ratio * graph.frames
        cycle = positive_cycle(graph, weights, np.zeros(graph.nodes), _about(graph, ratio))
        if cycle is None:
            return ratio
        better = float(graph.seconds[cycle].sum()) / int(graph.frames[cycle].sum())
        if better <= ratio:
            return ratio
        ratio = better


def earliest_starts(graph: EventGraph, period: float) -> npt.NDArray[np.float64]:
    """The start of every node of frame 0, as early as possible, if all frames are `period` seconds apart. The begin of
    the frame is at 0.

    `period` must be at least the period of the graph."""
    for slack in (0.0, 1e-12, 1e-10, 1e-9):  # cycles of the period itself may gain by rounding
        starts = np.full(graph.nodes, -math.inf)
        starts[graph.tasks] = 0.0
        longer = period * (1 + slack)
        if positive_cycle(graph, graph.seconds - longer * graph.frames, starts, _about(graph, period)) is None:
            return starts
    raise ValueError(f"the event graph's period is above {period:g} s")


def window_needed(
    tasks: Sequence[TimedTask],
    schedule: Schedule,
    period: float,
    buffers: Iterable[TimedBuffer] = (),
    *,
    clock: Clock | None = None,
) -> int:
    """The least window with which the schedule has this period, which it must have with some window. At the end of
    the clock a window that is large enough."""
    graph = event_graph(tasks, schedule, buffers, window=False)
    longest = float(earliest_starts(graph, period)[graph.tasks + 1])
    window = max(1, math.ceil(longest / period - 1e-9)) if period > 0 else 1
    # Tasks of length 0 may still need their frames inside.
    while not _reaches(tasks, schedule, period, buffers, window):
        window += 1
    while window > 1 and not (clock and clock.late()) and _reaches(tasks, schedule, period, buffers, window - 1):
        window -= 1
    return window


def _reaches(
    tasks: Sequence[TimedTask], schedule: Schedule, period: float, buffers: Iterable[TimedBuffer], window: int
) -> bool:
    graph = event_graph(tasks, Schedule(schedule.orders, window), buffers)
    return period_s(graph, at_least=period) <= period * (1 + 1e-12)


def _about(graph: EventGraph, ratio: float) -> float:
    """Smaller gains are rounding errors."""
    return 1e-12 * max(ratio, float(graph.seconds.max(initial=0.0)), 1e-300)


def positive_cycle(
    graph: EventGraph, weights: npt.NDArray[np.float64], distance: npt.NDArray[np.float64], least: float
) -> npt.NDArray[np.int64] | None:
    """The arcs of a cycle whose weights sum to more than 0, of the cycles found first the one with the largest gain for
    each frame; None if there is none. Then `distance` holds the longest paths from nodes where it was finite. Compiled
    if the native module is built, else `positive_cycle_python`, which specifies it."""
    try:
        compiled = native.compiled
    except UnsupportedError:
        return positive_cycle_python(graph, weights, distance, least)
    cycle, distance[:] = compiled.longest_paths((graph.tails, graph.heads, graph.frames), weights, distance, least)
    return np.array(cycle, np.int64) if cycle else None


def positive_cycle_python(
    graph: EventGraph, weights: npt.NDArray[np.float64], distance: npt.NDArray[np.float64], least: float
) -> npt.NDArray[np.int64] | None:
    """The specification of native/pipelines/event_graph.hpp. Which of several cycles is found first may differ."""
    firsts = np.flatnonzero(np.r_[True, graph.heads[1:] != graph.heads[:-1]])
    targets = graph.heads[firsts]
    lengths = np.diff(np.r_[firsts, len(graph.heads)])
    parent = np.full(graph.nodes, -1, np.int64)
    for turn in range(graph.nodes + 1):
        offered = distance[graph.tails] + weights
        best = np.maximum.reduceat(offered, firsts)
        better = best > distance[targets] + least
        if not better.any():
            return None
        nodes = np.flatnonzero((offered == np.repeat(best, lengths)) & np.repeat(better, lengths))
        parent[graph.heads[nodes[::-1]]] = nodes[::-1]
        distance[targets[better]] = best[better]
        if turn & (turn + 1) == 0 or turn % 16 == 15 or turn == graph.nodes:
            cycles = _parent_cycles(graph, parent)
            gains = [(float(weights[cycle].sum()), cycle) for cycle in cycles]
            gains = [(gain, cycle) for gain, cycle in gains if gain > 0]
            if gains:
                return max(gains, key=lambda item: item[0] / max(1, int(graph.frames[item[1]].sum())))[1]
    return None  # only gains by rounding


def _parent_cycles(graph: EventGraph, parent: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """The cycles among the arcs that gave each node its distance."""
    seen = [0] * graph.nodes
    cycles = []
    arcs, tails = parent.tolist(), graph.tails
    for start in range(graph.nodes):
        path, node = [], start
        while node >= 0 and not seen[node]:
            seen[node] = start + 1
            path.append(node)
            node = int(tails[arcs[node]]) if arcs[node] >= 0 else -1
        if node >= 0 and seen[node] == start + 1 and node in path:
            cycles.append(np.array([arcs[other] for other in reversed(path[path.index(node) :])], np.int64))
    return cycles
