"""Plans: plain values that planners return, with their evidence. A plan never holds its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from downset.clusters.model import Cluster
from downset.memory.records import Overlap, Record
from downset.text import abridged, format_bytes

__all__ = [
    "Arena",
    "Block",
    "Buffer",
    "DeviceMemory",
    "Evidence",
    "Found",
    "Order",
    "Pipeline",
    "PipelineSchedule",
    "PipelineStage",
    "Resource",
    "ResourceOrder",
    "Rewrite",
    "Rows",
    "SharedObjects",
    "Stage",
    "StagePlan",
    "StoppedBy",
    "Strip",
    "Task",
    "Together",
    "Transfer",
    "Turn",
]

StoppedBy = Literal["", "time", "work", "memory"]
"""The limit that ended a search before its end: of time, of work (states), of memory; "": none did."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a planner of orders or arenas: its solution (operators by step, or offsets or objects by record),
    a bound that holds for every solution, whether the solution meets it, the search states it took, and which limit
    ended the search before its end."""

    solution: tuple[int, ...]
    bound: int
    proven: bool = False
    states: int = 0
    stopped_by: StoppedBy = ""

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Evidence:
    """How good a plan is known to be. `bound` holds for every plan of the same problem; `proven` is `value == bound`
    established by a finished search or by a bound that the plan meets. `states` counts search states (0: none).
    `stopped_by`: the limit that ended the search before its end, where one did."""

    method: str
    value: float
    bound: float
    proven: bool
    states: int = 0
    seconds: float = 0.0
    stopped_by: StoppedBy = ""

    def stopped(self) -> str:
        """Words behind the bound where a limit ended the search, else ""."""
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
    overlaps: tuple[Overlap, ...] = ()
    """Records that may overlap while one operator reads the one and writes the other."""

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
    """The work between two barriers: groups side by side, the units of a group one after another; or, `merged`, one
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
class Rows:
    """Rows [start, stop) of a tensor along the axis that its block is cut on; `columns` [first, last) where the block
    is cut into tiles, else all."""

    tensor: int
    start: int
    stop: int
    columns: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Strip:
    """The part of a block that one device computes: rows [start, stop) of the block's frame (and columns, where it is
    cut into tiles). Where the block's `axis` is 1, its rows are the network's columns and its columns the network's
    rows. A tensor of H rows is cut at floor(row * H / frame_rows); one without rows belongs to the last strip.

    `moved_bytes`: read and written by operators without MACs. `macs_of`: MACs by kind of operator, only for kinds that
    the device has an alpha of their own for."""

    device: int
    start: int
    stop: int
    macs: int
    redundant_macs: int
    moved_bytes: int
    in_bytes: int
    out_bytes: int
    columns: tuple[int, int] | None = None
    macs_of: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message of a frame: rows that `source` has and `target` lacks, `nbytes` together."""

    source: int
    target: int
    rows: tuple[Rows, ...]
    nbytes: int

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Block:
    """Operators between two cuts, computed strip by strip without communication inside. `axis`: 0 where rows are cut, 1
    where columns are. `rule`: who fetches what from whom, as docs/pipelines.md has it."""

    start: int
    stop: int
    ops: tuple[int, ...]
    axis: int
    frame_rows: int
    rule: Literal["leader", "halo", "direct"]
    strips: tuple[Strip, ...]

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """Blocks that the same devices run one after another. `leader`: who gives and gathers, -1 where nobody does.
    `macs` are all that are computed, `redundant_macs` those above the need."""

    ops: tuple[int, ...]
    leader: int
    devices: tuple[int, ...]
    blocks: tuple[Block, ...]
    macs: int
    redundant_macs: int

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Task:
    """Work that every frame needs once: strip `strip` of a block on `device`, or a transfer that `device` sends.
    `after`: the tasks of the same frame that give the device what this one reads. `block` is that of the strip, or the
    one that a transfer comes before or gathers; a transfer to the sink belongs to the last."""

    stage: int
    block: int
    device: int
    strip: int = -1
    transfer: Transfer | None = None
    after: tuple[int, ...] = ()

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Resource:
    """A device, radio or medium: it does one task at a time. `device` is -1 for the medium."""

    kind: Literal["device", "processor", "radio", "send", "receive", "medium"]
    device: int = -1


@dataclass(frozen=True, slots=True)
class Turn:
    """A task's place in the cyclic order of a resource: in round n the task is done for frame n - `behind`."""

    task: int
    behind: int


@dataclass(frozen=True, slots=True)
class ResourceOrder:
    """A resource's tasks in their cyclic order, each once."""

    resource: Resource
    turns: tuple[Turn, ...]

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Buffer:
    """Room for rows [start, stop) of a tensor on a device (and columns, as in `Rows`), `nbytes` for each of `slots`
    frames: taken from the start of the first of the tasks `writers` to the end of the last of the tasks `readers`. The
    slots lie one after another in the device's arena, from `offset` on; frame k has slot k modulo `slots`.

    Frames are taken by the first task that reads them, results held until all of them are there: such tasks are writers
    or readers too. `tensor` -1: what a strip holds inside while it is computed, `start` and `stop` are 0 then."""

    device: int
    tensor: int
    start: int
    stop: int
    nbytes: int
    slots: int
    writers: tuple[int, ...]
    readers: tuple[int, ...]
    columns: tuple[int, int] | None = None
    offset: int = 0

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory that a device must have: every constant that it reads once, what its runtime takes, and the arena of
    its buffers. Under `paper`, which has no buffers, the arena is that of the strip that needs most."""

    device: int
    weights_bytes: int
    overhead_bytes: int
    arena_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.overhead_bytes + self.arena_bytes


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """The cyclic order of every resource, with at most `window` frames inside at once. `load_bound_s`: no orders of the
    same tasks have a shorter period."""

    window: int
    orders: tuple[ResourceOrder, ...]
    buffers: tuple[Buffer, ...]
    load_bound_s: float

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Which device computes which operators on which rows, what is sent to whom, and in which order.

    `comm`: the model of time, `paper` without a schedule. A frame appears at `entry`, its result stays at `exit`;
    `source` and `sink` are their names where they were asked for, else `outside`. `evidence.value` and `.bound` are
    periods in seconds, over the plans of `space`; no pipeline of any kind has a period below `floor_s` (0: not known).
    `note`: what else is to be said of the plan. `frame_bytes` and `result_bytes`: of a frame and of its result, for
    which the entry and the exit are charged where the cluster says what messages cost."""

    cluster: Cluster
    comm: Literal["resources", "paper"]
    topology: Literal["leader", "direct"]
    entry: int
    exit: int
    source: str
    sink: str
    stages: tuple[PipelineStage, ...]
    tasks: tuple[Task, ...]
    schedule: PipelineSchedule | None
    memory: tuple[DeviceMemory, ...]
    period_s: float
    latency_s: float
    evidence: Evidence
    space: str
    note: str = ""
    stopped: bool = False
    floor_s: float = 0.0
    frame_bytes: int = 0
    result_bytes: int = 0

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
