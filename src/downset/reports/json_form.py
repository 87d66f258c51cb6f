"""The JSON forms that commands print with --json, as docs/schemas describes them. Keys are added, never renamed.

Each function returns a command's keys as plain values. The command line adds the keys that all commands share (`kind`,
`schema`, `ok`, `error`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from downset.graph.core import Graph
from downset.memory.traffic import Traffic
from downset.pipeline_results import Served, Simulation
from downset.plans import Arena, DeviceMemory, Order, Pipeline, SharedObjects
from downset.reports.arena_view import order_operators
from downset.reports.fit import stopped_by
from downset.reports.front_json import front_json, latency_json
from downset.reports.memory_map import moved_steps
from downset.reports.naming import kind_name
from downset.reports.next_steps import (
    arena_next_steps,
    next_steps,
    objects_next_steps,
    order_next_steps,
    steps_json,
)
from downset.reports.peak import peak_cause
from downset.reports.pipelines import device_loads, message_bytes
from downset.reports.time_steps import (
    pipeline_next_steps,
    served_next_steps,
    simulation_next_steps,
    stage_next_steps,
)
from downset.results import Comparison, Figure, Fit, Inspection
from downset.sessions import SessionSettings, SessionTaken
from downset.stage_results import StageResult, StageRun, percentile

__all__ = [
    "comparison_json",
    "fit_json",
    "inspection_json",
    "order_json",
    "pipeline_json",
    "placement_json",
    "served_json",
    "simulation_json",
    "stage_result_json",
    "stage_run_json",
]


def _named(value: object, *names: str) -> dict[str, Any]:
    """Attributes of a value, by their names."""
    return {name: getattr(value, name) for name in names}


def fit_json(fit: Fit) -> dict[str, Any]:
    """docs/schemas/fit.json."""
    measured = fit.measured
    return {
        "model": fit.model,
        "target": fit.target,
        "kernels": fit.assumed_kernels,
        "peak_bytes": _figure(fit.peak),
        "arena_bytes": _figure(fit.arena),
        "measured": None
        if measured is None
        else {
            **_named(measured, "runtime", "before", "after", "before_s"),
            "after_s": None if measured.latency is None else measured.latency.run_s,
            "latency": latency_json(measured.latency),
            "rows": [_session_taken(row) for row in measured.rows],
            "front": [_session_taken(row) for row in measured.front],
        },
        "ram": None
        if fit.ram is None
        else {
            "state": fit.ram.state,
            "limit_bytes": fit.ram.limit_bytes,
            "needed_bytes": fit.ram.needed_bytes,
            "least_bytes": fit.ram.least_bytes,
            "least_of": fit.ram.least_of,
            "free_bytes": fit.ram.free_bytes,
            "scratch_bytes": fit.ram.scratch_bytes,
        },
        **_shipped(fit),
        "not_measured": fit.not_measured or None,
        "session": None if fit.session is None else _settings(fit.session),
        "session_path": fit.session_path,
        "shipped": fit.shipped,
        "stopped_by": stopped_by(fit) or None,
        "next_steps": steps_json(next_steps(fit)),
        "notes": list(fit.notes),
        "outputs": comparison_json(fit.outputs),
        "output_path": fit.output_path,
        "rewrites": [
            _named(rewrite, "name", "kind", "bytes_gained") | {"readers": list(rewrite.readers)}
            for rewrite in fit.rewrites
        ],
        "front": [front_json(row) for row in fit.front],
        "traffic": [
            {"on_chip_bytes": row.on_chip_bytes, "before": _traffic(row.before), "after": _traffic(row.after)}
            for row in fit.traffic
        ],
    }


def _shipped(fit: Fit) -> dict[str, Any]:
    """The shipped file: its order, the places of its tensors, the memory that the runtime takes beside them, and the
    cause of the peak."""
    graph = fit.graph
    steps = fit.together.order.steps if fit.ships_plan else tuple(range(len(graph.ops)))
    arena = fit.together.arena if fit.ships_plan else fit.before
    taken = fit.measured.details.get(fit.shipped, {}) if fit.measured is not None else {}
    head, tail = taken.get("head_bytes"), taken.get("tail_bytes")
    return {
        "order": [graph.ops[step].name for step in steps],
        "offsets": [
            {"name": one.id, "offset": offset, "bytes": one.nbytes, "start": one.start, "stop": one.stop}
            for one, offset in zip(arena.records, arena.offsets, strict=True)
        ],
        "parts": {
            "head_bytes": head,
            "scratch_bytes": None if head is None else max(0, head - arena.arena_bytes),
            "tail_bytes": tail,
        },
        "peak": _peak(graph, steps, fit.memory if fit.ships_plan else fit.target),
    }


def _peak(graph: Graph, steps: Sequence[int], memory: str) -> dict[str, Any] | None:
    """The cause of an order's peak, with every tensor that lives then."""
    cause = peak_cause(graph, steps, memory)
    if cause is None:
        return None
    return {
        "step": cause.step,
        "operator": graph.ops[cause.operator].name,
        "kind": kind_name(graph, graph.ops[cause.operator]),
        "bytes": cause.nbytes,
        "tensors": [{"name": name, "bytes": nbytes} for name, nbytes in cause.live],
    }


def _session_taken(row: SessionTaken) -> dict[str, Any]:
    return {
        "file": row.file,
        "settings": _settings(row.settings),
        **_named(row, "in_use_bytes", "held_bytes", "process_bytes"),
        "latency": latency_json(row.latency),
    }


def _settings(settings: SessionSettings) -> dict[str, Any]:
    return {
        "name": settings.name,
        "options": dict(settings.options),
        "config": dict(settings.config),
        "arena": dict(settings.arena),
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return _named(figure, "before", "after", "bound", "proven")


def _traffic(traffic: Traffic) -> dict[str, int]:
    return _named(traffic, "read_bytes", "written_bytes", "dead_bytes_dropped")


def inspection_json(inspection: Inspection) -> dict[str, Any]:
    """docs/schemas/inspect.json."""
    return {
        **_named(inspection, "model", "format", "memory", "operators", "tensors", "activation_bytes", "weight_bytes"),
        **_named(inspection, "width", "downsets", "downsets_log10", "downsets_exact", "peak_bytes"),
        "inputs": [{"name": tensor.name, "shape": list(tensor.shape)} for tensor in inspection.inputs],
        "outputs": [{"name": tensor.name, "shape": list(tensor.shape)} for tensor in inspection.outputs],
        "steps": [_named(row, "step", "kind", "name", "live_bytes") for row in inspection.steps],
    }


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """docs/schemas/verify.json."""
    proof = comparison.proof
    return {
        "runtime": comparison.runtime,
        "equal": comparison.equal,
        "max_abs_error": comparison.max_abs_error,
        "largest_output": comparison.largest,
        "inputs_tried": comparison.runs,
        "outputs_vary": comparison.varies,
        "tensors_inside": comparison.inside,
        "inside_note": comparison.inside_note,
        "equal_with_offsets": comparison.placed,
        "unshown_difference": comparison.unshown,
        "proof": None if proof is None else _named(proof, "proven", "exact", "optimised", "rewrites", "reason"),
    }


def order_json(order: Order, graph: Graph) -> dict[str, Any]:
    """docs/schemas/order.json."""
    evidence = order.evidence
    operators = order_operators(graph, order.steps, order.memory)
    given = order_operators(graph, range(len(graph.ops)), order.memory)
    moved = moved_steps(given, operators)
    return {
        "method": evidence.method,
        "memory": order.memory,
        "peak_bytes": order.peak_bytes,
        "bound_bytes": int(evidence.bound),
        "proven": evidence.proven,
        "states": evidence.states,
        "seconds": evidence.seconds,
        "stopped_by": evidence.stopped_by or None,
        "order": list(order.steps),
        "before_bytes": max((operator.live_bytes for operator in given), default=0),
        "operators": [
            {"step": step, "file_step": place, "moved": step in moved, **_named(operator, "name", "kind", "live_bytes")}
            for step, (place, operator) in enumerate(zip(order.steps, operators, strict=True))
        ],
        "peak": _peak(graph, order.steps, order.memory),
        "next_steps": steps_json(order_next_steps(order, graph)),
    }


def placement_json(placed: Arena | SharedObjects, capacity_bytes: int | None = None) -> dict[str, Any]:
    """docs/schemas/arena.json: of an arena, or of shared objects."""
    evidence = placed.evidence
    places: dict[str, Any]
    if isinstance(placed, Arena):
        steps = arena_next_steps(placed, capacity_bytes)
        offsets = zip(placed.records, placed.offsets, strict=True)
        places = {"offsets": [{"id": record.id, "offset": offset} for record, offset in offsets]}
    else:
        steps = objects_next_steps(placed)
        holders = zip(placed.records, placed.object_of, strict=True)
        places = {
            "objects": [{"id": record.id, "object": holder} for record, holder in holders],
            "object_bytes": list(placed.object_bytes),
        }
    return {
        "method": evidence.method,
        "arena_bytes": int(evidence.value),
        "bound_bytes": int(evidence.bound),
        "proven": evidence.proven,
        "seconds": evidence.seconds,
        "stopped_by": evidence.stopped_by or None,
        "next_steps": steps_json(steps),
        **places,
    }


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


def stage_result_json(result: StageResult) -> dict[str, Any]:
    """docs/schemas/stage.json."""
    plan = result.plan
    return {
        "device": plan.device_name,
        "versions": plan.versions,
        "dtype": plan.dtype,
        "batch": plan.batch,
        "chosen": plan.evidence.method,
        "asked": result.asked,
        "speedup": result.speedup,
        "why": result.why,
        "candidates": [
            {
                "name": candidate.name,
                "p10_s": candidate.percentile(0.1),
                "p50_s": candidate.percentile(0.5),
                "p90_s": candidate.percentile(0.9),
                "stages": len(candidate.stages),
                "live_bytes": candidate.live_bytes,
            }
            for candidate in result.candidates
        ],
        "timings_used": result.timings_used,
        "bound_s": result.bound_s,
        "peers": [
            {"name": name, **{f"p{share}_s": percentile(seconds, share / 100) for share in (10, 50, 90)}}
            for name, seconds in result.peer_s.items()
        ],
        "next_steps": steps_json(stage_next_steps(result)),
        "notes": list(result.notes),
    }


def stage_run_json(run: StageRun) -> dict[str, Any]:
    """docs/schemas/run.json. An error that is not a finite number is null."""
    worst = run.max_relative_error
    return {
        "device": run.device_name,
        "p50_s": median(run.seconds),
        "runs": len(run.seconds),
        "max_relative_error": worst if worst is None or worst < float("inf") else None,
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
        "devices": [_named(use, *use.__slots__) for use in served.devices],
        "events": [_named(event, *event.__slots__) for event in served.events],
        "next_steps": steps_json(served_next_steps(served, plan, local=local)),
    }
