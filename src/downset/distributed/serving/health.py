"""Which devices are lost and which have become slow: pure functions of what was heard when.

A device is lost when it has answered nothing for `SILENCE_S` since it was asked, or when it takes longer for one
computation than max(`LEAST_DEADLINE_S`, `DEADLINE_FACTOR` times what is expected). Expected is what the plan counts, or
what the shard took before on that device, whichever is more: a plan may count too little.
A device is slow when `SLOW_FRAMES` frames in a row took `SLOW` times as long as what it is planned with, and fast again
when as many took so much less.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

__all__ = ["DEADLINE_FACTOR", "LEAST_DEADLINE_S", "LOOK_S", "PING_S", "SILENCE_S", "Health", "Pace"]

PING_S = 1.0
"""How often every device is asked for a sign of life."""
LOOK_S = 0.25
"""How often the driver looks which devices are lost."""
SILENCE_S = 4.5
"""Seconds of silence that a device is allowed. With the time between two questions and between two looks it is noticed
within 6 s."""
LEAST_DEADLINE_S = 6.0
DEADLINE_FACTOR = 10.0
SLOW_FRAMES = 4
SLOW = 1.6
RECOVERED = 1.25
LEAST_EXCESS_S = 0.02
"""A frame that takes less than this more than usual says nothing: systems take as much for themselves."""
_BASELINE_SAMPLES = 5


@dataclass(slots=True)
class _DeviceState:
    asked_s: float | None = None
    queue: deque[tuple[object, float]] = field(default_factory=deque)
    since_s: float = 0.0


class Health:
    """Devices by name, times of one clock."""

    def __init__(self) -> None:
        self._states: dict[str, _DeviceState] = {}

    def watch(self, device: str) -> None:
        """Watch a device from now on; what was known of it is forgotten."""
        self._states[device] = _DeviceState()

    def forget(self, device: str) -> None:
        self._states.pop(device, None)

    def asked(self, device: str, now: float) -> None:
        """A device is asked for a sign of life. It is silent from its first open question on: a driver that is kept
        from asking blames nobody."""
        if (state := self._states.get(device)) is not None and state.asked_s is None:
            state.asked_s = now

    def heard(self, device: str) -> None:
        """A device has answered, whatever it was."""
        if (state := self._states.get(device)) is not None:
            state.asked_s = None

    def begun(self, device: str, work: object, expected_s: float, now: float) -> None:
        """A device has been given a computation; it does them one after another."""
        if (state := self._states.get(device)) is not None:
            if not state.queue:
                state.since_s = now
            state.queue.append((work, max(LEAST_DEADLINE_S, DEADLINE_FACTOR * expected_s)))

    def done(self, device: str, now: float) -> None:
        """A device has ended the computation that it was given first."""
        if (state := self._states.get(device)) is not None and state.queue:
            state.queue.popleft()
            state.since_s = now
            state.asked_s = None

    def idle(self) -> None:
        """Note that no device has anything to compute any more."""
        for state in self._states.values():
            state.queue.clear()

    def lost(self, now: float) -> list[tuple[str, str]]:
        """(device, why) of those that are lost."""
        faults = []
        for device, state in self._states.items():
            asked_s = state.asked_s
            if asked_s is not None and now - asked_s > SILENCE_S:
                faults.append((device, f"silent for {now - asked_s:.1f} s"))
            elif state.queue and now - state.since_s > state.queue[0][1]:
                faults.append((device, f"busy with one computation for {now - state.since_s:.1f} s"))
        return faults


class Pace:
    """How many times as long a device takes as it did at first, frame by frame."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], list[float]] = {}
        self._now: dict[tuple[str, int], list[float]] = {}
        self._ratios: dict[str, deque[float]] = {}
        self.factor: dict[str, float] = {}
        """By device: what it is planned with now; 1 where it is as fast as at first."""

    def expected_s(self, device: str, shard: str) -> float:
        """Seconds that the shard took on the device at first; 0 where that is not known."""
        return median(self._samples.get((device, shard), [0.0]))

    def took(self, device: str, shard: str, frame: int, seconds: float) -> None:
        """One computation. The first ones of a shard on a device say what is usual there."""
        samples = self._samples.setdefault((device, shard), [])
        if len(samples) < _BASELINE_SAMPLES:
            samples.append(seconds)
            return
        sums = self._now.setdefault((device, frame), [0.0, 0.0])
        sums[0] += seconds
        sums[1] += median(samples)

    def left(self, frame: int) -> None:
        """A frame has left: what its devices took for it counts."""
        for device, number in [key for key in self._now if key[1] == frame]:
            seconds, usual = self._now.pop((device, number))
            planned = self.factor.get(device, 1.0)
            if usual > 0:
                notable = abs(seconds - planned * usual) > LEAST_EXCESS_S
                ratios = self._ratios.setdefault(device, deque(maxlen=SLOW_FRAMES))
                ratios.append(seconds / usual if notable else planned)

    def changed(self) -> dict[str, float]:
        """By device: the factor it should be planned with, where that has changed by enough."""
        factors = {}
        for device, ratios in self._ratios.items():
            if len(ratios) < SLOW_FRAMES:
                continue
            factor = self.factor.get(device, 1.0)
            if min(ratios) >= SLOW * factor or (factor > 1.0 and max(ratios) <= factor / SLOW):
                seen = median(ratios)
                factors[device] = 1.0 if seen <= RECOVERED else seen
        return factors

    def accept(self, factors: dict[str, float]) -> None:
        """The devices are planned with these factors from now on."""
        self.factor.update(factors)
        for device in factors:
            self._ratios.pop(device, None)

    def forget(self, device: str) -> None:
        """A device is gone; when it comes back, it is measured again."""
        self.factor.pop(device, None)
        self._ratios.pop(device, None)
        for key in [key for key in self._samples if key[0] == device]:
            del self._samples[key]
