"""A running pipeline in words."""

from __future__ import annotations

from downset.pipeline_results import Served, ServeEvent
from downset.text import format_bytes, printable

__all__ = ["event_line", "served_lines"]

_QUANTILES = ("p50", "p90", "p99", "max")


def served_lines(served: Served, *, local: bool) -> list[str]:
    """The result of a running pipeline in words. `local`: its devices were processes of one machine, which share its
    cores: the plan's periods do not hold there."""
    measured = "too few to tell a period" if not served.period_s else f"{1 / served.period_s:.4g} frames/s"
    planned = "-" if not served.planned_period_s else f"{1 / served.planned_period_s:.4g} frames/s"
    shared = ", on devices that share this machine's cores" if local else ""
    lines = [f"measured: {served.completed} of {served.frames} frames, {measured} (planned {planned}){shared}"]
    if served.latency_s is not None:
        each = ", ".join(f"{name} {seconds:.4g} s" for name, seconds in zip(_QUANTILES, served.latency_s, strict=True))
        lines.append(f"latency: {each} (planned, one frame alone: {served.planned_latency_s:.4g} s)")
    if served.replans:
        lines.append(f"planned again {served.replans} times")
    return lines + [event_line(event) for event in served.events]


def event_line(event: ServeEvent) -> str:
    """One line on what happened when."""
    if event.kind == "replanned":
        return (
            f"{event.at_s:.1f} s: another plan in use ({printable(event.device)} {event.detail}); planning "
            f"{event.plan_s:.2f} s, {format_bytes(event.moved_bytes)} bytes of shards moved and opened in "
            f"{event.move_s:.2f} s, {event.replayed} frames began again"
        )
    return f"{event.at_s:.1f} s: {printable(event.device)} {event.kind}: {printable(event.detail)}"
