"""Plans: the values that planners return, with their evidence. A plan does not contain its graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from downset.memory.records import Overlap, Record
from downset.text import abridged, format_bytes

__all__ = [
    "Arena",
    "Evidence",
    "Found",
    "Order",
    "SharedObjects",
    "Stage",
    "StagePlan",
    "StoppedBy",
    "Together",
    "ended_by",
]

StoppedBy = Literal["", "time", "work", "memory", "interrupt"]
"""The limit that ended a search early: time, work (search states) or memory, or "interrupt" for the user; "" if nothing
did."""


def ended_by(limits: Iterable[StoppedBy]) -> StoppedBy:
    """The limit that is told of several searches: the one that depends most on the moment."""
    depends: tuple[StoppedBy, ...] = ("", "work", "memory", "time", "interrupt")
    return max(limits, key=depends.index, default="")


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a planner of orders or arenas: its solution (operators by step, or offsets or objects by record),
    a bound that holds for every solution, whether the solution is proven to meet it, the number of search states, and
    the limit that ended the search early, if one did."""

    solution: tuple[int, ...]
    bound: int
    proven: bool = False
    states: int = 0
    stopped_by: StoppedBy = ""

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Evidence:
    """How good a plan is known to be."""

    method: str
    """The name of the planner."""
    value: int | float
    """The cost of the plan: bytes, or seconds of a latency or period."""
    bound: int | float
    """A number that no plan of the same problem can go below, in the unit of `value`."""
    proven: bool
    """Whether a finished search, or a bound that the plan meets, shows that the value equals the bound."""
    states: int = 0
    """How many states the search visited."""
    seconds: float = 0.0
    """Seconds that the search took, measured."""
    stopped_by: StoppedBy = ""
    """The limit that ended the search early: time, states (`work`) or memory of the search; empty if none did."""

    def stopped(self) -> str:
        """Words to put after the bound where a limit ended the search, else ""."""
        return f", stopped by the {self.stopped_by} limit" if self.stopped_by else ""

    def in_bytes(self) -> str:
        """The value with its proof or its bound, for people: "4,096 B, proven"."""
        claim = "proven" if self.proven else f"bound {format_bytes(self.bound)} B{self.stopped()}"
        return f"{format_bytes(self.value)} B, {claim} ({self.method})"

    def in_seconds(self) -> str:
        """The value with its proof or its bound, for people: "0.25 s, bound 0.2 s"."""
        claim = "proven" if self.proven else f"bound {self.bound:.6g} s{self.stopped()}"
        return f"{self.value:.6g} s, {claim} ({self.method})"


@dataclass(frozen=True, slots=True)
class Order:
    """`steps[i]` is the operator that runs at step i. `evidence.value` is its peak in bytes under `memory`, the name of
    a memory model; "" for an order of a bare problem, whose storages were made by no model that is known here."""

    steps: tuple[int, ...]
    memory: str
    evidence: Evidence

    def __repr__(self) -> str:
        model = f", memory {self.memory}" if self.memory else ""
        return f"<Order of {len(self.steps)} operators: {self.evidence.in_bytes()}{model}>"

    @property
    def peak_bytes(self) -> int:
        return int(self.evidence.value)


@dataclass(frozen=True, slots=True)
class Arena:
    """`offsets[i]` places `records[i]` in one buffer of `arena_bytes`. If the arena was planned for a graph,
    `tensor_offsets` gives the offset of each tensor that lies in one record."""

    records: tuple[Record, ...]
    offsets: tuple[int, ...]
    evidence: Evidence
    memory: str = ""
    tensor_offsets: Mapping[int, int] = field(default_factory=dict)
    overlaps: tuple[Overlap, ...] = ()
    """Pairs of records that may overlap while one operator reads one and writes the other."""

    def __repr__(self) -> str:
        model = f", memory {self.memory}" if self.memory else ""
        return f"<Arena of {len(self.records)} records: {self.evidence.in_bytes()}{model}>"

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

    def __repr__(self) -> str:
        return f"<SharedObjects: {len(self.object_bytes)} for {len(self.records)} records, {self.evidence.in_bytes()}>"

    @property
    def total_bytes(self) -> int:
        return sum(self.object_bytes)


@dataclass(frozen=True, slots=True)
class Stage:
    """The work between two barriers: groups run side by side, the units of a group one after another. If `merged`, one
    operator does the work of all units, and each group has one unit."""

    groups: tuple[tuple[int, ...], ...]
    merged: bool = False

    __repr__ = abridged

    @property
    def units(self) -> tuple[int, ...]:
        return tuple(unit for group in self.groups for unit in group)


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Which units run side by side or merged, stage after stage. `units[u]`: operators of the prepared graph whose
    fingerprint is `model`. `barriers`: a stage waits for all of the one before; else a unit waits for what it reads.

    `dtype`: the float type in which all floats are computed; "model": the model has several, and each tensor is
    computed in its own. `evidence.value`: median seconds, measured on `device_name` with `versions`, `dtype`, `batch`
    and `threads`. If the plan was made from prices, it is their sum over the stages. Then `device`, `device_name`,
    `versions` and `dtype` are empty, `threads` is 0, and `model` is empty where there was no graph."""

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
    variant: str = ""
    """A key of `downset.stages.prepared.VARIANTS`: the rewrite of the prepared graph before `units` were made."""

    def __repr__(self) -> str:
        return f"<StagePlan of {len(self.units)} units in {len(self.stages)} stages: {self.evidence.in_seconds()}>"


@dataclass(frozen=True, slots=True)
class Together:
    """An order and its arena. The arena's evidence is about *all* orders: its bound is that of the least peak."""

    order: Order
    arena: Arena

    def __repr__(self) -> str:
        peak, arena = self.order.evidence.in_bytes(), self.arena.evidence.in_bytes()
        return f"<Together of {len(self.order.steps)} operators: peak {peak}, arena {arena}>"
