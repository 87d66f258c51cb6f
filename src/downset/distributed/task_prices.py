"""Seconds and resources of a plan's tasks, from their MACs and bytes and the plan's cluster alone.

The planners and the check of plans have separate prices, so a wrong price shows as a period that the simulation does
not reach.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from downset.clusters.model import ProcessorCost
from downset.errors import InvalidPlan
from downset.results.pipelines import Pipeline, Resource, Strip, Task

__all__ = [
    "FrameSeconds",
    "ends_of",
    "frame_seconds",
    "occupied_seconds",
    "plan_seconds",
    "resources_of",
    "task_seconds",
]


@dataclass(frozen=True, slots=True)
class FrameSeconds:
    """The planned seconds of one device for one frame: computing, sending and receiving."""

    computing: float
    sending: float
    receiving: float


def frame_seconds(plan: Pipeline) -> list[FrameSeconds]:
    """The planned seconds of each device, by `plan_seconds` of its tasks; a transfer counts at both of its ends."""
    computing, sending, receiving = ([0.0] * len(plan.cluster.devices) for _ in range(3))
    for task, seconds in zip(plan.tasks, plan_seconds(plan), strict=True):
        if task.transfer is None:
            computing[task.device] += seconds
        else:
            sending[task.transfer.source] += seconds
            receiving[task.transfer.target] += seconds
    return [FrameSeconds(*three) for three in zip(computing, sending, receiving, strict=True)]


def plan_seconds(plan: Pipeline) -> list[float]:
    """Seconds of each task together with the processor time of a frame's messages. A device computes at full speed
    except while it handles messages, frames that come in and results that go out, and hears of those of others."""
    seconds = [task_seconds(plan, task) for task in plan.tasks]
    if plan.comm == "paper":
        return seconds
    asked, computing, works = ([0.0] * len(plan.cluster.devices) for _ in range(3))

    def ask(device: int, which: str, nbytes: int) -> None:
        costs = plan.cluster.devices[device].messages
        if costs is not None:
            cost: ProcessorCost = getattr(costs, which)
            asked[device] += cost.each_s + nbytes * cost.byte_s

    def others_pay(*ends: int) -> None:
        for device, owner in enumerate(plan.cluster.devices):
            if device not in ends and owner.messages is not None:
                asked[device] += owner.messages.others_s

    ask(plan.entry, "frame", plan.frame_bytes)
    others_pay(plan.entry)
    ask(plan.exit, "result", plan.result_bytes)
    others_pay(plan.exit)
    for task, own in zip(plan.tasks, seconds, strict=True):
        if task.transfer is None:
            computing[task.device] += own
            works[task.device] += 1
        elif plan.cluster.network.overlap:  # otherwise a message has its two devices to itself
            ask(task.transfer.source, "send", task.transfer.nbytes)
            ask(task.transfer.target, "receive", task.transfer.nbytes)
            others_pay(task.transfer.source, task.transfer.target)
    for place, task in enumerate(plan.tasks):
        if task.transfer is None and asked[task.device]:
            part = seconds[place] / computing[task.device] if computing[task.device] else 1 / works[task.device]
            seconds[place] += part * asked[task.device]
    return seconds


def occupied_seconds(plan: Pipeline) -> list[float]:
    """Seconds for which each task occupies its resources: a computation for all its time, a message for the time that
    the cluster states, if devices overlap."""
    seconds, network = plan_seconds(plan), plan.cluster.network
    own = {link.pair: link for link in network.links}
    for place, transfer in enumerate(task.transfer for task in plan.tasks):
        if transfer is None or not network.overlap:
            continue
        ends = (min(transfer.source, transfer.target), max(transfer.source, transfer.target))
        medium = own.get(ends, network)
        saved_s = 0.0
        if medium.occupied_latency_s is not None:
            saved_s += medium.latency_s - medium.occupied_latency_s
        if medium.occupied_bytes_per_s is not None:
            saved_s += transfer.nbytes * (1 / medium.bytes_per_s - 1 / medium.occupied_bytes_per_s)
        if saved_s > 0:
            seconds[place] = max(0.0, seconds[place] - saved_s)
    return seconds


def task_seconds(plan: Pipeline, task: Task) -> float:
    """Seconds of a computation at full speed, or of a message with its latency.

    The paper's equations ignore alphas by kind and bytes that operators without MACs move. Raises InvalidPlan for
    seconds that are NaN or infinite."""
    if task.transfer is None:
        seconds = _compute_s(plan, plan.stages[task.stage].blocks[task.block].strips[task.strip])
    else:
        bytes_per_s, latency_s = plan.cluster.link(task.transfer.source, task.transfer.target)
        seconds = latency_s + task.transfer.nbytes / bytes_per_s
    if not 0 <= seconds < math.inf:
        raise InvalidPlan(f"a task of stage {task.stage} takes {seconds} s")
    return seconds


def _compute_s(plan: Pipeline, strip: Strip) -> float:
    device = plan.cluster.devices[strip.device]
    if plan.comm == "paper":
        return strip.macs * device.alpha / device.mac_per_s
    weighed = strip.macs * device.alpha  # all kinds at the common alpha; below, kinds with another one
    for kind, macs in strip.macs_of.items():
        weighed += macs * (device.alpha_of.get(kind, device.alpha) - device.alpha)
    byte_s = 1.0 / device.bytes_per_s if device.bytes_per_s is not None else device.alpha / device.mac_per_s
    return max(weighed, 0.0) / device.mac_per_s + strip.moved_bytes * byte_s


def ends_of(task: Task) -> tuple[int, ...]:
    """The devices that a task needs: the one that computes, or both ends of a transfer."""
    return (task.device,) if task.transfer is None else (task.transfer.source, task.transfer.target)


def resources_of(plan: Pipeline, task: Task) -> list[Resource]:
    """Resources that a task occupies for its `occupied_seconds`.

    Without overlap a device does one thing at a time. With overlap it computes during one transfer, or during one in
    each direction if it is full duplex. A transfer over a shared network occupies the medium, and with overlap no
    ports."""
    network, ends = plan.cluster.network, ends_of(task)
    shared = task.transfer is not None and network.kind == "shared"
    held = [Resource("medium")] if shared else []
    if not network.overlap:
        held += [Resource("device", end) for end in ends]
    elif task.transfer is None:
        held.append(Resource("processor", task.device))
    elif not shared:
        held += [_port(plan, end, sends=place == 0) for place, end in enumerate(ends)]
    return held


def _port(plan: Pipeline, device: int, *, sends: bool) -> Resource:
    duplex: Sequence[str] = plan.cluster.devices[device].duplex or plan.cluster.network.duplex
    if duplex != "full":
        return Resource("radio", device)
    return Resource("send" if sends else "receive", device)
