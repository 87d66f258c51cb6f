"""The JSON form of a fit, and of a comparison of two files."""

from __future__ import annotations

from typing import Any

from downset.memory.traffic import Traffic
from downset.reports.fit import stopped_by
from downset.reports.gaps import gap_of
from downset.reports.json_forms.parts import named, peak_json
from downset.reports.next_steps import next_steps, steps_json
from downset.results.fit import Comparison, Figure, Fit, FrontRow
from downset.results.sessions import Latency, SessionSettings, SessionTaken

__all__ = ["comparison_json", "fit_json", "front_json", "latency_json"]


def fit_json(fit: Fit) -> dict[str, Any]:
    """docs/schemas/fit.json."""
    measured = fit.measured
    return {
        "model": fit.model,
        "target": fit.target,
        "kernels": fit.assumed_kernels,
        "versions": dict(fit.versions),
        "peak_bytes": _figure(fit.peak, "every order of the network that ships"),
        "arena_bytes": _figure(fit.arena, "every order and placement of the network that ships"),
        "measured": None
        if measured is None
        else {
            **named(measured, "runtime", "before", "after", "before_s"),
            "after_s": None if measured.latency is None else measured.latency.run_s,
            "latency": latency_json(measured.latency),
            "rows": [_session_taken(row) for row in measured.rows],
            "front": [_session_taken(row) for row in measured.front],
            "loads": None
            if measured.loads is None
            else named(measured.loads, "processes", "least_bytes", "most_bytes", "at_every_load"),
        },
        "ram": None
        if fit.ram is None
        else {
            "state": fit.ram.state,
            "limit_bytes": fit.ram.limit_bytes,
            "needed_bytes": fit.ram.needed_bytes,
            "least_bytes": fit.ram.least_bytes,
            "least_of": fit.ram.least_of,
            "least_in_order_bytes": fit.ram.least_in_order_bytes,
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
            named(rewrite, "name", "kind", "bytes_gained") | {"readers": list(rewrite.readers)}
            for rewrite in fit.rewrites
        ],
        "front": [front_json(row) for row in fit.front],
        "traffic": [
            {"on_chip_bytes": row.on_chip_bytes, "before": _traffic(row.before), "after": _traffic(row.after)}
            for row in fit.traffic
        ],
    }


def _shipped(fit: Fit) -> dict[str, Any]:
    """The shipped file: its order, the places of its tensors, the memory that the runtime takes in addition, and the
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
        "peak": peak_json(graph, steps, fit.memory if fit.ships_plan else fit.target),
    }


def _session_taken(row: SessionTaken) -> dict[str, Any]:
    return {
        "file": row.file,
        "settings": _settings(row.settings),
        **named(row, "in_use_bytes", "held_bytes", "process_bytes"),
        "latency": latency_json(row.latency),
    }


def _settings(settings: SessionSettings) -> dict[str, Any]:
    return {
        "name": settings.name,
        "options": dict(settings.options),
        "config": dict(settings.config),
        "arena": dict(settings.arena),
    }


def _figure(figure: Figure, space: str) -> dict[str, Any]:
    gap = gap_of(figure.after, figure.bound)
    return {**named(figure, "before", "after", "bound", "proven"), "gap": gap, "space": space}


def _traffic(traffic: Traffic) -> dict[str, int]:
    return named(traffic, "read_bytes", "written_bytes", "dead_bytes_dropped")


def front_json(row: FrontRow) -> dict[str, Any]:
    """An item of `front` in docs/schemas/fit.json."""
    return {
        "segments": list(row.segments),
        "peak_bytes": row.peak_bytes,
        "arena_bytes": row.arena_bytes,
        "extra_macs": row.extra_macs,
        "extra_share": row.extra_share,
        "operators": row.operators,
        "file_bytes": row.file_bytes,
        "measured": dict(row.measured),
        "before_s": row.before_s,
        "after_s": None if row.latency is None else row.latency.run_s,
        "latency": latency_json(row.latency),
        "ships": row.ships,
    }


def latency_json(latency: Latency | None) -> dict[str, Any] | None:
    """`latency` in docs/schemas/fit.json."""
    if latency is None:
        return None
    return {
        name: getattr(latency, name) for name in ("run_s", "median_s", "rounds", "ratio", "ratio_low", "ratio_high")
    }


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """docs/schemas/verify.json."""
    proof = comparison.proof
    return {
        "proven": comparison.proven,
        "reason": comparison.reason,
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
        "tried": list(comparison.tried),
        "reached_difference": comparison.reached,
        "proof": None if proof is None else named(proof, "proven", "exact", "optimised", "rewrites", "reason"),
    }
