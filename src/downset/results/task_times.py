"""Prices the tasks of a frame: how many seconds each takes, and which resources it occupies.

A computation takes alpha · MACs / mac_per_s, with the alpha of each kind if the device has one, plus the bytes of
weights and those that operators without MACs move, at their rates. A transfer takes the latency of a message plus its
bytes at the pair's rate. It occupies the medium, or the ports of both ends, for the part of that time which the cluster
states. docs/pipelines.md has the table of resources.

If a cluster states costs of messages, messages also take processor time of their ends, and of all other devices.
Meanwhile the processor goes on computing more slowly: the computations of a frame on a device together take longer by
the processor time of the frame's messages, each in proportion to its length. Without overlap a message occupies its
ends until it arrives, and nothing is added.

Under the paper's equations only MACs take computing time, and messages take no processor time.

Planners, simulations and pages have these prices. The check of plans (pipelines/check_times.py) computes its own, so
that a wrong price does not pass; the prices of the compiled search (native/pipelines) are held to these by tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from downset.clusters.model import Cluster, Device, MessageCosts
from downset.results.pipelines import FrameTasks, Pipeline, Resource, Strip, Task, Transfer

__all__ = [
    "DeviceSeconds",
    "compute_s",
    "device_seconds",
    "ends_of",
    "occupied_parts",
    "occupied_seconds",
    "plan_seconds",
    "resources_of",
    "task_seconds",
    "transfer_s",
]

_NO_COSTS = MessageCosts()


def compute_s(device: Device, strip: Strip, *, paper: bool = False) -> float:
    """Seconds of a strip on a device, without messages."""
    if paper:
        return strip.macs / device.speed
    named = sum(strip.macs_of.values())
    weighed = sum(device.alpha_of.get(kind, device.alpha) * macs for kind, macs in strip.macs_of.items())
    computing = (device.alpha * (strip.macs - named) + weighed) / device.mac_per_s
    return computing + strip.moved_bytes / device.moved_per_s + strip.weight_bytes * device.weight_byte_s


def transfer_s(cluster: Cluster, transfer: Transfer) -> float:
    """Seconds of a message from its sending to its arrival, with its latency."""
    rate, latency = cluster.link(transfer.source, transfer.target)
    return latency + transfer.nbytes / rate


def task_seconds(cluster: Cluster, frame: FrameTasks | Pipeline, *, paper: bool = False) -> list[float]:
    """Seconds of each task until it is done."""
    seconds, own = [], [0.0] * len(cluster.devices)
    count = [0] * len(cluster.devices)
    for task in frame.tasks:
        if task.transfer is not None:
            seconds.append(transfer_s(cluster, task.transfer))
            continue
        strip = frame.stages[task.stage].blocks[task.block].strips[task.strip]
        seconds.append(compute_s(cluster.devices[strip.device], strip, paper=paper))
        own[strip.device] += seconds[-1]
        count[strip.device] += 1
    if paper:
        return seconds
    beside = _message_s(cluster, frame)
    for place, task in enumerate(frame.tasks):
        if task.transfer is None and beside[task.device]:
            share = seconds[place] / own[task.device] if own[task.device] else 1 / count[task.device]
            seconds[place] += share * beside[task.device]
    return seconds


def _message_s(cluster: Cluster, frame: FrameTasks | Pipeline) -> list[float]:
    """Seconds of each device's processor that a frame's messages take in addition to their time on the link."""
    costs = [device.messages or _NO_COSTS for device in cluster.devices]
    messages = [task.transfer for task in frame.tasks if task.transfer is not None and cluster.network.overlap]
    charges = [
        (frame.entry, costs[frame.entry].frame.of(frame.frame_bytes)),
        (frame.exit, costs[frame.exit].result.of(frame.result_bytes)),
    ]
    charges += [(message.source, costs[message.source].send.of(message.nbytes)) for message in messages]
    charges += [(message.target, costs[message.target].receive.of(message.nbytes)) for message in messages]
    own = Counter(device for device, _ in charges)
    seconds = [cost.others_s * (2 + len(messages) - own[device]) for device, cost in enumerate(costs)]
    for device, spent in charges:
        seconds[device] += spent
    return seconds


def occupied_parts(cluster: Cluster, tasks: Sequence[Task], seconds: Sequence[float]) -> list[float]:
    """Seconds for which each task occupies its resources: a computation all its `seconds`, a message the part of them
    that the cluster states, if devices overlap."""
    occupied = cluster.occupied
    return [
        whole if task.transfer is None else min(whole, transfer_s(occupied, task.transfer))
        for task, whole in zip(tasks, seconds, strict=True)
    ]


def plan_seconds(plan: Pipeline) -> list[float]:
    """Seconds of each task of a plan until it is done."""
    return task_seconds(plan.cluster, plan, paper=plan.comm == "paper")


def occupied_seconds(plan: Pipeline) -> list[float]:
    """Seconds for which each task of a plan occupies its resources."""
    return occupied_parts(plan.cluster, plan.tasks, plan_seconds(plan))


@dataclass(frozen=True, slots=True)
class DeviceSeconds:
    """Seconds that one device computes, sends and receives for one frame."""

    computing: float
    sending: float
    receiving: float


def device_seconds(plan: Pipeline, seconds: Sequence[float]) -> list[DeviceSeconds]:
    """The planned seconds of each device for one frame, from those of each task: `plan_seconds`, until it is done, or
    `occupied_seconds`. A transfer counts at both of its ends."""
    computing, sending, receiving = ([0.0] * len(plan.cluster.devices) for _ in range(3))
    for task, own in zip(plan.tasks, seconds, strict=True):
        if task.transfer is None:
            computing[task.device] += own
        else:
            sending[task.transfer.source] += own
            receiving[task.transfer.target] += own
    return [DeviceSeconds(*three) for three in zip(computing, sending, receiving, strict=True)]


def ends_of(task: Task) -> tuple[int, ...]:
    """The devices that a task needs: the one that computes, or both ends of a transfer."""
    return (task.device,) if task.transfer is None else (task.transfer.source, task.transfer.target)


def resources_of(cluster: Cluster, task: Task) -> tuple[Resource, ...]:
    """The resources that a task occupies.

    Without overlap a device does one thing at a time. With overlap it computes during one transfer, or during one in
    each direction if it is full duplex. A transfer over a shared network occupies the medium, and with overlap no
    ports."""
    overlap, shared = cluster.network.overlap, cluster.network.kind == "shared"
    if task.transfer is None:
        return (Resource("processor" if overlap else "device", task.device),)
    source, target = task.transfer.source, task.transfer.target
    if not overlap:
        both = (Resource("device", source), Resource("device", target))
        return (*both, Resource("medium")) if shared else both
    if shared:
        return (Resource("medium"),)
    sends = Resource("send" if cluster.duplex(source) == "full" else "radio", source)
    receives = Resource("receive" if cluster.duplex(target) == "full" else "radio", target)
    return (sends, receives)
