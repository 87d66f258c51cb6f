"""A pipeline over several devices, as `split` plans it and its file holds it. It does not contain its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from downset.clusters.model import Cluster
from downset.plans import Evidence
from downset.text import abridged

__all__ = [
    "Block",
    "Buffer",
    "DeviceMemory",
    "Pipeline",
    "PipelineSchedule",
    "PipelineStage",
    "Resource",
    "ResourceOrder",
    "Rows",
    "Strip",
    "Task",
    "Transfer",
    "Turn",
]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows [start, stop) of tensor number `tensor`, along the axis on which its block is cut. `columns`: the half-open
    interval of columns if the block is cut into tiles, else None, which means all columns."""

    tensor: int
    start: int
    stop: int
    columns: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Strip:
    """The part of a block that one device computes: rows [start, stop) of the block's `frame_rows`, and `columns` if
    the block is cut into tiles. If the block's `axis` is 1, rows here are the network's columns, and columns its rows.
    A tensor of H rows is cut at floor(row * H / frame_rows). A tensor without rows belongs to the last strip.

    `in_bytes`, `out_bytes`: bytes of what it reads and of its own rows of results. `moved_bytes`: bytes that operators
    without MACs read and write. `macs_of`: MACs by kind of operator, only for kinds in the device's `alpha_of`."""

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
    """One message for a frame: device `source` sends `rows`, of `nbytes` in all, to device `target`."""

    source: int
    target: int
    rows: tuple[Rows, ...]
    nbytes: int

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Block:
    """The operators between the cuts `start` and `stop`, computed strip by strip without messages inside. `axis`: 0 if
    rows are cut, 1 if columns are. `rule`: which devices send rows to which (docs/pipelines.md, Who fetches what)."""

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
    """Blocks that the same devices run one after another. `leader`: the device that gives the others their rows and
    gathers the results; -1 if there is none. `macs`: MACs for one frame; `redundant_macs`: those that strips repeat."""

    ops: tuple[int, ...]
    leader: int
    devices: tuple[int, ...]
    blocks: tuple[Block, ...]
    macs: int
    redundant_macs: int

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Task:
    """Work that every frame needs once: strip number `strip` of a block on `device`, or a transfer that `device` sends.
    `after`: the tasks of the same frame that give the device what this task reads. `block`: the strip's block, or the
    block that a transfer precedes or whose rows it gathers; a transfer to the sink belongs to the last block."""

    stage: int
    block: int
    device: int
    strip: int = -1
    transfer: Transfer | None = None
    after: tuple[int, ...] = ()

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Resource:
    """A device, a part of one, or the medium. It does one task at a time. `device` is -1 for the medium."""

    kind: Literal["device", "processor", "radio", "send", "receive", "medium"]
    device: int = -1


@dataclass(frozen=True, slots=True)
class Turn:
    """A place in the cyclic order of a resource: in round n the resource does the task for frame n - `behind`."""

    task: int
    behind: int


@dataclass(frozen=True, slots=True)
class ResourceOrder:
    """The tasks of a resource in their cyclic order, each once."""

    resource: Resource
    turns: tuple[Turn, ...]

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory on a device for rows [start, stop) of a tensor (and `columns`, as in `Rows`). It has `slots` slots of
    `nbytes`, one after another from `offset` on in the device's arena; frame k has slot k modulo `slots`. A frame holds
    its slot from the start of its first task in `writers` to the end of its last task in `readers`.

    Tasks that read the network's inputs at the entry are writers there; tasks that write its results at the exit are
    readers there. `tensor` -1: memory inside a strip while it is computed; `start` and `stop` are then 0."""

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
    """The memory that a device needs: its constants, each counted once; what its runtime takes (`overhead_bytes`); and
    the arena of its buffers. With `comm` "paper" there are no buffers: it is the arena of the strip that needs most."""

    device: int
    weights_bytes: int
    overhead_bytes: int
    arena_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.overhead_bytes + self.arena_bytes


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """The cyclic order of every resource, with at most `window` frames inside at once. `load_bound_s`: seconds; the
    period of any orders of the same tasks is at least this long."""

    window: int
    orders: tuple[ResourceOrder, ...]
    buffers: tuple[Buffer, ...]
    load_bound_s: float

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A plan of which device computes which operators on which rows, what it sends to which device, and in which order.

    `comm`: the model of time; with "paper" there is no schedule. A frame appears at device `entry`, and its result
    stays at device `exit`. `source`, `sink`: the names of these devices if the user chose them, else "outside".
    `evidence.value` is the period in seconds; `evidence.bound` holds for the plans that `space` names. Every pipeline
    has a period of `floor_s` or more (0: not known). `note`: remarks of the planner. `frame_bytes`, `result_bytes`: the
    bytes of a frame and its result; they cost the entry and the exit time if the cluster states costs of messages."""

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
