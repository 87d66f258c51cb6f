"""Adds frames beyond a plan's frame window, which keep a pipeline full when times differ from the plan's.

A plan's frame window is the smallest that reaches its period if every task takes exactly the planned time. Real tasks
sometimes take longer, and every hand-over costs a call, so with that frame window the pipeline waits for its oldest
frame. A frame that takes twice as long as planned needs twice as many frames inside for the planned period. In the
testbed it does so in plans that load almost every device to the period: with three spare frames `exact` of VGG16 on
eight devices was a third slower than planned while no processor and no link was full.
"""

from __future__ import annotations

from dataclasses import replace

from downset.results.pipelines import Pipeline

__all__ = ["LEAST_SPARE_FRAMES", "spare_frames_of", "with_spare_frames"]

LEAST_SPARE_FRAMES = 3
"""Spare frames of a plan whose frame window is smaller than this."""


def spare_frames_of(plan: Pipeline, asked: int | None = None) -> int:
    """How many frames beyond its frame window a plan runs with, if memory has room: `asked`, or by default as many as
    the window, and at least `LEAST_SPARE_FRAMES`."""
    window = plan.schedule.window if plan.schedule is not None else 1
    return max(LEAST_SPARE_FRAMES, window) if asked is None else asked


def with_spare_frames(plan: Pipeline, asked: int | None = None) -> Pipeline:
    """The plan with `spare_frames_of` more frames inside, and as many more slots in every buffer, as far as every
    device has memory for them in addition to what the plan holds there. A plan without orders is returned as it is."""
    schedule = plan.schedule
    if schedule is None:
        return plan
    most = spare_frames_of(plan, asked)
    spare = min(_room(plan, device, most) for device in range(len(plan.cluster.devices)))
    if spare < 1:
        return plan
    buffers = tuple(replace(buffer, slots=buffer.slots + spare) for buffer in schedule.buffers)
    return replace(plan, schedule=replace(schedule, window=schedule.window + spare, buffers=buffers))


def _room(plan: Pipeline, device: int, most: int) -> int:
    """How many more frames this device has memory for, at most `most`."""
    memory_bytes = plan.cluster.devices[device].memory_bytes
    frame_bytes, held_bytes = _frame_bytes(plan, device), _held_bytes(plan, device)
    if memory_bytes is None or not frame_bytes:
        return most
    return min(most, max(0, (memory_bytes - held_bytes) // frame_bytes))


def _frame_bytes(plan: Pipeline, device: int) -> int:
    """The bytes of one more frame: a slot of every buffer; if no buffers are listed, what the device sends and
    receives."""
    assert plan.schedule is not None
    if plan.schedule.buffers:
        return sum(buffer.nbytes for buffer in plan.schedule.buffers if buffer.device == device)
    moved = (task.transfer for task in plan.tasks if task.transfer is not None)
    return sum(one.nbytes for one in moved if device in (one.source, one.target))


def _held_bytes(plan: Pipeline, device: int) -> int:
    """The bytes that the plan holds there: weights, working memory, runtime, and rows of the frames in its frame
    window."""
    assert plan.schedule is not None
    held = sum(one.total_bytes for one in plan.memory if one.device == device)
    if plan.schedule.buffers:
        return held + sum(one.nbytes * one.slots for one in plan.schedule.buffers if one.device == device)
    return held + plan.schedule.window * _frame_bytes(plan, device)
