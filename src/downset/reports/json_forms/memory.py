"""The JSON forms of an inspection, an order, and an arena or shared objects."""

from __future__ import annotations

from typing import Any

from downset.graph.core import Graph
from downset.reports.arena_view import order_operators
from downset.reports.json_forms.parts import named, peak_json
from downset.reports.memory_map import moved_steps
from downset.reports.next_steps import arena_next_steps, objects_next_steps, order_next_steps, steps_json
from downset.results.fit import Inspection
from downset.results.plans import Arena, Order, SharedObjects

__all__ = ["inspection_json", "order_json", "placement_json"]


def inspection_json(inspection: Inspection) -> dict[str, Any]:
    """docs/schemas/inspect.json."""
    return {
        **named(inspection, "model", "format", "memory", "operators", "tensors", "activation_bytes", "weight_bytes"),
        **named(inspection, "width", "downsets", "downsets_log10", "downsets_exact", "peak_bytes"),
        "inputs": [{"name": tensor.name, "shape": list(tensor.shape)} for tensor in inspection.inputs],
        "outputs": [{"name": tensor.name, "shape": list(tensor.shape)} for tensor in inspection.outputs],
        "steps": [named(row, "step", "kind", "name", "live_bytes") for row in inspection.steps],
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
            {"step": step, "file_step": place, "moved": step in moved, **named(operator, "name", "kind", "live_bytes")}
            for step, (place, operator) in enumerate(zip(order.steps, operators, strict=True))
        ],
        "peak": peak_json(graph, order.steps, order.memory),
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
