"""The record of a running pipeline, filled while it runs. `served` sums it up."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from downset.results.pipelines import Pipeline
from downset.results.serving import DeviceUse, RanTask, Served, ServeEvent, percentiles
from downset.results.task_times import DeviceSeconds, device_seconds, plan_seconds

__all__ = ["ServeRecord"]

_LATENCIES = 100_000
"""How many latencies and times are kept, of the latest frames, so that memory does not grow with the frames."""
_FEWEST = 4
"""The fewest results of which a period is told, beyond those that come while the pipeline fills."""
_TASKS = 20_000
"""How many of the latest tasks are kept; pictures show a few periods."""


class ServeRecord:
    """The events of a run. Times are seconds of one clock, from `start_s` on."""

    def __init__(self, plan: Pipeline, start_s: float) -> None:
        self._start_s, self._plans = start_s, [plan]
        names = [device.name for device in plan.cluster.devices]
        self._busy = {name: dict.fromkeys(("computing", "sending", "receiving"), 0.0) for name in names}
        self._planned = {name: dict.fromkeys(("computing", "sending", "receiving"), 0.0) for name in names}
        self._of_a_frame, self._planned_s = _of_a_frame(plan), 0.0
        self._until = {name: dict.fromkeys(("sending", "receiving"), 0.0) for name in names}
        self._frames = dict.fromkeys(names, 0)
        self._rss = dict.fromkeys(names, 0)
        self._left: deque[tuple[float, float]] = deque(maxlen=_LATENCIES)
        self._tasks: deque[RanTask] = deque(maxlen=_TASKS)
        self._completed = 0
        self._events: list[ServeEvent] = []
        self._replans = 0

    def start(self, now: float) -> None:
        """Begin to count time: the first frame can be let in."""
        self._start_s = now

    def computed(self, device: str, seconds: float) -> None:
        """Note how long a device has computed, as it measured it."""
        self._busy[device]["computing"] += seconds

    def task_ran(self, frame: int, task: int, begin: float, end: float) -> None:
        """Note when a task of the plan began and ended, by the clock of this process."""
        self._tasks.append((frame, task, max(0.0, self.since_start_s(begin)), self.since_start_s(end)))

    def moved(self, source: str, target: str, seconds: float, now: float) -> None:
        """Note that a transfer of so many seconds has ended. Time that several transfers take together counts once.
        `source` is empty for a frame that enters."""
        for device, what in ((source, "sending"), (target, "receiving")):
            if device in self._busy:
                begin = max(now - seconds, self._until[device][what])
                self._busy[device][what] += max(0.0, now - begin)
                self._until[device][what] = max(now, self._until[device][what])

    def memory(self, device: str, rss_bytes: int) -> None:
        self._rss[device] = max(rss_bytes, self._rss.get(device, 0))

    def left(self, devices: Sequence[str], latency_s: float, now: float) -> None:
        """Note that a frame's result is back, and that these devices worked for it."""
        self._completed += 1
        self._left.append((now, latency_s))
        for device in devices:
            self._frames[device] += 1
        self._planned_s += self._plans[-1].period_s
        for device, seconds in self._of_a_frame.items():
            for what in ("computing", "sending", "receiving"):
                self._planned[device][what] += getattr(seconds, what)

    def event(self, event: ServeEvent) -> None:
        self._events.append(event)

    def planned(self, plan: Pipeline) -> None:
        """Note that another plan is in use. The numbers of its tasks differ from those of the plan before."""
        self._tasks.clear()
        self._plans.append(plan)
        self._of_a_frame = _of_a_frame(plan)
        self._replans += 1

    def since_start_s(self, now: float) -> float:
        return now - self._start_s

    def ran(self) -> tuple[Pipeline, tuple[RanTask, ...]]:
        """The plan in use, and the latest of its tasks that devices ran. Safe to call from another thread."""
        return self._plans[-1], tuple(self._tasks)

    def served(self, submitted: int, now: float) -> Served:
        """The figures so far. Safe to call from another thread."""
        seconds = max(now - self._start_s, 1e-9)
        planned_s = max(self._planned_s, 1e-9)
        plan, left = self._plans[-1], tuple(self._left)
        return Served(
            frames=submitted,
            completed=self._completed,
            seconds=seconds,
            period_s=_period_s(plan, [when for when, _ in left]),
            planned_period_s=plan.period_s,
            first_planned_period_s=self._plans[0].period_s,
            latency_s=percentiles([latency for _, latency in left]),
            planned_latency_s=plan.latency_s,
            replans=self._replans,
            devices=tuple(
                DeviceUse(
                    name,
                    min(1.0, busy["computing"] / seconds),
                    min(1.0, busy["sending"] / seconds),
                    min(1.0, busy["receiving"] / seconds),
                    self._planned[name]["computing"] / planned_s,
                    self._planned[name]["sending"] / planned_s,
                    self._planned[name]["receiving"] / planned_s,
                    self._frames[name],
                    self._rss[name],
                )
                for name, busy in self._busy.items()
            ),
            events=tuple(self._events),
        )


def _period_s(plan: Pipeline, times: Sequence[float]) -> float | None:
    """Seconds between results in a long run, without the first fifth and without the time in which the pipeline fills.

    They are those between the mean of the earlier half and the mean of the later half. Results may come back in bursts
    of as many frames as are let in at a time, however slow the pipeline is: two windows of results and four at least
    are needed, or the period is not known (None)."""
    window = 1 if plan.schedule is None else plan.schedule.window
    steady = times[max(len(times) // 5, window) :]
    if len(steady) < max(_FEWEST, 2 * window):
        return None
    half = len(steady) // 2
    return (sum(steady[-half:]) - sum(steady[:half])) / half / (len(steady) - half)


def _of_a_frame(plan: Pipeline) -> dict[str, DeviceSeconds]:
    """The plan's seconds for one frame, by device."""
    return dict(
        zip((device.name for device in plan.cluster.devices), device_seconds(plan, plan_seconds(plan)), strict=True)
    )
