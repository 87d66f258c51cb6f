"""What planners return: plain values with their evidence. A plan never holds its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from downset.records import Record
from downset.stages.problem import Stage

__all__ = ["Arena", "Evidence", "Found", "Order", "SharedObjects", "StagePlan"]


@dataclass(frozen=True, slots=True)
class Found:
    """What a planner of orders or arenas returns: its solution (operators by step, or offsets or objects by record),
    a bound that holds for every solution, whether the solution meets it, and the search states it took."""

    solution: tuple[int, ...]
    bound: int
    proven: bool = False
    states: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """How good a plan is known to be. `bound` holds for every plan of the same problem; `proven` is `value == bound`
    established by a finished search or by a bound that the plan meets. `states` counts search states (0: none)."""

    method: str
    value: float
    bound: float
    proven: bool
    states: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Order:
    """`steps[i]` is the operator that runs at step i. `evidence.value` is its peak in bytes under `memory`."""

    steps: tuple[int, ...]
    memory: str
    evidence: Evidence

    @property
    def peak_bytes(self) -> int:
        return int(self.evidence.value)


@dataclass(frozen=True, slots=True)
class Arena:
    """`offsets[i]` places `records[i]` in one block of `arena_bytes`. Planned for a graph, `tensor_offsets` gives the
    offset of each tensor that has storage of its own in the arena."""

    records: tuple[Record, ...]
    offsets: tuple[int, ...]
    evidence: Evidence
    memory: str = ""
    tensor_offsets: Mapping[int, int] = field(default_factory=dict)

    @property
    def arena_bytes(self) -> int:
        return int(self.evidence.value)


@dataclass(frozen=True, slots=True)
class SharedObjects:
    """`object_of[i]` is the shared object that holds `records[i]`; `object_bytes` gives each object's size."""

    records: tuple[Record, ...]
    object_of: tuple[int, ...]
    object_bytes: tuple[int, ...]
    evidence: Evidence

    @property
    def total_bytes(self) -> int:
        return sum(self.object_bytes)


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Which units run side by side or merged, stage after stage. `units[u]`: operators of the prepared graph whose
    fingerprint is `model`. `barriers`: a stage waits for the whole one before it; else units wait for what they read.

    `evidence.value`: median seconds, measured on `device_name` with `versions`, `dtype`, `batch` and `threads`."""

    units: tuple[tuple[int, ...], ...]
    stages: tuple[Stage, ...]
    barriers: bool
    device: str
    device_name: str
    versions: str
    dtype: str
    batch: int
    threads: int
    model: str
    evidence: Evidence
