"""Results of pipelines that were simulated, or served by running devices: plain values that reports draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DeviceUse", "RanTask", "ServeEvent", "Served", "Simulation"]

RanTask = tuple[int, int, float, float]
"""A task that ran: its frame, its place in the plan, and when it began and ended, in seconds since the start."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """Simulated, not measured. `period_s`: mean time between frames that left, without the first fifth and while the
    pipeline fills or drains (`window` frames each; fewer than three times that many frames tell little); of frames
    before it stalled, if it did; None where too few left. `sustained_period_s`: the same undisturbed, with a frame
    always waiting.

    `latency_s`: the 50th, 90th, 99th percentile and the largest, from when a frame arrives, of frames that arrive every
    `arrival_s` seconds; None where none left. In that run `most_waiting` frames were not let in yet at worst, and
    `last_waiting` when the last one arrived.
    By device: shares of the time that it computed (`utilisation`), sent and received; share of its MACs that were
    redundant; the most bytes of buffers in use at once. `energy_j`: for a frame, where every device states its powers
    (else None). `stalled_at_s`: when a dead device stopped the pipeline; frames that needed it after that never left.
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
        """Whether frames arrive faster than the plan sustains: then the queue at the source grows for ever."""
        if self.arrival_s is None or self.sustained_period_s is None:
            return False
        return self.arrival_s < self.sustained_period_s * (1 - 1e-6)

    def __repr__(self) -> str:
        period = "unknown" if self.period_s is None else f"{self.period_s:.6g} s"
        return f"<Simulation of {self.frames} frames, {self.completed} completed: period {period}>"


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The use of one device of a running pipeline: shares of the time that it computed, sent and received, in how many
    frames it took part, and the most memory that its process took. Planned shares are of the periods that the plans in
    use have, for the frames that have left: the shares of a device that runs as planned."""

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
    """Something that happened to a running pipeline, `at_s` seconds after its start.

    lost, back, slow, recovered: of a device; one that recovered was slow and is less so. replanned: another plan is in
    use from here on; `plan_s` is what planning took and `move_s` what bringing `moved_bytes` of shards to the devices
    and opening them took, `replayed` how many frames began again."""

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
    """The result of a running pipeline; all measured but what is called planned. `latency_s`: percentiles 50, 90, 99
    and the longest, from when a frame was let in to when its result was back. `period_s`: the mean time between
    results, None where they are too few. `planned_period_s` is of the plan in use, `first_planned_period_s` of the
    first one."""

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
