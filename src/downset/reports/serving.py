"""Describes the result of a running pipeline."""

from __future__ import annotations

from downset.results.serving import DeviceUse, Served, ServeEvent
from downset.text import format_bytes, printable

__all__ = ["SLOWER", "busiest_use", "event_line", "plan_in_use", "rates_line", "slower_than_planned"]

SLOWER = 1.15
"""A measured period above this many times the planned one is not as planned."""


def plan_in_use(served: Served) -> str:
    """Which of several plans the planned period and latency are of."""
    return f"the last of {served.replans + 1} plans"


def slower_than_planned(served: Served) -> float | None:
    """The measured period divided by the planned one, where it is above `SLOWER`; None otherwise, or if either is
    unknown."""
    if not served.period_s or not served.planned_period_s:
        return None
    ratio = served.period_s / served.planned_period_s
    return ratio if ratio > SLOWER else None


def busiest_use(served: Served) -> tuple[DeviceUse, str, float, float] | None:
    """The device and what it did (computing, sending or receiving) for the largest measured share of the time, that
    share, and the planned one; None if nothing was measured."""
    shares = [
        share
        for use in served.devices
        for share in (
            (use, "computing", use.computing, use.planned_computing),
            (use, "sending", use.sending, use.planned_sending),
            (use, "receiving", use.receiving, use.planned_receiving),
        )
    ]
    busiest = max(shares, key=lambda share: share[2], default=None)
    return None if busiest is None or busiest[2] <= 0 else busiest


def rates_line(rates_of: str) -> str:
    """Whose rates a plan is of, for devices that are processes of this machine."""
    return f"the plan is for the rates in {printable(rates_of)}; the devices here are processes of this machine"


def event_line(event: ServeEvent) -> str:
    """One line on an event and its time."""
    if event.kind == "replanned":
        why = " ".join(word for word in (printable(event.device), event.detail) if word)
        return (
            f"{event.at_s:.1f} s: another plan in use ({why}); planning "
            f"{event.plan_s:.2f} s, {format_bytes(event.moved_bytes)} bytes of shards moved and opened in "
            f"{event.move_s:.2f} s, {event.replayed} frames began again"
        )
    return f"{event.at_s:.1f} s: {printable(event.device)} {event.kind}: {printable(event.detail)}"
