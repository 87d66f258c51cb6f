"""A pipeline in words: what each stage computes on which rows, and how busy each device is."""

from __future__ import annotations

from collections.abc import Mapping

from downset.plans import Pipeline, PipelineStage
from downset.text import printable

__all__ = ["compared_lines", "period_line", "stage_rows", "utilisation", "utilisation_line"]

_MOST_BLOCKS = 4
"""Blocks of a stage that are listed; the rest is counted."""


def utilisation(plan: Pipeline) -> list[float]:
    """By device: the share of a period that it computes."""
    busy = [0.0] * len(plan.cluster.devices)
    for stage in plan.stages:
        for block in stage.blocks:
            for strip in block.strips:
                busy[strip.device] += strip.macs / plan.cluster.devices[strip.device].speed
    return [seconds / plan.period_s if plan.period_s else 0.0 for seconds in busy]


def stage_rows(plan: Pipeline, stage: PipelineStage) -> list[str]:
    """By block of a stage: which device computes which rows; the leader has a star."""
    names = [printable(device.name) for device in plan.cluster.devices]
    rows = [
        " ".join(
            f"{names[strip.device]}{'*' if strip.device == stage.leader else ''}: {strip.start}-{strip.stop}"
            + (f" x {strip.columns[0]}-{strip.columns[1]}" if strip.columns else "")
            for strip in block.strips
        )
        for block in stage.blocks[:_MOST_BLOCKS]
    ]
    if len(stage.blocks) > _MOST_BLOCKS:
        rows.append(f"... {len(stage.blocks) - _MOST_BLOCKS} more blocks")
    return rows


def period_line(plan: Pipeline) -> str:
    """Period with its proof or gap, latency and throughput. Analytic."""
    evidence = plan.evidence
    gap = evidence.value / evidence.bound - 1 if evidence.bound else 0.0
    proof = "proven" if evidence.proven else f"bound {evidence.bound:.6g} s, gap {gap:.1%}"
    return (
        f"{evidence.method}: period {plan.period_s:.6g} s ({proof}), latency {plan.latency_s:.6g} s, "
        f"{plan.throughput_per_s:.4g} frames/s; analytic, communication as {plan.comm}"
    )


def utilisation_line(plan: Pipeline) -> str:
    """How busy each device is, in words."""
    names = (printable(device.name) for device in plan.cluster.devices)
    shares = zip(names, utilisation(plan), strict=True)
    return "utilisation: " + ", ".join(f"{name} {share:.0%}" for name, share in shares)


def compared_lines(plan: Pipeline, compared: Mapping[str, Pipeline | None]) -> list[str]:
    """The periods of other methods, shortest first, beside the plan's."""
    lines = []
    for name, other in sorted(compared.items(), key=lambda item: item[1].period_s if item[1] else float("inf")):
        said = "no plan within the limits"
        if other is not None:
            ratio = f" ({other.period_s / plan.period_s:.2f}x)" if plan.period_s > 0 else ""
            said = f"{other.period_s:.6g} s{ratio}{', best so far: stopped at its limit' if other.stopped else ''}"
        lines.append(f"  {name:14} {said}")
    return lines
