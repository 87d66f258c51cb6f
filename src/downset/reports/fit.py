"""A fit in words: what it gained, what is proven, and what the user does next."""

from __future__ import annotations

from downset.reports.comparisons import comparison_lines
from downset.reports.peak import peak_cause
from downset.results import Fit
from downset.text import format_bytes

__all__ = ["fit_lines"]


def fit_lines(result: Fit) -> list[str]:
    """What `fit` found in words, a line each: the verdict, the peak's cause, rewrites, traffic, outputs, next step."""
    lines = [_verdict(result)]
    graph, order = result.graph, result.together.order
    steps = order.steps if result.ships_plan else range(len(graph.ops))
    cause = peak_cause(graph, steps, result.target)
    if cause is not None:
        op = graph.ops[cause.operator]
        lines.append(
            f"peak at step {cause.step} of {len(graph.ops)}: {op.kind} {op.name!r}, where the largest live are"
        )
        lines += [f"  {format_bytes(nbytes):>12} B  {name}" for name, nbytes in cause.live[:3]]
    for rewrite in result.rewrites:
        if rewrite.kind == "row-wise":
            lines.append(f"rewritten: {rewrite.name}; the peak falls by {format_bytes(rewrite.bytes_gained)} B")
            continue
        readers = f"{len(rewrite.readers)} operator{'' if len(rewrite.readers) == 1 else 's'}"
        lines.append(
            f"rewritten: {rewrite.name} taken apart ({rewrite.kind}, at {readers}); without "
            f"that the peak is {format_bytes(rewrite.bytes_gained)} B higher"
        )
    for row in result.traffic:
        lines.append(
            f"off-chip traffic with {format_bytes(row.on_chip_bytes)} B on chip (simulated): "
            f"{format_bytes(row.before.total_bytes)} B before, {format_bytes(row.after.total_bytes)} B after "
            "(what dies makes room at once)"
        )
    if result.not_measured:
        lines.append(f"not measured: {result.not_measured}; the figures are the plan's alone")
    if result.shipped != "original":
        lines += comparison_lines(result.outputs)
    lines += _next_step(result)
    if result.output_path:
        lines.append(f"written: {result.output_path} ({result.shipped})")
    return lines


def _verdict(result: Fit) -> str:
    peak, arena = result.peak, result.arena
    if result.shipped == "original":
        if result.together.arena.arena_bytes < arena.after:
            return "A smaller plan exists, but the runtime takes less memory for the file as it is."
        if arena.proven:
            return "The file is already optimal: no order and no placement needs less. That is proven."
        if peak.proven:
            return "The file's order is already optimal (proven), and no better placement was found."
        return "No better order or placement was found."
    if peak.before == peak.after and peak.proven:
        return "The file's order is already optimal (proven); what is gained comes from placement."
    saved = (1 - arena.after / arena.before) if arena.before else 0.0
    return f"Arena {saved:.1%} smaller ({result.shipped})."


def _next_step(result: Fit) -> list[str]:
    """What the user does next, ready to paste."""
    if result.target == "tflm":
        if result.measured is not None:
            name = "original" if result.shipped == "original" else result.shipped
            parts = result.measured.details[name]
            total = -(-result.measured.after // 16) * 16
            return [
                f"constexpr size_t kTensorArenaSize = {total};  "
                f"// head and scratch {parts['head_bytes']} + tail {parts['tail_bytes']}, as TFLite Micro reports them"
            ]
        return [
            f"constexpr size_t kTensorArenaSize = {-(-result.arena.after // 16) * 16} + TAIL;  "
            "// tensors only: TFLite Micro's scratch and tail are not known here (see the note)"
        ]
    if result.target == "ort":
        return [
            "session options: graph_optimization_level = ORT_DISABLE_ALL, execution_order = PRIORITY_BASED "
            "(then ONNX Runtime follows the file's order)"
        ]
    return []
