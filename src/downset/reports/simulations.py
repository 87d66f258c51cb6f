"""Describes the simulation of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from downset.messages import Call, Message, Setting
from downset.results.pipelines import Pipeline
from downset.results.serving import Simulation
from downset.text import counted, printable

__all__ = ["simulation_lines"]

_QUANTILES = ("p50", "p90", "p99", "max")
_MUCH_LONGER = 1.5
"""A latency above this many times that of one frame alone is explained."""


def simulation_lines(simulation: Simulation, plan: Pipeline, *, arrives: bool = False) -> list[str]:
    """Lines on the simulation of a plan, next to the analytic figures. `arrives`: frames arrived at given times;
    otherwise one was always waiting."""
    names = [printable(device.name) for device in plan.cluster.devices]
    analytic = f"analytic {plan.period_s:.6g} s"
    if not simulation.completed:
        lines = [f"simulated: none of {simulation.frames} frames was completed ({analytic})"]
    else:
        period = "too few to tell a period" if simulation.period_s is None else f"period {simulation.period_s:.6g} s"
        lines = [f"simulated: {simulation.completed} of {simulation.frames} frames, {period} ({analytic})"]
        lines += _latency(simulation, plan, arrives=arrives)
        lines += [
            f"{what}: " + ", ".join(f"{name} {share:.0%}" for name, share in zip(names, shares, strict=True))
            for what, shares in _shares(simulation)
        ]
        lines.append(
            "redundancy: " + ", ".join(f"{n} {r:.1%}" for n, r in zip(names, simulation.redundancy, strict=True))
        )
    if simulation.energy_j is not None:
        lines.append(f"energy: {simulation.energy_j:.4g} J a frame")
    if simulation.falls_behind:
        lines.append(
            f"frames arrive faster than the plan sustains, one every {simulation.sustained_period_s:.6g} s: queues "
            f"grow; {simulation.last_waiting} frames waited when the last one arrived"
        )
    if simulation.stalled_at_s is None and 0 < simulation.completed < 3 * simulation.window:
        lines.append(f"few frames: the pipeline fills and drains in {simulation.window} each; give more frames")
    if simulation.stalled_at_s is not None:
        lines.append(f"stalled at {simulation.stalled_at_s:.6g} s: a dead device is needed for every frame after that")
    return lines


def _latency(simulation: Simulation, plan: Pipeline, *, arrives: bool) -> list[str]:
    if simulation.latency_s is None:
        return []
    latencies = zip(_QUANTILES, simulation.latency_s, strict=True)
    pace = "" if arrives else ", 0.95 of the rate that is sustained"
    lines = [
        "latency: "
        + ", ".join(f"{quantile} {seconds:.4g} s" for quantile, seconds in latencies)
        + f" (analytic, one frame alone: {plan.latency_s:.4g} s), from arrival; "
        + f"a frame every {simulation.arrival_s:.4g} s"
        + pace
    ]
    if simulation.latency_s[0] > _MUCH_LONGER * plan.latency_s:
        lines.append(
            Message(
                f"a frame waits for those ahead of it, up to {counted(simulation.window, 'frame')} inside: ",
                "fewer inside (",
                Call("plan_pipeline", (Setting("window"),)),
                ") or frames that come less often (",
                Setting("arrival_s"),
                ") make latencies shorter",
            )
        )
    return lines


def _shares(simulation: Simulation) -> list[tuple[str, Sequence[float]]]:
    """The shares to show; sending and receiving only if some device does so."""
    apart = [("sending", simulation.sending), ("receiving", simulation.receiving)]
    return [("utilisation (computing alone)", simulation.utilisation), *((what, of) for what, of in apart if any(of))]
