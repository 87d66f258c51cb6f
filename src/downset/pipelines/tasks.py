"""Resources that a frame's tasks occupy, and for how many seconds.

A computation takes alpha · MACs / mac_per_s, by kind where a device says so, and the bytes that operators without MACs
move at their rate. A transfer takes the latency of a message and its bytes at the pair's rate, and occupies both ends
for all of it. See docs/pipelines.md for the table of resources.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset.clusters.model import Cluster, Device
from downset.pipelines.scheduling.events import TimedTask
from downset.plans import PipelineStage, Resource, Strip, Task, Transfer

__all__ = ["compute_s", "seconds_of", "timed_tasks", "transfer_s"]

_KINDS = ("device", "processor", "radio", "send", "receive", "medium")


def compute_s(device: Device, strip: Strip) -> float:
    """Seconds of a strip on a device."""
    named = sum(strip.macs_of.values())
    weighed = sum(device.alpha_of.get(kind, device.alpha) * macs for kind, macs in strip.macs_of.items())
    return (device.alpha * (strip.macs - named) + weighed) / device.mac_per_s + strip.moved_bytes / device.moved_per_s


def transfer_s(cluster: Cluster, transfer: Transfer) -> float:
    """Seconds of a message, its latency included."""
    rate, latency = cluster.link(transfer.source, transfer.target)
    return latency + transfer.nbytes / rate


def seconds_of(cluster: Cluster, stages: Sequence[PipelineStage], task: Task) -> float:
    if task.transfer is not None:
        return transfer_s(cluster, task.transfer)
    strip = stages[task.stage].blocks[task.block].strips[task.strip]
    return compute_s(cluster.devices[strip.device], strip)


def timed_tasks(
    cluster: Cluster, stages: Sequence[PipelineStage], tasks: Sequence[Task]
) -> tuple[list[TimedTask], tuple[Resource, ...]]:
    """The tasks with their seconds and the numbers of their resources, and the resources that any of them holds: by
    device, the medium last."""
    held = [_resources(cluster, task) for task in tasks]
    used = sorted(
        {resource for resources in held for resource in resources},
        key=lambda resource: (resource.kind == "medium", resource.device, _KINDS.index(resource.kind)),
    )
    number = {resource: place for place, resource in enumerate(used)}
    timed = [
        TimedTask(seconds_of(cluster, stages, task), tuple(sorted(number[one] for one in resources)), task.after)
        for task, resources in zip(tasks, held, strict=True)
    ]
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
