"""A simulated pipeline in words."""

from __future__ import annotations

from collections.abc import Sequence

from downset.plans import Pipeline
from downset.results import Simulation
from downset.text import counted, printable

__all__ = ["simulation_lines"]

_QUANTILES = ("p50", "p90", "p99", "max")
_MUCH_LONGER = 1.5
"""Latencies that are so many times that of one frame alone are explained."""


def simulation_lines(found: Simulation, plan: Pipeline, *, arrives: bool = False) -> list[str]:
    """The result of the simulation of a plan in words, beside the analytic figures. `arrives`: frames came at times of
    their own, instead of one always waiting."""
    names = [printable(device.name) for device in plan.cluster.devices]
    analytic = f"analytic {plan.period_s:.6g} s"
    if not found.completed:
        lines = [f"simulated: none of {found.frames} frames was completed ({analytic})"]
    else:
        period = "too few to tell a period" if found.period_s is None else f"period {found.period_s:.6g} s"
        lines = [f"simulated: {found.completed} of {found.frames} frames, {period} ({analytic})"]
        lines += _latency(found, plan, arrives=arrives)
        lines += [
            f"{what}: " + ", ".join(f"{name} {share:.0%}" for name, share in zip(names, shares, strict=True))
            for what, shares in _shares(found)
        ]
        lines.append("redundancy: " + ", ".join(f"{n} {r:.1%}" for n, r in zip(names, found.redundancy, strict=True)))
    if found.energy_j is not None:
        lines.append(f"energy: {found.energy_j:.4g} J a frame")
    if found.falls_behind:
        lines.append(
            f"frames arrive faster than the plan sustains, one every {found.sustained_period_s:.6g} s: queues grow; "
            f"{found.last_waiting} frames waited when the last one arrived"
        )
    if found.stalled_at_s is None and 0 < found.completed < 3 * found.window:
        lines.append(f"few frames: the pipeline fills and drains in {found.window} each; give --frames more")
    if found.stalled_at_s is not None:
        lines.append(f"stalled at {found.stalled_at_s:.6g} s: a dead device is needed for every frame after that")
    return lines


def _latency(found: Simulation, plan: Pipeline, *, arrives: bool) -> list[str]:
    if found.latency_s is None:
        return []
    latencies = zip(_QUANTILES, found.latency_s, strict=True)
    pace = "" if arrives else ", 0.95 of the rate that is sustained"
    lines = [
        "latency: "
        + ", ".join(f"{quantile} {seconds:.4g} s" for quantile, seconds in latencies)
        + f" (analytic, one frame alone: {plan.latency_s:.4g} s), from arrival; a frame every {found.arrival_s:.4g} s"
        + pace
    ]
    if found.latency_s[0] > _MUCH_LONGER * plan.latency_s:
        lines.append(
            f"a frame waits for those ahead of it, up to {counted(found.window, 'frame')} inside: fewer inside "
            "(downset split --window) or frames that come less often (--arrival) make latencies shorter"
        )
    return lines


def _shares(found: Simulation) -> list[tuple[str, Sequence[float]]]:
    """Sending and receiving only where a device does any."""
    apart = [("sending", found.sending), ("receiving", found.receiving)]
    return [("utilisation (computing alone)", found.utilisation), *((what, of) for what, of in apart if any(of))]
