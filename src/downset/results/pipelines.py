"""A pipeline over several devices, as `split` plans it and its file holds it. It does not contain its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from downset.clusters.model import Cluster
from downset.results.plans import Evidence
from downset.text import abridged

__all__ = [
    "Block",
    "Buffer",
    "DeviceMemory",
    "FrameTasks",
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
    """Rows [start, stop) of one tensor, along the axis on which its block is cut."""

    tensor: int
    """The number of the tensor in the graph, from 0."""
    start: int
    """The first row, from 0."""
    stop: int
    """The row behind the last one."""
    columns: tuple[int, int] | None = None
    """The columns [start, stop) of a tile; None: all columns."""


@dataclass(frozen=True, slots=True)
class Strip:
    """The part of a block that one device computes. If the block's `axis` is 1, rows here are the network's columns,
    and columns its rows. A tensor of H rows is cut at floor(row * H / frame_rows). A tensor without rows belongs to the
    last strip."""

    device: int
    """The place of the device in the cluster, from 0."""
    start: int
    """The first of the block's `frame_rows` that it computes, from 0."""
    stop: int
    """The row of the block's `frame_rows` behind its last one."""
    macs: int
    """MACs of the strip for one frame, with the redundant ones."""
    redundant_macs: int
    """MACs for one frame beyond the strip's share of those that the block needs once."""
    moved_bytes: int
    """Bytes that operators without MACs read and write for one frame."""
    in_bytes: int
    """Bytes of all rows that the strip reads for one frame."""
    out_bytes: int
    """Bytes of its own rows of results for one frame."""
    columns: tuple[int, int] | None = None
    """The columns [start, stop) of a tile; None: all columns."""
    macs_of: Mapping[str, int] = field(default_factory=dict)
    """MACs by kind of operator, only for kinds in the device's `alpha_of`.

    MACs of this kind for one frame, counted in `macs` too."""
    weight_bytes: int = 0
    """Bytes of weights that operators with MACs read for one frame, each weight once; 0 if the device states no rate of
    weights."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message for a frame between two devices."""

    source: int
    """The place in the cluster of the device that sends it."""
    target: int
    """The place in the cluster of the device that receives it."""
    rows: tuple[Rows, ...]
    """The parts of tensors that it carries."""
    nbytes: int
    """Bytes of all its rows together."""

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Block:
    """The operators between two cuts, computed strip by strip without messages inside."""

    start: int
    """The number of the cut in front of the block, from 0."""
    stop: int
    """The number of the cut behind the block."""
    ops: tuple[int, ...]
    """The numbers of its operators in the graph, from 0."""
    axis: int
    """The cut axis: 0 for rows (the length of tensors of rank 3), 1 for columns."""
    frame_rows: int
    """The number of rows, or of columns if `axis` is 1, that the strips share."""
    rule: Literal["leader", "halo", "direct"]
    """Which devices send rows to which (docs/pipelines.md, Who fetches what)."""
    strips: tuple[Strip, ...]
    """The parts that devices compute."""

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """Blocks that the same devices run one after another."""

    ops: tuple[int, ...]
    """The numbers of its operators in the graph, from 0."""
    leader: int
    """The place in the cluster of the device that gives the others their rows and gathers the results; -1 if there is
    none."""
    devices: tuple[int, ...]
    """The places in the cluster of the devices that run it."""
    blocks: tuple[Block, ...]
    """Its blocks, in the order in which they run."""
    macs: int
    """MACs for one frame, with the redundant ones."""
    redundant_macs: int
    """MACs for one frame that strips compute in addition to those of the operators computed once."""

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Task:
    """Work that every frame needs once: the computation of a strip, or a transfer."""

    stage: int
    """The number of its stage, from 0."""
    block: int
    """The number in the stage of the strip's block, or of the block that a transfer precedes or whose rows it gathers;
    a transfer to the sink belongs to the last block."""
    device: int
    """The place in the cluster of the device that computes the strip or sends the transfer."""
    strip: int = -1
    """The number in the block of the strip that is computed; -1 for a transfer."""
    transfer: Transfer | None = None
    """The message; None for a computation."""
    after: tuple[int, ...] = ()
    """The places in the plan's `tasks` of those tasks of the same frame that give the device what this task reads."""

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class FrameTasks:
    """The tasks of every frame, in an order in which one frame can do them. The frame (`frame_bytes`) appears at
    `entry`; its result (`result_bytes`) stays at `exit`."""

    stages: tuple[PipelineStage, ...]
    tasks: tuple[Task, ...]
    entry: int
    exit: int
    frame_bytes: int = 0
    result_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Resource:
    """A device, a part of one, or the medium. It does one task at a time."""

    kind: Literal["device", "processor", "radio", "send", "receive", "medium"]
    """device: the whole of one that does one thing at a time; processor; radio, which sends or receives; send and
    receive, the ports of one with full duplex; medium."""
    device: int = -1
    """The place of the device in the cluster; -1 for the medium."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A place in the cyclic order of a resource."""

    task: int
    """The place of the task in the plan's `tasks`."""
    behind: int
    """How many frames the task is behind: in round n the resource does it for frame n - `behind`."""


@dataclass(frozen=True, slots=True)
class ResourceOrder:
    """The tasks of a resource in their cyclic order, each once."""

    resource: Resource
    """The device, its part, or the medium that does the tasks."""
    turns: tuple[Turn, ...]
    """Its tasks in the order of one round."""

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory on a device for rows of a tensor. Frame k has slot k modulo `slots`. A frame holds its slot from the start
    of its first task in `writers` to the end of its last task in `writers` or `readers`: nothing may read some of the
    rows, and these may be written last. Tasks that read the network's inputs at the entry are writers there; tasks that
    write its results at the exit are readers there."""

    device: int
    """The place of the device in the cluster."""
    tensor: int
    """The number of the tensor in the graph; -1 for memory inside a strip while it is computed."""
    start: int
    """The first row that it holds, from 0; 0 for memory inside a strip."""
    stop: int
    """The row behind the last one that it holds; 0 for memory inside a strip."""
    nbytes: int
    """Bytes of one slot."""
    slots: int
    """How many frames are in the buffer at once; their slots lie one after another."""
    writers: tuple[int, ...]
    """The places in the plan's `tasks` of the tasks that fill a slot."""
    readers: tuple[int, ...]
    """The places in the plan's `tasks` of the tasks that read a slot."""
    columns: tuple[int, int] | None = None
    """The columns [start, stop) of a tile; None: all columns."""
    offset: int = 0
    """Where the first slot begins, in bytes from the start of the device's arena."""

    __repr__ = abridged

    @property
    def users(self) -> tuple[int, ...]:
        """The tasks that write or read a slot. It is free when all of them are done."""
        return tuple(sorted({*self.writers, *self.readers}))


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory that a device needs: constants, runtime, and the arena of its buffers."""

    device: int
    """The place of the device in the cluster."""
    weights_bytes: int
    """Bytes of its constants, each counted once."""
    overhead_bytes: int
    """Bytes that its runtime takes, as the cluster states them."""
    arena_bytes: int
    """Bytes of the arena of its buffers; with `comm` "paper" there are no buffers, and it is the arena of the strip
    that needs most."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.overhead_bytes + self.arena_bytes


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """The cyclic order of every resource, and the buffers that frames pass. A run begins with `window` - 1 empty
    frames, which take their turns and slots, but no time."""

    window: int
    """The most frames that are inside the pipeline at once."""
    orders: tuple[ResourceOrder, ...]
    """The order of the tasks of each resource."""
    buffers: tuple[Buffer, ...]
    """The memory of the devices for rows of tensors."""
    load_bound_s: float
    """Seconds; the period of any orders of the same tasks is at least this long."""

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A plan of which device computes which operators on which rows, what it sends to which device, and in which
    order."""

    cluster: Cluster
    """The devices and the network for which the plan was made."""
    comm: Literal["resources", "paper"]
    """The model of time: `resources` schedules every processor, port and medium; `paper` uses the equations of PICO and
    has no schedule."""
    topology: Literal["leader", "direct"]
    """How rows go between stages: through leaders, or directly from the devices that made them."""
    entry: int
    """The place in the cluster of the device at which frames appear."""
    exit: int
    """The place in the cluster of the device with which results stay."""
    source: str
    """The name of the entry if the user chose it; otherwise "outside", and bringing frames costs nothing."""
    sink: str
    """The name of the exit if the user chose it; otherwise "outside", and taking results away costs nothing."""
    stages: tuple[PipelineStage, ...]
    """The stages, in the order in which a frame passes them."""
    tasks: tuple[Task, ...]
    """All work for one frame."""
    schedule: PipelineSchedule | None
    """The orders and buffers; None with `comm` "paper"."""
    memory: tuple[DeviceMemory, ...]
    """The memory of each device that the plan uses; empty if the plan was made without a graph."""
    period_s: float
    """Seconds between two results while the pipeline runs steadily, analytic."""
    latency_s: float
    """Seconds that one frame takes through all stages while other frames take no time, analytic."""
    evidence: Evidence
    """How good the period, in seconds, is known to be; its bound holds for the plans that `space` names."""
    space: str
    """The plans for which the evidence holds, in words."""
    note: str = ""
    """Remarks of the planner; empty if it has none."""
    stopped: bool = False
    """Whether a limit of time or work ended the search, so that this is the best plan found so far."""
    floor_s: float = 0.0
    """A lower bound in seconds for the period of every pipeline, of whatever kind; 0: not known."""
    frame_bytes: int = 0
    """Bytes of a frame, which costs the entry time if the cluster states costs of messages."""
    result_bytes: int = 0
    """Bytes of a result, which costs the exit time if the cluster states costs of messages."""

    def __repr__(self) -> str:
        devices = len(self.cluster.devices)
        return f"<Pipeline of {len(self.stages)} stages over {devices} devices: period {self.evidence.in_seconds()}>"

    @property
    def throughput_per_s(self) -> float:
        return 1.0 / self.period_s if self.period_s else float("inf")
