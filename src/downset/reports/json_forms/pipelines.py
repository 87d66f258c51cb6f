"""The JSON forms of a pipeline, its simulation and its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from downset.reports.document import named
from downset.reports.next_steps import steps_json
from downset.reports.pipelines import device_loads, message_bytes
from downset.reports.time_steps import pipeline_next_steps, served_next_steps, simulation_next_steps
from downset.results.pipelines import DeviceMemory, Pipeline
from downset.results.serving import Served, Simulation

__all__ = ["pipeline_json", "served_json", "simulation_json"]


def pipeline_json(
    plan: Pipeline,
    compared: Mapping[str, Pipeline | None],
    upgraded: Mapping[str, Pipeline | None] | None = None,
) -> dict[str, Any]:
    """docs/schemas/split.json. `compared`: plans of other methods, None for a method without a plan within the limits.
    `upgraded`: plans for upgraded clusters, by what is added."""
    memory = {held.device: held for held in plan.memory}
    return {
        "method": plan.evidence.method,
        "comm": plan.comm,
        "topology": plan.topology,
        "source": plan.source,
        "sink": plan.sink,
        "period_s": plan.period_s,
        "latency_s": plan.latency_s,
        "load_bound_s": None if plan.schedule is None else plan.schedule.load_bound_s,
        "window": None if plan.schedule is None else plan.schedule.window,
        "bound_period_s": plan.evidence.bound,
        "proven": plan.evidence.proven,
        "space": plan.space,
        "floor_period_s": plan.floor_s,
        "note": plan.note,
        "stages": [_stage(plan, place) for place in range(len(plan.stages))],
        "devices": [
            {
                "device": device.name,
                "compute_s": load.compute_s,
                "send_s": load.send_s,
                "receive_s": load.receive_s,
                **_held(memory.get(number)),
            }
            for number, (device, load) in enumerate(zip(plan.cluster.devices, device_loads(plan), strict=True))
        ],
        "stopped": plan.stopped,
        "compare": {name: None if other is None else other.period_s for name, other in compared.items()},
        "what_if": {added: None if other is None else other.period_s for added, other in (upgraded or {}).items()},
        "next_steps": steps_json(pipeline_next_steps(plan, upgraded, compared)),
        "compare_stopped": [name for name, other in compared.items() if other is not None and other.stopped],
    }


def _held(held: DeviceMemory | None) -> dict[str, int | None]:
    return {
        "memory_bytes": None if held is None else held.total_bytes,
        "weights_bytes": None if held is None else held.weights_bytes,
        "overhead_bytes": None if held is None else held.overhead_bytes,
        "arena_bytes": None if held is None else held.arena_bytes,
    }


def _stage(plan: Pipeline, place: int) -> dict[str, Any]:
    devices, stage = plan.cluster.devices, plan.stages[place]
    return {
        "ops": list(stage.ops),
        "leader": devices[stage.leader].name if stage.leader >= 0 else None,
        "devices": [devices[device].name for device in stage.devices],
        "blocks": [
            {
                "axis": block.axis,
                "frame_rows": block.frame_rows,
                "rule": block.rule,
                "rows": [
                    {"device": devices[strip.device].name, "start": strip.start, "stop": strip.stop}
                    | ({"columns": list(strip.columns)} if strip.columns else {})
                    for strip in block.strips
                ],
            }
            for block in stage.blocks
        ],
        "macs": stage.macs,
        "redundant_macs": stage.redundant_macs,
        "bytes": message_bytes(plan, place),
    }


def simulation_json(simulation: Simulation, plan: Pipeline, *, replanned: bool = False) -> dict[str, Any]:
    """docs/schemas/simulate.json. If no frame was completed, there is neither a period nor a latency. `replanned`: a
    plan without the dead devices was made."""
    names = [device.name for device in plan.cluster.devices]
    quantiles = ("p50", "p90", "p99", "max")
    latencies = simulation.latency_s or (None,) * 4
    return {
        "frames": simulation.frames,
        "completed": simulation.completed,
        "period_s": simulation.period_s,
        "analytic_period_s": plan.period_s,
        "sustained_period_s": simulation.sustained_period_s,
        "latency_s": dict(zip(quantiles, latencies, strict=True)),
        "arrival_s": simulation.arrival_s,
        "queue": {"most": simulation.most_waiting, "last": simulation.last_waiting, "grows": simulation.falls_behind},
        "utilisation": dict(zip(names, simulation.utilisation, strict=True)),
        "sending": dict(zip(names, simulation.sending, strict=True)),
        "receiving": dict(zip(names, simulation.receiving, strict=True)),
        "redundancy": dict(zip(names, simulation.redundancy, strict=True)),
        "buffer_bytes": dict(zip(names, simulation.buffer_bytes, strict=True)),
        "energy_j": simulation.energy_j,
        "stalled_at_s": simulation.stalled_at_s,
        "next_steps": steps_json(simulation_next_steps(simulation, plan, replanned=replanned)),
    }


def served_json(served: Served, plan: Pipeline, *, local: bool = False) -> dict[str, Any]:
    """docs/schemas/serve.json. `local`: the devices were processes of this machine."""
    quantiles = ("p50", "p90", "p99", "max")
    return {
        "frames": served.frames,
        "completed": served.completed,
        "seconds": served.seconds,
        "period_s": served.period_s,
        "planned_period_s": served.planned_period_s,
        "first_planned_period_s": served.first_planned_period_s,
        "latency_s": None if served.latency_s is None else dict(zip(quantiles, served.latency_s, strict=True)),
        "planned_latency_s": served.planned_latency_s,
        "method": plan.evidence.method,
        "replans": served.replans,
        "devices": [named(use, *use.__slots__) for use in served.devices],
        "events": [named(event, *event.__slots__) for event in served.events],
        "next_steps": steps_json(served_next_steps(served, plan, local=local)),
    }
