"""Computes which resources a frame's tasks occupy, and for how many seconds.

A computation takes alpha · MACs / mac_per_s, with the alpha of each kind if the device has one, plus the bytes that
operators without MACs move at their rate. A transfer takes the latency of a message plus its bytes at the pair's rate.
It occupies the medium, or the ports of both ends, for the part of that time which the cluster states. docs/pipelines.md
has the table of resources.

If a cluster states costs of messages, messages also take processor time of their ends, and of all other devices.
Meanwhile the processor goes on computing more slowly: the computations of a frame on a device together take longer by
the processor time of the frame's messages, each in proportion to its length. Without overlap a message occupies its
ends until it arrives, and nothing is added.
"""

from __future__ import annotations

from collections import Counter

from downset.clusters.model import Cluster, Device, MessageCosts
from downset.pipelines.drafts import FrameTasks
from downset.pipelines.scheduling.events import TimedTask
from downset.results.pipelines import Pipeline, Resource, Strip, Task, Transfer

__all__ = ["compute_s", "timed_tasks", "transfer_s"]

_NO_COSTS = MessageCosts()
_KINDS = ("device", "processor", "radio", "send", "receive", "medium")


def compute_s(device: Device, strip: Strip) -> float:
    """Seconds of a strip on a device, without messages."""
    named = sum(strip.macs_of.values())
    weighed = sum(device.alpha_of.get(kind, device.alpha) * macs for kind, macs in strip.macs_of.items())
    return (device.alpha * (strip.macs - named) + weighed) / device.mac_per_s + strip.moved_bytes / device.moved_per_s


def transfer_s(cluster: Cluster, transfer: Transfer) -> float:
    """Seconds of a message from its sending to its arrival, with its latency."""
    rate, latency = cluster.link(transfer.source, transfer.target)
    return latency + transfer.nbytes / rate


def _seconds(cluster: Cluster, frame: FrameTasks | Pipeline) -> list[float]:
    """Seconds of each task until it is done. The processor time of a device's messages is spread over its computations
    in proportion to their lengths."""
    seconds, own = [], [0.0] * len(cluster.devices)
    count = [0] * len(cluster.devices)
    for task in frame.tasks:
        if task.transfer is not None:
            seconds.append(transfer_s(cluster, task.transfer))
            continue
        strip = frame.stages[task.stage].blocks[task.block].strips[task.strip]
        seconds.append(compute_s(cluster.devices[strip.device], strip))
        own[strip.device] += seconds[-1]
        count[strip.device] += 1
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


def timed_tasks(cluster: Cluster, frame: FrameTasks | Pipeline) -> tuple[list[TimedTask], tuple[Resource, ...]]:
    """The tasks with their seconds and the numbers of their resources, and all resources that any task holds: sorted by
    device, the medium last."""
    tasks = frame.tasks
    held = [_resources(cluster, task) for task in tasks]
    used = sorted(
        {resource for resources in held for resource in resources},
        key=lambda resource: (resource.kind == "medium", resource.device, _KINDS.index(resource.kind)),
    )
    number = {resource: place for place, resource in enumerate(used)}
    holding = cluster.occupied
    timed = []
    for task, seconds, resources in zip(tasks, _seconds(cluster, frame), held, strict=True):
        occupied = seconds if task.transfer is None else min(seconds, transfer_s(holding, task.transfer))
        numbers = tuple(sorted(number[one] for one in resources))
        timed.append(TimedTask(occupied, numbers, task.after, seconds - occupied))
    return timed, tuple(used)


def _resources(cluster: Cluster, task: Task) -> tuple[Resource, ...]:
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
