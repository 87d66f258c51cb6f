"""Decides which devices are lost and which have become slow, from times at which they were asked and answered.

A device is lost if it has answered nothing for `SILENCE_S` since it was asked, or if by its own answer one computation
takes longer than max(`LEAST_DEADLINE_S`, `DEADLINE_FACTOR` times the expected seconds). The expected seconds are those
of the plan or those that the shard took before on that device, whichever are more, because a plan may count too little.
A device is slow if `SLOW_FRAMES` frames in a row took `SLOW` times as long as planned for it, and fast again if as many
frames took that much less.
If no step of the pipeline has ended for a while, the log says what it waits for (`Standstill`).
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = [
    "DEADLINE_FACTOR",
    "LEAST_DEADLINE_S",
    "LOOK_S",
    "PING_S",
    "SILENCE_S",
    "STANDSTILL_S",
    "Health",
    "Pace",
    "Standstill",
    "Wait",
    "function_of",
]

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


class Health:
    """The signs of life of devices, by name, and their `pace`. All times are of one clock."""

    def __init__(self) -> None:
        self._states: dict[str, _DeviceState] = {}
        self.pace = Pace()

    def watch(self, device: str) -> None:
        """Watch a device from now on; earlier knowledge of it is dropped."""
        self._states[device] = _DeviceState()

    def forget(self, device: str) -> None:
        self._states.pop(device, None)

    def note_question(self, device: str, now: float) -> None:
        """Note that a device is asked for a sign of life. Its silence begins with the first open question, so that a
        device is not blamed for a driver that did not ask."""
        if (state := self._states.get(device)) is not None and state.asked_s is None:
            state.asked_s = now

    def heard(self, device: str) -> None:
        """Note that a device has answered a call."""
        if (state := self._states.get(device)) is not None:
            state.asked_s = None

    def lost(self, now: float) -> list[tuple[str, str]]:
        """(device, reason) of the devices that are lost."""
        faults = []
        for device, state in self._states.items():
            asked_s = state.asked_s
            if asked_s is not None and now - asked_s > SILENCE_S:
                faults.append((device, f"silent for {now - asked_s:.1f} s"))
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
        """Note the seconds of one computation. The first computations of a shard on a device define its usual time, at
        the factor with which the device is planned then."""
        samples = self._samples.setdefault((device, shard), [])
        if len(samples) < _BASELINE_SAMPLES:
            samples.append(seconds / self.factor.get(device, 1.0))
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


STANDSTILL_S = 10.0
_MOST_WAITS = 6
"""The most waits in one line of the log; those that began first are listed."""
_log = logging.getLogger("downset.serving")


@dataclass(frozen=True, slots=True)
class Wait:
    """A step of the pipeline that has begun and not ended. `device`: the device to blame if the step takes more than
    `allowed_s`, for the reason `blame`. `allowed_s` is infinite if the device has another deadline."""

    what: str
    begun_s: float
    device: str
    allowed_s: float = float("inf")
    blame: str = ""


class Standstill:
    """Logs once for each `STANDSTILL_S` seconds in which no step began or ended, and once when the pipeline goes on."""

    def __init__(self) -> None:
        self._waits: tuple[Wait, ...] = ()
        self._since_s = 0.0
        self._logged = False

    def look(self, waits: Sequence[Wait], now: float) -> None:
        """Compare `waits`, the present waits of the pipeline, with those of the last call."""
        seen = tuple(sorted(waits, key=lambda wait: (wait.begun_s, wait.what)))
        if seen != self._waits:
            if self._logged:
                _log.warning("the pipeline goes on after %.0f s", now - self._since_s)
            self._waits, self._since_s, self._logged = seen, now, False
        elif seen and not self._logged and now - self._since_s >= STANDSTILL_S:
            self._logged = True
            listed = [f"{wait.what} (since {now - wait.begun_s:.0f} s)" for wait in seen[:_MOST_WAITS]]
            if len(seen) > _MOST_WAITS:
                listed.append(f"{len(seen) - _MOST_WAITS} more")
            _log.warning(
                "no step of the pipeline has ended for %.0f s; it waits for: %s", now - self._since_s, "; ".join(listed)
            )


def function_of(thread: threading.Thread) -> str:
    """The three innermost functions in which a thread is, the innermost first."""
    frame, names = sys._current_frames().get(thread.ident or 0), list[str]()
    while frame is not None and len(names) < 3:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return " of ".join(names)
