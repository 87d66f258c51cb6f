"""Plans made of bare tasks: one stage whose computations and transfers take the seconds asked for."""

from __future__ import annotations

from downset.clusters.model import Cluster, Device, Network
from downset.results.pipelines import (
    Block,
    Buffer,
    Pipeline,
    PipelineSchedule,
    PipelineStage,
    Resource,
    ResourceOrder,
    Strip,
    Task,
    Transfer,
)
from downset.results.plans import Evidence


def plan_of(tasks, orders, window, *, buffers=(), period_s=1.0, latency_s=1.0):
    """Tasks hold one resource (they compute there) or two (a transfer); resource r is device r, and does one thing at a
    time. A MAC and a byte take a second. `buffers`: (device, bytes, slots, writers, readers)."""
    devices = len(orders)
    cluster = Cluster(tuple(Device(f"d{k}", 1.0) for k in range(devices)), Network("links", 1.0))
    strips, listed = [], []
    for task in tasks:
        if len(task.resources) == 1:
            (device,) = task.resources
            listed.append(Task(0, 0, device, strip=len(strips), after=task.after))
            strips.append(Strip(device, 0, 1, task.seconds, 0, 0, 0, 0))
        else:
            source, target = task.resources
            listed.append(Task(0, 0, source, transfer=Transfer(source, target, (), task.seconds), after=task.after))
    block = Block(0, 1, (0,), 0, 1, "direct", tuple(strips))
    schedule = PipelineSchedule(
        window,
        tuple(ResourceOrder(Resource("device", k), turns) for k, turns in enumerate(orders) if turns),
        tuple(Buffer(buffer[0], 0, 0, 1, *buffer[1:]) for buffer in buffers),
        0.0,
    )
    return Pipeline(
        cluster,
        "resources",
        "direct",
        0,
        0,
        "outside",
        "outside",
        (PipelineStage((0,), -1, tuple(range(devices)), (block,), 0, 0),),
        tuple(listed),
        schedule,
        (),
        period_s,
        latency_s,
        Evidence("tasks", period_s, 0.0, False),
        "tasks",
    )
