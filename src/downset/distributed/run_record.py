"""The record of one simulated run, filled during the run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

__all__ = ["RunRecord"]


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
