"""What planners return: plain values with their evidence. A plan never holds its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from downset.clusters.model import Cluster
from downset.memory.records import Record
from downset.text import abridged, format_bytes

__all__ = [
    "Arena",
    "Block",
    "Evidence",
    "Found",
    "Order",
    "Pipeline",
    "PipelineStage",
    "Rewrite",
    "SharedObjects",
    "Stage",
    "StagePlan",
    "Strip",
    "Together",
    "Transfer",
]


@dataclass(frozen=True, slots=True)
class Found:
    """What a planner of orders or arenas returns: its solution (operators by step, or offsets or objects by record),
    a bound that holds for every solution, whether the solution meets it, and the search states it took."""

    solution: tuple[int, ...]
    bound: int
    proven: bool = False
    states: int = 0

    __repr__ = abridged


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

    def in_bytes(self) -> str:
        """The value with its proof or its bound, for people: "4,096 B, proven"."""
        known = "proven" if self.proven else f"bound {format_bytes(self.bound)} B"
        return f"{format_bytes(self.value)} B, {known} ({self.method})"

    def in_seconds(self) -> str:
        """The value with its proof or its bound, for people: "0.25 s, bound 0.2 s"."""
        known = "proven" if self.proven else f"bound {self.bound:.6g} s"
        return f"{self.value:.6g} s, {known} ({self.method})"


@dataclass(frozen=True, slots=True)
class Order:
    """`steps[i]` is the operator that runs at step i. `evidence.value` is its peak in bytes under `memory`."""

    steps: tuple[int, ...]
    memory: str
    evidence: Evidence

    def __repr__(self) -> str:
        return f"<Order of {len(self.steps)} operators: {self.evidence.in_bytes()}, memory {self.memory}>"

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
        count = len(self.object_bytes)
        return f"<SharedObjects: {count} for {len(self.records)} records, {self.evidence.in_bytes()}>"

    @property
    def total_bytes(self) -> int:
        return sum(self.object_bytes)


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs between two barriers: groups side by side, the units of a group one after another; or, `merged`, one
    operator that does the work of all units (one unit a group then)."""

    groups: tuple[tuple[int, ...], ...]
    merged: bool = False

    __repr__ = abridged

    @property
    def units(self) -> tuple[int, ...]:
        return tuple(unit for group in self.groups for unit in group)


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Which units run side by side or merged, stage after stage. `units[u]`: operators of the prepared graph whose
    fingerprint is `model`. `barriers`: a stage waits for the whole one before it; else units wait for what they read.

    `evidence.value`: median seconds, measured on `device_name` with `versions`, `dtype`, `batch` and `threads`. Planned
    from prices it is the sum of the stages' prices: then `device`, `device_name`, `versions` and `dtype` are empty and
    `threads` is 0 (and `model` is empty where there was no graph)."""

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
    """A key of `downset.stages.variants.VARIANTS`: what was merged before; `units` are of that graph."""

    def __repr__(self) -> str:
        return f"<StagePlan of {len(self.units)} units in {len(self.stages)} stages: {self.evidence.in_seconds()}>"


@dataclass(frozen=True, slots=True)
class Strip:
    """What one device computes of a block: rows [start, stop) of the block's frame (and columns, where it is cut into
    tiles). Where the block's `axis` is 1, its rows are the network's columns and its columns the network's rows. A
    tensor of H rows is cut at floor(row * H / frame_rows); one without rows belongs to the last strip."""

    device: int
    start: int
    stop: int
    macs: int
    redundant_macs: int
    in_bytes: int
    out_bytes: int
    columns: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    source: int
    target: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Block:
    """Operators between two cuts, computed strip by strip without communication: `before` are the transfers it waits
    for, `after` those that end it. `compute_s` is the slowest device's, `transfer_s` both rounds of transfers."""

    start: int
    stop: int
    ops: tuple[int, ...]
    frame_rows: int
    strips: tuple[Strip, ...]
    before: tuple[Transfer, ...]
    after: tuple[Transfer, ...]
    compute_s: float
    transfer_s: float
    axis: int = 0
    """What the rows of its frame are: 0, rows of tensors of rank 4 or the length of those of rank 3; 1, columns."""

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """Blocks run one after another by the same devices. `leader` receives the stage's input (`handover_bytes`, from the
    stage before) and holds its output. `macs` are all that are computed, `redundant_macs` those above the need.
    `memory_bytes`: by device of the stage, weights and activations; empty where not asked for."""

    ops: tuple[int, ...]
    leader: int
    devices: tuple[int, ...]
    blocks: tuple[Block, ...]
    macs: int
    redundant_macs: int
    nbytes: int
    handover_bytes: int
    compute_s: float
    transfer_s: float
    seconds: float
    memory_bytes: tuple[int, ...] = ()

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Which device computes which operators on which rows. `evidence.value` and `.bound` are periods in seconds.
    `medium_s`: time that a frame's bytes take on a shared network, 0 on links. `note`: why it is not split further.
    `stopped`: the search ended at its limit."""

    cluster: Cluster
    comm: str
    stages: tuple[PipelineStage, ...]
    period_s: float
    latency_s: float
    medium_s: float
    evidence: Evidence
    note: str = ""
    stopped: bool = False

    def __repr__(self) -> str:
        devices = len(self.cluster.devices)
        return f"<Pipeline of {len(self.stages)} stages over {devices} devices: period {self.evidence.in_seconds()}>"

    @property
    def throughput_per_s(self) -> float:
        return 1.0 / self.period_s if self.period_s else float("inf")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One concatenation taken apart (or, row-wise, a segment computed strip by strip: `name` says which). `name`: its
    operator, `readers`: the operators that were split, in order; `kind`: channel-wise where partial results are added
    up, else kernel-wise; `bytes_gained`: by how much the peak would be higher without it."""

    name: str
    readers: tuple[str, ...]
    kind: str
    bytes_gained: int

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Together:
    """An order and its arena. The arena's evidence here speaks of *all* orders: its bound is the least peak proven."""

    order: Order
    arena: Arena

    def __repr__(self) -> str:
        peak, arena = self.order.evidence.in_bytes(), self.arena.evidence.in_bytes()
        return f"<Together of {len(self.order.steps)} operators: peak {peak}, arena {arena}>"
