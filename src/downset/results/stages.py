"""Results of tuning and running stages, with measured times: plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from downset.results.plans import Stage, StagePlan

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["StageCandidate", "StageResult", "StageRun", "is_steady", "percentile"]

_TELLING = 1.5
"""A measurement is noisy where its 90th percentile over its 10th is above this: compared times differ by less."""


def is_steady(seconds: Sequence[float]) -> bool:
    """Whether repeated times vary so little that a difference from other times can be trusted."""
    return percentile(seconds, 0.9) <= _TELLING * percentile(seconds, 0.1)


def percentile(seconds: Sequence[float], share: float) -> float:
    """The time that this share of the runs did not exceed, in seconds: 0.5 gives the median."""
    import numpy as np

    return float(np.quantile(seconds, share))


@dataclass(frozen=True, slots=True)
class PeerTimes:
    """Other runtimes compared with a plan, from times of the same rounds. `median_s`: by runtime, with the plan as
    "downset". `faster`: those faster than the plan, the fastest first. `not_known`: those whose times overlap with the
    plan's while one of both varies too much to tell. The others are slower, or equal. `at_least`: of the faster ones,
    those where one of both varies too much for a ratio of medians, each with the plan's 10th percentile over its
    90th."""

    median_s: Mapping[str, float]
    faster: tuple[str, ...]
    not_known: tuple[str, ...]
    at_least: Mapping[str, float] = field(default_factory=dict)

    def ratio(self, name: str) -> str:
        """How much faster a runtime is, as text: the ratio of medians, or what is known at least."""
        if name in self.at_least:
            return f"{self.at_least[name]:.2f}x or more (the p10 of this plan over its p90)"
        return f"{self.median_s['downset'] / self.median_s[name]:.2f}x"


def peer_times(peer_s: Mapping[str, Sequence[float]]) -> PeerTimes:
    """Tells which runtimes are faster than the plan: those whose 90th percentile is below the plan's 10th, and those
    of lower median where both are steady. `peer_s`: as in `StageResult`."""
    ours = peer_s.get("downset", ())
    median_s = {name: percentile(seconds, 0.5) for name, seconds in peer_s.items()}
    faster, not_known, at_least = [], [], {}
    for name, seconds in peer_s.items():
        if name == "downset" or percentile(seconds, 0.1) > percentile(ours, 0.9):
            continue
        steady = is_steady(seconds) and is_steady(ours)
        if percentile(seconds, 0.9) < percentile(ours, 0.1):
            faster.append(name)
            if not steady:
                at_least[name] = percentile(ours, 0.1) / percentile(seconds, 0.9)
        elif not steady:
            not_known.append(name)
        elif median_s[name] < median_s["downset"]:
            faster.append(name)
    return PeerTimes(median_s, tuple(sorted(faster, key=median_s.__getitem__)), tuple(not_known), at_least)


@dataclass(frozen=True, slots=True)
class StageCandidate:
    """A complete schedule with its measured latencies in seconds, one for each round. `live_bytes`: analytic."""

    name: str
    stages: tuple[Stage, ...]
    barriers: bool
    seconds: tuple[float, ...] = ()
    live_bytes: int = 0
    variant: str = ""

    def percentile(self, share: float) -> float:
        """The latency that this share of the rounds did not exceed, in seconds: 0.5 gives the median."""
        return percentile(self.seconds, share)

    def __repr__(self) -> str:
        timed = f"{self.percentile(0.5):.6g} s in the median of {len(self.seconds)}" if self.seconds else "not timed"
        return f"<StageCandidate {self.name!r}: {len(self.stages)} stages, {timed}>"


@dataclass(frozen=True, slots=True)
class StageResult:
    """The result of tuning stages. `bound_s`: a time below which no schedule of these kernels is expected. It is the
    longest path of units timed alone, or the time of all their MACs at the highest rate that a unit reached, whichever
    is longer. It is None where a candidate was faster (its 10th percentile): the units were then measured too slow.
    `speedup`: the time of sequential execution over that of the chosen plan, the median of new interleaved rounds (1 if
    sequential was chosen). `why`: the reason for the choice. `unit_s`: the time of each unit of the plan, measured
    alone; `unit_names`: its first and last operator; both are empty where the plan has units of a variant. `peer_s`: by
    runtime, the seconds of each run in interleaved rounds, with the plan as "downset"; empty where no other runtime was
    timed. `asked`: whether the plan is the candidate that was asked for, and not the one that measurements chose.
    `further`: fields of `StageLimits` that ended or narrowed the search, each with a value with which more stages are
    timed; empty where there are no more."""

    plan: StagePlan
    candidates: tuple[StageCandidate, ...]
    timings_used: int
    bound_s: float | None
    speedup: float
    why: str
    notes: tuple[str, ...] = ()
    unit_s: tuple[float, ...] = ()
    peer_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    unit_names: tuple[str, ...] = ()
    asked: bool = False
    further: Mapping[str, float | int | str] = field(default_factory=dict)

    def __repr__(self) -> str:
        chosen, device = self.plan.evidence.method, self.plan.device_name
        return f"<StageResult on {device}: {chosen} of {len(self.candidates)} candidates, {self.speedup:.3f}x>"


@dataclass(frozen=True, slots=True)
class StageRun:
    """The outputs and times of a run of a plan of stages. `outputs`: by name, in the order of the graph's outputs and
    in the model's element types, with bfloat16 as float32. `seconds`: measured, for each timed run.
    `max_relative_error`: the largest difference from ONNX Runtime's outputs, as a share of the largest value of that
    output; None where they were not compared. `allowed_error`: the largest such difference allowed for the device and
    the coarsest float type. `cast`: a sentence on floats that the plan casts, because `dtype` asked for it; empty where
    it casts none."""

    device_name: str
    outputs: Mapping[str, npt.NDArray[Any]]
    seconds: tuple[float, ...]
    max_relative_error: float | None
    allowed_error: float
    cast: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the outputs differ from ONNX Runtime's by no more than is allowed; True where they were not
        compared."""
        return self.max_relative_error is None or self.max_relative_error <= self.allowed_error

    def __repr__(self) -> str:
        return f"<StageRun on {self.device_name}: {len(self.outputs)} outputs, {len(self.seconds)} timed runs>"
