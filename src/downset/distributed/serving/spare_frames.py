"""Frames beyond a plan's window: what keeps a pipeline full where times are not exactly those of the plan.

A plan's window is the smallest that reaches its period if every task takes exactly what it counts. Real tasks take
longer now and then, and every hand-over costs a call: with that window the pipeline then waits for its oldest frame. In
the testbed three frames more halved the measured period of a plan of three stages.
"""

from __future__ import annotations

from dataclasses import replace

from downset.plans import Pipeline

__all__ = ["SPARE_FRAMES", "with_spare_frames"]

SPARE_FRAMES = 3


def with_spare_frames(plan: Pipeline, most: int = SPARE_FRAMES) -> Pipeline:
    """The plan with up to `most` frames more inside, and as many slots more in every buffer: as many as the memory of
    every device has room for beside what the plan holds there. Nothing else changes; plans without orders stay."""
    schedule = plan.schedule
    if schedule is None:
        return plan
    spare = min(_room(plan, device, most) for device in range(len(plan.cluster.devices)))
    if spare < 1:
        return plan
    buffers = tuple(replace(buffer, slots=buffer.slots + spare) for buffer in schedule.buffers)
    return replace(plan, schedule=replace(schedule, window=schedule.window + spare, buffers=buffers))


def _room(plan: Pipeline, device: int, most: int) -> int:
    """How many frames more this device's memory has room for, `most` at most."""
    memory_bytes = plan.cluster.devices[device].memory_bytes
    frame_bytes, held_bytes = _frame_bytes(plan, device), _held_bytes(plan, device)
    if memory_bytes is None or not frame_bytes:
        return most
    return min(most, max(0, (memory_bytes - held_bytes) // frame_bytes))


def _frame_bytes(plan: Pipeline, device: int) -> int:
    """Bytes that one frame more takes: a slot of every buffer; where none is listed, what the device sends and
    receives."""
    assert plan.schedule is not None
    if plan.schedule.buffers:
        return sum(buffer.nbytes for buffer in plan.schedule.buffers if buffer.device == device)
    moved = (task.transfer for task in plan.tasks if task.transfer is not None)
    return sum(one.nbytes for one in moved if device in (one.source, one.target))


def _held_bytes(plan: Pipeline, device: int) -> int:
    """Bytes that the plan holds there: weights, working memory, the runtime, and rows of the frames in its window."""
    assert plan.schedule is not None
    held = sum(one.total_bytes for one in plan.memory if one.device == device)
    if plan.schedule.buffers:
        return held + sum(one.nbytes * one.slots for one in plan.schedule.buffers if one.device == device)
    return held + plan.schedule.window * _frame_bytes(plan, device)
