"""Decides which devices are lost and which have become slow, from times at which they were asked and answered.

A device is lost if it has answered nothing for `SILENCE_S` since it was asked, or if one computation takes longer than
max(`LEAST_DEADLINE_S`, `DEADLINE_FACTOR` times the expected seconds). The expected seconds are those of the plan or
those that the shard took before on that device, whichever are more, because a plan may count too little.
A device is slow if `SLOW_FRAMES` frames in a row took `SLOW` times as long as planned for it, and fast again if as many
frames took that much less.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

__all__ = ["DEADLINE_FACTOR", "LEAST_DEADLINE_S", "LOOK_S", "PING_S", "SILENCE_S", "Health", "Pace"]

PING_S = 1.0
"""Seconds between two questions for a sign of life."""
LOOK_S = 0.25
"""Seconds between two looks for lost devices."""
SILENCE_S = 4.5
"""Seconds of silence that a device is allowed. Together with the time between two questions and between two looks, a
loss is noticed within 6 s."""
LEAST_DEADLINE_S = 6.0
DEADLINE_FACTOR = 10.0
SLOW_FRAMES = 4
SLOW = 1.6
RECOVERED = 1.25
LEAST_EXCESS_S = 0.02
"""A frame that takes less than this many seconds more than usual does not count: the operating system may take as much.
"""
_BASELINE_SAMPLES = 5


@dataclass(slots=True)
class _DeviceState:
    asked_s: float | None = None
    queue: deque[tuple[object, float]] = field(default_factory=deque)
    since_s: float = 0.0


class Health:
    """The signs of life of devices, by name. All times are of one clock."""

    def __init__(self) -> None:
        self._states: dict[str, _DeviceState] = {}

    def watch(self, device: str) -> None:
        """Watch a device from now on; earlier knowledge of it is dropped."""
        self._states[device] = _DeviceState()

    def forget(self, device: str) -> None:
        self._states.pop(device, None)

    def asked(self, device: str, now: float) -> None:
        """Note that a device is asked for a sign of life. Its silence begins with the first open question, so that a
        device is not blamed for a driver that did not ask."""
        if (state := self._states.get(device)) is not None and state.asked_s is None:
            state.asked_s = now

    def heard(self, device: str) -> None:
        """Note that a device has answered a call."""
        if (state := self._states.get(device)) is not None:
            state.asked_s = None

    def begun(self, device: str, work: object, expected_s: float, now: float) -> None:
        """Note that a device has been given a computation. It does computations one after another."""
        if (state := self._states.get(device)) is not None:
            if not state.queue:
                state.since_s = now
            state.queue.append((work, max(LEAST_DEADLINE_S, DEADLINE_FACTOR * expected_s)))

    def done(self, device: str, now: float) -> None:
        """Note that a device has ended the first of its open computations."""
        if (state := self._states.get(device)) is not None and state.queue:
            state.queue.popleft()
            state.since_s = now
            state.asked_s = None

    def idle(self) -> None:
        """Note that no device has an open computation any more."""
        for state in self._states.values():
            state.queue.clear()

    def lost(self, now: float) -> list[tuple[str, str]]:
        """(device, reason) of the devices that are lost."""
        faults = []
        for device, state in self._states.items():
            asked_s = state.asked_s
            if asked_s is not None and now - asked_s > SILENCE_S:
                faults.append((device, f"silent for {now - asked_s:.1f} s"))
            elif state.queue and now - state.since_s > state.queue[0][1]:
                faults.append((device, f"busy with one computation for {now - state.since_s:.1f} s"))
        return faults


class Pace:
    """How many times as long devices take as at first, measured frame by frame."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], list[float]] = {}
        self._now: dict[tuple[str, int], list[float]] = {}
        self._ratios: dict[str, deque[float]] = {}
        self.factor: dict[str, float] = {}
        """By device, the factor with which it is planned now; 1 for its first speed."""

    def expected_s(self, device: str, shard: str) -> float:
        """Seconds that the shard took on the device at first; 0 if not known."""
        return median(self._samples.get((device, shard), [0.0]))

    def took(self, device: str, shard: str, frame: int, seconds: float) -> None:
        """Note the seconds of one computation. The first computations of a shard on a device define its usual time."""
        samples = self._samples.setdefault((device, shard), [])
        if len(samples) < _BASELINE_SAMPLES:
            samples.append(seconds)
            return
        sums = self._now.setdefault((device, frame), [0.0, 0.0])
        sums[0] += seconds
        sums[1] += median(samples)

    def left(self, frame: int) -> None:
        """Note that a frame has left; the seconds of its devices now count."""
        for device, number in [key for key in self._now if key[1] == frame]:
            seconds, usual = self._now.pop((device, number))
            planned = self.factor.get(device, 1.0)
            if usual > 0:
                notable = abs(seconds - planned * usual) > LEAST_EXCESS_S
                ratios = self._ratios.setdefault(device, deque(maxlen=SLOW_FRAMES))
                ratios.append(seconds / usual if notable else planned)

    def changed(self) -> dict[str, float]:
        """New factors of devices, by name, for those whose factor has changed by enough to plan again."""
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
        """Take these factors as those with which the devices are planned from now on."""
        self.factor.update(factors)
        for device in factors:
            self._ratios.pop(device, None)

    def forget(self, device: str) -> None:
        """Drop what is known of a lost device; when it comes back, it is measured again."""
        self.factor.pop(device, None)
        self._ratios.pop(device, None)
        for key in [key for key in self._samples if key[0] == device]:
            del self._samples[key]
