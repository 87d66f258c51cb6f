"""Results of simulated pipelines and of pipelines served by running devices: plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = ["PERCENTILES", "DeviceUse", "RanTask", "ServeEvent", "Served", "Simulation", "percentiles"]

RanTask = tuple[int, int, float, float]
"""A task that ran: its frame, its place in the plan, and when it began and ended, in seconds since the start."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of a simulation. `period_s`: the mean time between results, without the first fifth of the frames and
    without those in the pipeline while it fills or drains (`window` frames each; fewer than three times that many
    frames give a poor estimate). If the pipeline stalled, it is over the frames before that; None where there are too
    few. `sustained_period_s`: the same without disturbances and with a frame always waiting.

    `latency_s`: the 50th, 90th and 99th percentile and the largest, for frames that arrive every `arrival_s` seconds,
    from their arrival; None where there is no result. In that run at most `most_waiting` frames waited to be let in,
    and `last_waiting` did when the last one arrived.
    By device: the shares of time in which it computed (`utilisation`), sent and received; the share of its MACs that
    were redundant; the most bytes of its buffers in use. `energy_j`: for each frame, where every device states its
    powers (else None). `stalled_at_s`: when a dead device stopped the pipeline; later frames that need it give no
    result.
    """

    frames: int
    completed: int
    period_s: float | None
    latency_s: tuple[float, float, float, float] | None
    utilisation: tuple[float, ...]
    redundancy: tuple[float, ...]
    energy_j: float | None
    seconds: float
    stalled_at_s: float | None = None
    window: int = 1
    sending: tuple[float, ...] = ()
    receiving: tuple[float, ...] = ()
    buffer_bytes: tuple[int, ...] = ()
    sustained_period_s: float | None = None
    arrival_s: float | None = None
    most_waiting: int = 0
    last_waiting: int = 0

    @property
    def falls_behind(self) -> bool:
        """Whether frames arrive faster than the plan sustains, so that the queue at the source grows without limit."""
        if self.arrival_s is None or self.sustained_period_s is None:
            return False
        return self.arrival_s < self.sustained_period_s * (1 - 1e-6)

    def __repr__(self) -> str:
        period = "unknown" if self.period_s is None else f"{self.period_s:.6g} s"
        return f"<Simulation of {self.frames} frames, {self.completed} completed: period {period}>"


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The use of one device of a running pipeline: shares of the time in which it computed, sent and received, the
    number of frames in which it took part, and the most memory that its process took. Planned shares are those of a
    device that runs as planned, from the periods of the plans that were in use for the frames with a result."""

    name: str
    computing: float
    sending: float
    receiving: float
    planned_computing: float
    planned_sending: float
    planned_receiving: float
    frames: int
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class ServeEvent:
    """An event of a running pipeline, `at_s` seconds after its start.

    Kinds of a device: lost, back, slow, recovered (it is less slow than before). replanned: another plan is in use from
    then on. `plan_s`: seconds of planning; `move_s`: seconds of bringing `moved_bytes` of shards to the devices and
    opening them; `replayed`: the number of frames that began again."""

    at_s: float
    kind: Literal["lost", "back", "slow", "recovered", "replanned"]
    device: str
    detail: str
    plan_s: float = 0.0
    move_s: float = 0.0
    moved_bytes: int = 0
    replayed: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """The result of a running pipeline. All figures are measured except those called planned. `latency_s`: percentiles
    50, 90 and 99 and the longest, from letting a frame in to its result. `period_s`: the time between results in a
    long run, None where there are too few to tell it. `planned_period_s`: that of the plan in use;
    `first_planned_period_s`: that of the first plan."""

    frames: int
    completed: int
    seconds: float
    period_s: float | None
    planned_period_s: float
    first_planned_period_s: float
    latency_s: tuple[float, float, float, float] | None
    planned_latency_s: float
    replans: int
    devices: tuple[DeviceUse, ...]
    events: tuple[ServeEvent, ...]

    def __repr__(self) -> str:
        period = "unknown" if self.period_s is None else f"{self.period_s:.6g} s"
        return f"<Served {self.completed} of {self.frames} frames: period {period}, {self.replans} plans more>"


PERCENTILES = (0.5, 0.9, 0.99, 1.0)
"""The shares of frames: half, nine in ten, 99 in a hundred, and all."""


def percentiles(latencies_s: Sequence[float]) -> tuple[float, float, float, float] | None:
    """The least latencies that the shares of `PERCENTILES` do not exceed, in seconds; None for an empty list."""
    if not latencies_s:
        return None
    half, most, nearly_all, longest = np.quantile(latencies_s, PERCENTILES, method="inverted_cdf")
    return float(half), float(most), float(nearly_all), float(longest)
