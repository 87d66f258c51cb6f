"""The record of a running pipeline, filled as it runs; `served` sums it up."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from downset.distributed.percentiles import percentiles
from downset.distributed.task_prices import FrameSeconds, frame_seconds
from downset.plans import Pipeline
from downset.results import DeviceUse, Served, ServeEvent

__all__ = ["ServeRecord"]

_LATENCIES = 100_000
"""How many of the latest frames' latencies and times are kept: memory does not grow with the frames."""


class ServeRecord:
    """Times are seconds of one clock, from `start_s` on."""

    def __init__(self, plan: Pipeline, start_s: float) -> None:
        self._start_s, self._plans = start_s, [plan]
        names = [device.name for device in plan.cluster.devices]
        self._busy = {name: dict.fromkeys(("computing", "sending", "receiving"), 0.0) for name in names}
        self._planned = {name: dict.fromkeys(("computing", "sending", "receiving"), 0.0) for name in names}
        self._of_a_frame = _of_a_frame(plan)
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
        """A transfer of so many seconds has ended; time that several take together counts once. A frame that enters has
        no device as its source."""
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
        for device, seconds in self._of_a_frame.items():
            for what in ("computing", "sending", "receiving"):
                self._planned[device][what] += getattr(seconds, what)

    def event(self, event: ServeEvent) -> None:
        self._events.append(event)

    def planned(self, plan: Pipeline) -> None:
        """Another plan is in use."""
        self._plans.append(plan)
        self._of_a_frame = _of_a_frame(plan)
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
            latency_s=percentiles([latency for _, latency in self._left]),
            planned_latency_s=plan.latency_s,
            replans=self._replans,
            devices=tuple(
                DeviceUse(
                    name,
                    min(1.0, busy["computing"] / seconds),
                    min(1.0, busy["sending"] / seconds),
                    min(1.0, busy["receiving"] / seconds),
                    self._planned[name]["computing"] / seconds,
                    self._planned[name]["sending"] / seconds,
                    self._planned[name]["receiving"] / seconds,
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


def _of_a_frame(plan: Pipeline) -> dict[str, FrameSeconds]:
    """By device, what the plan counts for one frame."""
    return dict(zip((device.name for device in plan.cluster.devices), frame_seconds(plan), strict=True))
