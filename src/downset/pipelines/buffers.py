"""Buffers of a plan's devices: one for every tensor of which a device holds rows for a frame, and their places.

Names: hull → the least range of rows that contains all rows of a tensor that a device ever holds for one frame.
A buffer is in use from the start of the first task that writes it to the end of the last that writes or reads it. The
first task that reads the frame at the entry takes all of it; results stay at the exit until all of them are there. The
tensors inside a strip, between its inputs and its outputs, have a buffer while the strip is computed.
Numbers of slots hold for every run of the orders, and so do the pairs of buffers that may share bytes because they are
never in use at once. A device that waits for a free slot therefore stays within its arena under any delays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from downset.budget import Clock
from downset.pipelines.drafts import Split, Tile
from downset.pipelines.prices import PricedChain, hull
from downset.pipelines.scheduling import events
from downset.pipelines.scheduling.slots import conflicts, frames_between
from downset.pipelines.strips import given_rows, made_rows, nbytes_of
from downset.results.pipelines import Buffer, FrameTasks, PipelineSchedule, Rows, Task

__all__ = ["INNER", "as_events", "frame_buffers", "placed"]

INNER = -1
"""The `tensor` of a buffer that holds the tensors inside a strip."""


@dataclass(slots=True)
class _HeldRows:
    rows: Rows | None = None
    writers: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)


def frame_buffers(
    problem: PricedChain, frame: FrameTasks, inner_bytes: Mapping[tuple[int, int, int], int], *, slots: int
) -> tuple[Buffer, ...]:
    """The buffers of a frame's tasks, each with `slots` slots and without a place. `inner_bytes`: bytes held inside a
    strip, by (stage, block, strip)."""
    arrays_of: dict[tuple[int, int], _HeldRows] = {}
    for number, task in enumerate(frame.tasks):
        read, results = _touched(problem, frame, task)
        for device, rows in read:
            part = arrays_of.setdefault((device, rows.tensor), _HeldRows())
            part.rows = _hull(part.rows, rows)
            part.readers.append(number)
        for device, rows in results:
            part = arrays_of.setdefault((device, rows.tensor), _HeldRows())
            part.rows = _hull(part.rows, rows)
            part.writers.append(number)
    _take_frames(problem, arrays_of, frame.entry)
    _keep_results(problem, arrays_of, frame.exit)
    buffers = []
    for (device, tensor), part in sorted(arrays_of.items()):
        assert part.rows is not None
        nbytes = nbytes_of(problem, part.rows)
        if not nbytes:
            continue
        writers = tuple(sorted(set(part.writers)))
        readers = tuple(sorted(set(part.readers))) or writers  # a tensor without readers is held while it is made
        rows = part.rows
        buffers.append(
            Buffer(device, tensor, rows.start, rows.stop, nbytes, slots, writers, readers, columns=rows.columns)
        )
    for number, task in enumerate(frame.tasks):
        nbytes = 0 if task.transfer is not None else inner_bytes.get((task.stage, task.block, task.strip), 0)
        if nbytes:
            buffers.append(Buffer(task.device, INNER, 0, 0, nbytes, 1, (number,), (number,)))
    return tuple(buffers)


def _touched(
    problem: PricedChain, frame: FrameTasks, task: Task
) -> tuple[list[tuple[int, Rows]], list[tuple[int, Rows]]]:
    """Two lists of (device, rows): what a task reads, and what it writes."""
    if task.transfer is not None:
        transfer = task.transfer
        return [(transfer.source, rows) for rows in transfer.rows], [(transfer.target, rows) for rows in transfer.rows]
    block = frame.stages[task.stage].blocks[task.block]
    strip = block.strips[task.strip]
    tile = Tile(strip.device, strip.start, strip.stop, strip.columns)
    split = Split(block.start, block.stop, (tile,), halo=block.rule != "leader")
    reads = [(strip.device, rows) for rows in given_rows(problem, split, tile)]
    return reads, [(strip.device, rows) for rows in made_rows(problem, split, tile, halos=True)]


def _hull(extent: Rows | None, rows: Rows) -> Rows:
    if extent is None:
        return rows
    columns = None if extent.columns is None or rows.columns is None else hull(extent.columns, rows.columns)
    return Rows(rows.tensor, *hull((extent.start, extent.stop), (rows.start, rows.stop)), columns)


def _whole(
    problem: PricedChain, arrays_of: Mapping[tuple[int, int], _HeldRows], device: int, cut: int
) -> list[_HeldRows]:
    """The buffers of the tensors that cross a cut, extended to all rows."""
    arrays = [arrays_of[device, tensor] for tensor in problem.crossing(cut) if (device, tensor) in arrays_of]
    for part in arrays:
        assert part.rows is not None
        part.rows = Rows(part.rows.tensor, 0, problem.tensors[part.rows.tensor].rows)
    return arrays


def _take_frames(problem: PricedChain, arrays_of: Mapping[tuple[int, int], _HeldRows], entry: int) -> None:
    reads = _whole(problem, arrays_of, entry, 0)
    first = dict.fromkeys(task for part in reads for task in part.readers)
    for part in reads:
        part.writers = list(first)


def _keep_results(problem: PricedChain, arrays_of: Mapping[tuple[int, int], _HeldRows], exit_: int) -> None:
    results = _whole(problem, arrays_of, exit_, problem.cuts)
    last = dict.fromkeys(task for part in results for task in part.writers)
    for part in results:
        part.readers += last


def as_events(buffers: Sequence[Buffer]) -> list[events.TimedBuffer]:
    """The buffers in the form that the event graph takes."""
    return [events.TimedBuffer(buffer.nbytes, buffer.writers, buffer.users, buffer.slots) for buffer in buffers]


def placed(
    tasks: Sequence[events.TimedTask],
    schedule: PipelineSchedule,
    buffers: Sequence[Buffer],
    room_bytes: Mapping[int, float],
    clock: Clock,
) -> tuple[Buffer, ...]:
    """The buffers with places in the arenas of their devices. A fast placement is taken if it fits `room_bytes` of the
    device, else the best one found."""
    orders = tuple(order.turns for order in schedule.orders)
    between = frames_between(tasks, events.Schedule(orders, schedule.window), as_events(buffers))
    listed = list(buffers)
    for device in sorted({buffer.device for buffer in buffers}):
        own = [place for place, buffer in enumerate(buffers) if buffer.device == device]
        offsets = _offsets([buffers[place] for place in own], between, room_bytes.get(device, 0.0), clock)
        for place, offset in zip(own, offsets, strict=True):
            listed[place] = replace(buffers[place], offset=offset)
    return tuple(listed)


def _offsets(
    buffers: Sequence[Buffer], between: npt.NDArray[np.int64], room_bytes: float, clock: Clock
) -> tuple[int, ...]:
    from downset.arenas.constrained.conflicts import records_of_conflicts
    from downset.arenas.plan import plan_arena

    groups = _groups(buffers)
    sizes = [sum(buffers[place].nbytes * buffers[place].slots for place in group) for group in groups]
    records = records_of_conflicts(sizes, conflicts(as_events([buffers[group[0]] for group in groups]), between))
    arena = plan_arena(records, method="greedy_by_size")
    if arena.arena_bytes > max(room_bytes, arena.evidence.bound):
        best = plan_arena(records, method="best", **clock.at_least(_MOMENT_S).within(_MOMENT_S).rest().limits())
        clock.count(best.evidence.states)
        arena = min(arena, best, key=lambda arena: arena.arena_bytes)
    offsets = [0] * len(buffers)
    for group, begin in zip(groups, arena.offsets, strict=True):
        for place in group:
            offsets[place] = begin
            begin += buffers[place].nbytes * buffers[place].slots
    return tuple(offsets)


_MANY = 1_000
"""The most buffers of a device that are placed one by one: the work grows with their pairs."""


_MOMENT_S = 0.5
"""The most seconds for the best placement of a device's buffers."""


def _groups(buffers: Sequence[Buffer]) -> list[list[int]]:
    """Buffers that are placed as one: each alone, or, if there are many, those of the same writers and readers
    together."""
    if len(buffers) <= _MANY:
        return [[place] for place in range(len(buffers))]
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for place, buffer in enumerate(buffers):
        alike.setdefault((buffer.writers, buffer.readers), []).append(place)
    return list(alike.values())
