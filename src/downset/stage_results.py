"""Results of stages that were tuned or run, with their measured times: plain values that reports draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.plans import Stage, StagePlan

__all__ = ["StageCandidate", "StageResult", "StageRun", "is_steady", "percentile"]

_TELLING = 1.5
"""A measurement is noisy where its p90 over p10 is above this: what is compared differs by less."""


def is_steady(seconds: Sequence[float]) -> bool:
    """Whether repeated times of one thing vary so little that a difference to others means something."""
    return percentile(seconds, 0.9) <= _TELLING * percentile(seconds, 0.1)


def percentile(seconds: Sequence[float], share: float) -> float:
    """Seconds that this share of the runs took at most: 0.5 is the median."""
    return float(np.quantile(seconds, share))


@dataclass(frozen=True, slots=True)
class StageCandidate:
    """A whole schedule and its measured latencies in seconds, one a round. `live_bytes`: analytic."""

    name: str
    stages: tuple[Stage, ...]
    barriers: bool
    seconds: tuple[float, ...] = ()
    live_bytes: int = 0
    variant: str = ""

    def percentile(self, share: float) -> float:
        """Seconds that this share of the rounds took at most: 0.5 is the median."""
        return percentile(self.seconds, share)

    def __repr__(self) -> str:
        timed = f"{self.percentile(0.5):.6g} s in the median of {len(self.seconds)}" if self.seconds else "not timed"
        return f"<StageCandidate {self.name!r}: {len(self.stages)} stages, {timed}>"


@dataclass(frozen=True, slots=True)
class StageResult:
    """`bound_s`: the longest path of units timed alone, or all their multiply-adds at the highest rate that one of them
    reached, whichever is more: no schedule of these kernels is expected below it. None where a candidate was faster
    (its p10): then the units were measured too slow, and nothing is known. `speedup`: sequential over chosen, the
    median of fresh interleaved rounds (1 if sequential was chosen). `why`: what decided. `unit_s`: of each unit of the
    plan, measured alone, and `unit_names`: its first and last operator; empty where the plan has units of a variant.
    `peer_s`: seconds of each run by runtime, the plan itself as "downset", in interleaved rounds; empty where no other
    was timed."""

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

    def __repr__(self) -> str:
        chosen, device = self.plan.evidence.method, self.plan.device_name
        return f"<StageResult on {device}: {chosen} of {len(self.candidates)} candidates, {self.speedup:.3f}x>"


@dataclass(frozen=True, slots=True)
class StageRun:
    """The outputs and times of a run of a plan of stages. `outputs`: by name, in the order of the graph's outputs,
    half floats as float32. `seconds`: of each timed run, measured. `max_relative_error`: the largest difference from
    ONNX Runtime's outputs over the largest value of its output; None where that was not asked for. `allowed_error`: how
    large that may be for the device and element type."""

    device_name: str
    outputs: Mapping[str, npt.NDArray[Any]]
    seconds: tuple[float, ...]
    max_relative_error: float | None
    allowed_error: float

    @property
    def agrees(self) -> bool:
        """Whether the outputs are ONNX Runtime's as far as the element type allows; True where that was not asked."""
        return self.max_relative_error is None or self.max_relative_error <= self.allowed_error

    def __repr__(self) -> str:
        return f"<StageRun on {self.device_name}: {len(self.outputs)} outputs, {len(self.seconds)} timed runs>"
