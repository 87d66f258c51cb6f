"""The conditions of a simulated run that its plan does not state, and the record that the run fills.

Conditions: computing times that vary, and devices that slow down, die and come back.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

__all__ = ["Conditions", "Disturbance", "RunRecord"]


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A change of a device: from `at_s` on it takes `factor` times as long; infinity: it is dead."""

    device: int
    at_s: float
    factor: float = math.inf


class Conditions:
    """Computes when work ends under jitter and disturbances.

    `jitter` is the coefficient of variation of computing times, log-normal with mean 1. Each task draws from its own
    random stream, so in two runs with one seed a task takes the same time for the same frame."""

    def __init__(self, devices: int, *, jitter: float, seed: int, disturbances: Sequence[Disturbance]) -> None:
        self._jitter, self._seed = jitter, seed
        self._streams: dict[int, Random] = {}
        self._changes: list[list[Disturbance]] = [[] for _ in range(devices)]
        for change in sorted(disturbances, key=lambda item: item.at_s):
            own = self._changes[change.device]
            if not own or own[-1].factor != change.factor:
                own.append(change)
        self._dead = [_dead_spans(own) for own in self._changes]

    def noise(self, task: int) -> float:
        """The factor on the task's computing time for its next frame."""
        if self._jitter == 0:
            return 1.0
        variance = math.log1p(self._jitter**2)
        stream = self._streams.setdefault(task, Random(f"{self._seed}/{task}"))
        return stream.lognormvariate(-variance / 2, math.sqrt(variance))

    def computed_at(self, device: int, begin: float, seconds: float) -> float:
        """When a computation ends that begins at `begin` and takes `seconds` at full speed; infinity if the device dies
        before and stays dead."""
        now, left, factor = self.transferred_at((device,), begin, 0.0), seconds, 1.0
        for change in self._changes[device]:
            if change.at_s > now and left > 0:
                done = (change.at_s - now) / factor if factor != math.inf else 0.0
                if done >= left:
                    return now + left * factor
                left, now = left - done, change.at_s
            factor = change.factor
        return now + left * factor if left > 0 else now

    def transferred_at(self, devices: Sequence[int], begin: float, seconds: float) -> float:
        """When a transfer ends that pauses while one of these devices is dead; infinity if one stays dead."""
        now, left = begin, seconds
        for start, stop in sorted(span for device in devices for span in self._dead[device]):
            if stop <= now or (start > now and start >= now + left):
                continue
            now, left = stop, left - max(0.0, start - now)
        return now + left

    def died_at(self, devices: Sequence[int]) -> float:
        """When the first of these devices died and stayed dead; infinity if none did."""
        return min(
            (start for device in devices for start, stop in self._dead[device] if stop == math.inf), default=math.inf
        )


def _dead_spans(changes: Sequence[Disturbance]) -> list[tuple[float, float]]:
    """(begin, end) of each time in which a device is dead: from a factor of infinity to its next change, or to
    infinity."""
    stops = [*(change.at_s for change in changes[1:]), math.inf]
    return [(change.at_s, stop) for change, stop in zip(changes, stops, strict=False) if change.factor == math.inf]


class RunRecord:
    """Times of frames, and figures of devices. `came[k]`: when frame k arrived (empty if a frame is always waiting).
    `let_in[k]`: when it was let in. `left[i]`: the i-th frame that left, and when.

    By device: seconds that it computed, sent, received, and did any of these; and the most bytes of buffers in use at
    once.
    """

    def __init__(self, devices: int, window: int) -> None:
        self.window = window
        self.came: list[float] = []
        self.let_in: list[float] = []
        self.left: list[tuple[int, float]] = []
        self.computing_s = [0.0] * devices
        self.sending_s = [0.0] * devices
        self.receiving_s = [0.0] * devices
        self.busy_s = [0.0] * devices
        self.most_buffer_bytes = [0] * devices
        self.stalled_at_s: float | None = None
        self._tasks = [0] * devices
        self._since = [0.0] * devices
        self._buffer_bytes = [0] * devices

    def begin(self, devices: Sequence[int], now: float) -> None:
        """Note that a task begins that occupies these devices."""
        for device in devices:
            if not self._tasks[device]:
                self._since[device] = now
            self._tasks[device] += 1

    def end(self, devices: Sequence[int], begin: float, now: float, *, transfers: bool) -> None:
        """Note that the task that began at `begin` ends. The first device of a transfer sends, the second receives."""
        parts = (self.sending_s, self.receiving_s) if transfers else (self.computing_s,)
        for device, seconds in zip(devices, parts, strict=True):
            seconds[device] += now - begin
            self._tasks[device] -= 1
            if not self._tasks[device]:
                self.busy_s[device] += now - self._since[device]

    def take(self, device: int, nbytes: int) -> None:
        """Note that a frame takes a buffer of `nbytes` bytes; a negative number frees it."""
        self._buffer_bytes[device] += nbytes
        self.most_buffer_bytes[device] = max(self.most_buffer_bytes[device], self._buffer_bytes[device])

    def stall(self, now: float) -> None:
        self.stalled_at_s = now if self.stalled_at_s is None else min(now, self.stalled_at_s)

    def latencies_s(self) -> list[float]:
        """Seconds of each frame from its arrival, or from when it was let in if a frame is always waiting, until it
        left."""
        begun = self.came or self.let_in
        return [when - begun[frame] for frame, when in self.left]

    def waiting(self) -> list[int]:
        """The number of frames that had arrived and were not let in when each frame arrived, with the frame itself."""
        return [place + 1 - bisect_right(self.let_in, when) for place, when in enumerate(self.came)]
