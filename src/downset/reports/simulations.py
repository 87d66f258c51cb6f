"""Describes what a simulation of a pipeline found, where it needs an explanation."""

from __future__ import annotations

from downset.messages import Call, Message, Setting
from downset.results.pipelines import Pipeline
from downset.results.serving import Simulation
from downset.text import counted

__all__ = ["simulation_lines"]

_MUCH_LONGER = 1.5
"""A latency above this many times that of one frame alone is explained."""


def simulation_lines(simulation: Simulation, plan: Pipeline) -> list[str]:
    """Lines on latencies that are long, queues that grow, and frames that are too few."""
    lines: list[str] = []
    if simulation.latency_s is not None and simulation.latency_s[0] > _MUCH_LONGER * plan.latency_s:
        lines.append(
            Message(
                f"a frame waits for those ahead of it, up to {counted(simulation.window, 'frame')} inside: ",
                "fewer inside (",
                Call("plan_pipeline"),
                " ",
                Setting("window"),
                ") or frames that come less often (",
                Setting("arrival_s"),
                ") make latencies shorter",
            )
        )
    if simulation.falls_behind:
        lines.append(
            f"frames arrive faster than the plan sustains, one every {simulation.sustained_period_s:.6g} s: queues "
            f"grow; {simulation.last_waiting} frames waited when the last one arrived"
        )
    if simulation.stalled_at_s is None and 0 < simulation.completed < 3 * simulation.window:
        lines.append(f"few frames: the pipeline fills and drains in {simulation.window} each; give more frames")
    return lines
