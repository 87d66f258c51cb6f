"""A simulated pipeline in words."""

from __future__ import annotations

from downset.plans import Pipeline
from downset.results import Simulation
from downset.text import printable

__all__ = ["simulation_lines"]


def simulation_lines(found: Simulation, plan: Pipeline, *, arrives: bool = False) -> list[str]:
    """What the simulation of a plan found, beside the analytic figures. `arrives`: frames came at times of their own,
    instead of one always waiting."""
    names = [printable(device.name) for device in plan.cluster.devices]
    latencies = zip(("p50", "p90", "p99", "max"), found.latency_s, strict=True)
    lines = [
        f"simulated: {found.completed} of {found.frames} frames, period {found.period_s:.6g} s (analytic "
        f"{plan.period_s:.6g} s)",
        "latency: "
        + ", ".join(f"{quantile} {seconds:.4g} s" for quantile, seconds in latencies)
        + f" (analytic, one frame alone: {plan.latency_s:.4g} s), from when the first stage begins with a frame"
        + ("" if arrives else f"; up to {found.window} frames are inside at once"),
        "utilisation: " + ", ".join(f"{n} {u:.0%}" for n, u in zip(names, found.utilisation, strict=True)),
        "redundancy: " + ", ".join(f"{n} {r:.1%}" for n, r in zip(names, found.redundancy, strict=True)),
    ]
    if not found.completed:
        lines = [f"simulated: none of {found.frames} frames was completed (analytic period {plan.period_s:.6g} s)"]
    if found.energy_j is not None:
        lines.append(f"energy: {found.energy_j:.4g} J a frame")
    if 0 < found.completed < 3 * found.window:
        lines.append(f"few frames: the pipeline fills and drains in {found.window} each; give --frames more")
    if found.stalled_at_s is not None:
        lines.append(f"stalled at {found.stalled_at_s:.6g} s: a dead device is needed for every frame after that")
    return lines
