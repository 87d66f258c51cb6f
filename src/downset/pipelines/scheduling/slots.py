"""How many frames every buffer must hold at once, and which buffers may lie in the same bytes.

A buffer with n slots makes its writers wait until fewer than n frames are in it: an arc with n frames in the event
graph. So what a plan states holds for any run of it, with whatever delays, and not for the planned times alone.
Complexity: one period for each slot that is tried; shortest paths from every reader to every writer for the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from downset.pipelines.scheduling.events import (
    Buffer,
    EventGraph,
    Schedule,
    TimedTask,
    earliest_starts,
    event_graph,
    period_s,
)

__all__ = ["apart", "fewest_slots", "most_frames"]

_FAR = 1 << 40


def fewest_slots(
    tasks: Sequence[TimedTask], schedule: Schedule, period: float, buffers: Sequence[Buffer]
) -> tuple[Buffer, ...]:
    """The buffers with slots that keep the period, none of which can be one less by itself.

    First as many as frames are in it where every task starts as early as it can, then less as far as the period stays,
    the largest buffers first."""
    starts = earliest_starts(event_graph(tasks, schedule), period)
    found = [replace(buffer, slots=_occupancy(tasks, starts, period, buffer, schedule.window)) for buffer in buffers]
    for place in sorted(range(len(found)), key=lambda one: (-found[one].nbytes, one)):
        while (slots := found[place].slots or 1) > 1:
            fewer = [*found[:place], replace(found[place], slots=slots - 1), *found[place + 1 :]]
            if period_s(event_graph(tasks, schedule, fewer), at_least=period) > period * (1 + 1e-12):
                break
            found = fewer
    return tuple(found)


def _occupancy(
    tasks: Sequence[TimedTask], starts: npt.NDArray[np.float64], period: float, buffer: Buffer, window: int
) -> int:
    begin = min(float(starts[writer]) for writer in buffer.writers)
    end = max(float(starts[reader]) + tasks[reader].seconds for reader in buffer.readers)
    return min(window, max(1, math.ceil((end - begin) / period - 1e-9))) if period > 0 else 1


def most_frames(graph: EventGraph, buffer: Buffer) -> int:
    """The most frames that are in the buffer at once in any run: the fewest frames on any way from a reader's end to a
    writer's start, of the readers and writers the most."""
    return int(_frames_between(graph, buffer.readers)[:, list(buffer.writers)].max())


def apart(graph: EventGraph, buffers: Sequence[Buffer]) -> frozenset[tuple[int, int]]:
    """Pairs (first < second) of buffers that are never in use at the same time, in any run, whatever the frames: they
    may lie in the same bytes. The graph knows the buffers' slots."""
    readers = sorted({reader for buffer in buffers for reader in buffer.readers})
    place = {reader: row for row, reader in enumerate(readers)}
    between = _frames_between(graph, readers)

    def behind(first: Buffer, second: Buffer) -> int:
        rows = [place[reader] for reader in first.readers]
        return int(between[np.ix_(rows, list(second.writers))].max())

    found = set()
    for one in range(len(buffers)):
        for two in range(one + 1, len(buffers)):
            # A writer of `two` is at most so many frames ahead of the readers of `one`, and the other way round.
            if behind(buffers[one], buffers[two]) + behind(buffers[two], buffers[one]) <= 1:
                found.add((one, two))
    return frozenset(found)


def _frames_between(graph: EventGraph, sources: Sequence[int]) -> npt.NDArray[np.int64]:
    """By source and node: the fewest frames on any way of one arc or more, far above any count where there is none."""
    firsts = np.flatnonzero(np.r_[True, graph.heads[1:] != graph.heads[:-1]])
    targets = graph.heads[firsts]
    found = np.full((len(sources), graph.nodes), _FAR, np.int64)
    at = np.full((len(sources), graph.nodes), _FAR, np.int64)
    at[np.arange(len(sources)), list(sources)] = 0
    while True:
        reached = np.minimum.reduceat(at[:, graph.tails] + graph.frames, firsts, axis=1)
        better = reached < found[:, targets]
        if not better.any():
            return found
        found[:, targets] = np.where(better, reached, found[:, targets])
        at = found
