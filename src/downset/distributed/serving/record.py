"""What a running pipeline did, as it happens; `served` sums it up."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from downset.plans import Pipeline
from downset.results import DeviceUse, Served, ServeEvent

__all__ = ["ServeRecord"]

_LATENCIES = 100_000
"""Of so many frames, the latest ones, latencies and times are kept: memory does not grow with the frames."""


class ServeRecord:
    """Times are seconds of one clock, from `start_s` on."""

    def __init__(self, plan: Pipeline, start_s: float) -> None:
        self._start_s, self._plans = start_s, [plan]
        names = [device.name for device in plan.cluster.devices]
        self._busy = {name: dict.fromkeys(("computing", "sending", "receiving"), 0.0) for name in names}
        self._until = {name: dict.fromkeys(("sending", "receiving"), 0.0) for name in names}
        self._frames = dict.fromkeys(names, 0)
        self._rss = dict.fromkeys(names, 0)
        self._left: deque[tuple[float, float]] = deque(maxlen=_LATENCIES)
        self._completed = 0
        self._events: list[ServeEvent] = []
        self._replans = 0

    def start(self, now: float) -> None:
        """The first frame can be let in: time counts from here."""
        self._start_s = now

    def computed(self, device: str, seconds: float) -> None:
        self._busy[device]["computing"] += seconds

    def moved(self, source: str, target: str, seconds: float, now: float) -> None:
        """A transfer of so many seconds has ended; time that several take together counts once."""
        for device, what in ((source, "sending"), (target, "receiving")):
            if device in self._busy:
                begin = max(now - seconds, self._until[device][what])
                self._busy[device][what] += max(0.0, now - begin)
                self._until[device][what] = max(now, self._until[device][what])

    def memory(self, device: str, rss_bytes: int) -> None:
        self._rss[device] = max(rss_bytes, self._rss.get(device, 0))

    def left(self, devices: Sequence[str], latency_s: float, now: float) -> None:
        """A frame's result is back; these devices worked for it."""
        self._completed += 1
        self._left.append((now, latency_s))
        for device in devices:
            self._frames[device] += 1

    def event(self, event: ServeEvent) -> None:
        self._events.append(event)

    def planned(self, plan: Pipeline) -> None:
        """Another plan is in use."""
        self._plans.append(plan)
        self._replans += 1

    def since_start_s(self, now: float) -> float:
        return now - self._start_s

    def served(self, submitted: int, now: float) -> Served:
        seconds = max(now - self._start_s, 1e-9)
        plan = self._plans[-1]
        return Served(
            frames=submitted,
            completed=self._completed,
            seconds=seconds,
            period_s=self._period_s(plan),
            planned_period_s=plan.period_s,
            first_planned_period_s=self._plans[0].period_s,
            latency_s=_percentiles([latency for _, latency in self._left]),
            planned_latency_s=plan.latency_s,
            replans=self._replans,
            devices=tuple(
                DeviceUse(
                    name,
                    min(1.0, busy["computing"] / seconds),
                    min(1.0, busy["sending"] / seconds),
                    min(1.0, busy["receiving"] / seconds),
                    self._frames[name],
                    self._rss[name],
                )
                for name, busy in self._busy.items()
            ),
            events=tuple(self._events),
        )

    def _period_s(self, plan: Pipeline) -> float | None:
        """Mean time between results, without the first fifth and while the pipeline fills."""
        times = [when for when, _ in self._left]
        window = 1 if plan.schedule is None else plan.schedule.window
        first = min(max(len(times) // 5, window), len(times) - 2)
        return (times[-1] - times[first]) / (len(times) - 1 - first) if first >= 0 else None


def _percentiles(latencies: list[float]) -> tuple[float, float, float, float] | None:
    ordered = sorted(latencies)
    if not ordered:
        return None
    at = [ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in (0.5, 0.9, 0.99, 1.0)]
    return at[0], at[1], at[2], at[3]
