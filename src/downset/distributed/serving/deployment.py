"""Turns a plan into programs and shards: what each device computes, sends and receives, and the models that it needs.

Shards lie in a folder, named by the hash of their content, and are made once: plans that share a strip share its shard.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from downset.distributed.serving.device_program import Computation, DeviceProgram, DeviceStep, TensorForm
from downset.errors import UnsupportedError
from downset.formats.shards.cut import Cutter, FrameTile
from downset.formats.shards.model import opsets_of, shard_model
from downset.formats.shards.write import axis_of, check_exportable, shard_blocks
from downset.graph.core import Graph
from downset.graph.halos import spatial_axis
from downset.process.whole_files import write_whole
from downset.results.pipelines import Pipeline, Rows
from downset.results.task_times import resources_of

__all__ = [
    "LEAST_SPARE_FRAMES",
    "Deployment",
    "Shards",
    "room_for_frames",
    "spare_frames_of",
    "steps_of",
    "with_spare_frames",
]


@dataclass(frozen=True, slots=True)
class Deployment:
    """`programs`: by device with work, as JSON. `shards`: by device, the shards that it needs. `computed`: by task, its
    shard."""

    plan: Pipeline
    programs: Mapping[str, bytes]
    shards: Mapping[str, tuple[str, ...]]
    computed: Mapping[int, str]


class Shards:
    """The shards of one network that were made so far. Safe to use from several threads."""

    def __init__(self, graph: Graph, folder: Path) -> None:
        self._graph, self._folder = graph, folder
        self._cutters: dict[int, Cutter] = {}
        self._made: dict[tuple[int, tuple[int, ...], FrameTile], Computation] = {}
        self._opsets = opsets_of(graph)
        self._lock = threading.Lock()
        self._closed = False
        folder.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Make no more shards: when this returns, nothing is written into the folder any more."""
        with self._lock:
            self._closed = True

    def data(self, shard: str) -> bytes:
        """The content of a shard: an ONNX model."""
        return self._path(shard).read_bytes()

    def nbytes(self, shard: str) -> int:
        return self._path(shard).stat().st_size

    def _path(self, shard: str) -> Path:
        return self._folder / f"{shard}.onnx"

    def deployment(self, plan: Pipeline) -> Deployment:
        """Make the programs and shards of a plan. Raises InvalidPlan for a plan of another network, UnsupportedError
        for what shards cannot hold."""
        graph = self._graph
        blocks = shard_blocks(graph, plan)
        check_exportable(graph, blocks)
        axis = axis_of(blocks)
        computed = {
            (block.stage, block.block, number): self._computation(axis, block.ops, block.tile(number))
            for block in blocks
            for number in range(len(block.strips))
        }
        produced = {rows.tensor for work in computed.values() for rows in work.makes}
        missing = [graph.tensors[t].name for t in graph.outputs if t not in produced]
        if missing:
            raise UnsupportedError(
                f"{graph.name}: no operator computes output {missing[0]!r}; serve needs one that does"
            )
        programs = {
            device.name: _program(graph, plan, axis, number, computed)
            for number, device in enumerate(plan.cluster.devices)
        }
        working = {name: program for name, program in programs.items() if program.tasks()}
        return Deployment(
            plan,
            {name: msgspec.json.encode(program) for name, program in working.items()},
            {name: program.shards() for name, program in working.items()},
            {task: work.shard for program in working.values() for task, work in program.computations.items()},
        )

    def _computation(self, axis: int, ops: tuple[int, ...], tile: FrameTile) -> Computation:
        key = (axis, ops, tile)
        with self._lock:
            if key not in self._made:
                if self._closed:  # a plan ahead of a loss, while the pipeline ends
                    raise UnsupportedError("the pipeline has ended")
                self._made[key] = self._make(axis, ops, tile)
            return self._made[key]

    def _make(self, axis: int, ops: tuple[int, ...], tile: FrameTile) -> Computation:
        if axis not in self._cutters:
            self._cutters[axis] = Cutter(self._graph, axis)
        part = self._cutters[axis].part(ops, tile)
        if part is None:
            return Computation("", (), ())
        data = shard_model(part.graph, self._opsets)
        name = hashlib.sha256(data).hexdigest()
        if not self._path(name).exists():
            write_whole(self._path(name), data)
        return Computation(name, part.reads, part.makes)


def _program(
    graph: Graph, plan: Pipeline, axis: int, device: int, computed: Mapping[tuple[int, int, int], Computation]
) -> DeviceProgram:
    computations, sends, receives = {}, {}, {}
    for number, task in enumerate(plan.tasks):
        if task.transfer is None:
            if task.device == device:
                computations[number] = computed[task.stage, task.block, task.strip]
            continue
        if task.transfer.source == device:
            sends[number] = task.transfer.rows
        if task.transfer.target == device:
            receives[number] = task.transfer.rows
    enters = tuple(_whole(graph, tensor, axis) for tensor in graph.inputs) if plan.entry == device else ()
    results = tuple(_whole(graph, tensor, axis) for tensor in graph.outputs) if plan.exit == device else ()
    used = {rows.tensor for work in computations.values() for rows in (*work.reads, *work.makes)}
    used |= {rows.tensor for moved in (*sends.values(), *receives.values(), enters, results) for rows in moved}
    name = plan.cluster.devices[device].name
    forms = {tensor: _form(graph, tensor, axis) for tensor in sorted(used)}
    steps, slots = steps_of(plan, device)
    starts = bool(enters) or any(not plan.tasks[number].after for number in (*computations, *sends))
    return DeviceProgram(name, forms, computations, sends, receives, enters, results, steps, slots, starts)


def steps_of(plan: Pipeline, device: int) -> tuple[dict[int, DeviceStep], dict[int, int]]:
    """The steps of a device, by task, and the slots of its buffers. Raises UnsupportedError for plans by the
    paper's equations, which have no transfers between stages."""
    if plan.schedule is None:
        raise UnsupportedError(
            "a plan of comm=paper lists no transfers between stages and no orders; plan with comm=resources to run it"
        )
    written: dict[int, list[int]] = {}
    used: dict[int, list[int]] = {}
    credits_: dict[int, int] = {}
    slots = {}
    for number, buffer in enumerate(plan.schedule.buffers):
        if buffer.device == device:
            slots[number] = buffer.slots
            for writer in dict.fromkeys(buffer.writers):
                written.setdefault(writer, []).append(number)
            for user in buffer.users:
                used.setdefault(user, []).append(number)
        for writer in buffer.writers:
            transfer = plan.tasks[writer].transfer
            if transfer is not None and transfer.target == buffer.device:
                credits_[writer] = min(buffer.slots, credits_.get(writer, buffer.slots))
    places = _places(plan)
    steps = {}
    for number, task in enumerate(plan.tasks):
        transfer = task.transfer
        ends = (task.device,) if transfer is None else (transfer.source, transfer.target)
        if device not in ends:
            continue
        sends = transfer is not None and transfer.source == device
        peer = "" if transfer is None else plan.cluster.devices[ends[sends]].name
        after = tuple(dict.fromkeys(task.after)) if transfer is None or sends else ()
        steps[number] = DeviceStep(
            after,
            places[number],
            tuple(written.get(number, ())),
            tuple(used.get(number, ())),
            peer,
            credits_.get(number) if sends else None,
        )
    return steps, slots


def _places(plan: Pipeline) -> list[tuple[int, int]]:
    """(rounds behind, position) of each task in the cyclic order of the first resource that it occupies."""
    assert plan.schedule is not None
    placed = {
        order.resource: {turn.task: (turn.behind, k) for k, turn in enumerate(order.turns)}
        for order in plan.schedule.orders
    }
    places = []
    for number, task in enumerate(plan.tasks):
        first = next((placed[one] for one in resources_of(plan.cluster, task) if one in placed), {})
        places.append(first.get(number, (0, number)))
    return places


def _form(graph: Graph, tensor: int, axis: int) -> TensorForm:
    meta = graph.tensors[tensor]
    rows, columns = (spatial_axis(graph, tensor, one) for one in (axis, 1 - axis))
    return TensorForm(meta.name, meta.shape, meta.dtype, rows, columns)


def _whole(graph: Graph, tensor: int, axis: int) -> Rows:
    along = spatial_axis(graph, tensor, axis)
    return Rows(tensor, 0, 1 if along is None else graph.tensors[tensor].shape[along])


LEAST_SPARE_FRAMES = 3
"""Spare frames of a plan whose frame window is smaller than this."""


def spare_frames_of(plan: Pipeline, chosen: int | None = None) -> int:
    """How many frames beyond its frame window a plan runs with, if memory has room: `chosen`, or by default as many as
    the window, and at least `LEAST_SPARE_FRAMES`."""
    window = plan.schedule.window if plan.schedule is not None else 1
    return max(LEAST_SPARE_FRAMES, window) if chosen is None else chosen


def with_spare_frames(plan: Pipeline, chosen: int | None = None) -> Pipeline:
    """The plan with `spare_frames_of` more frames inside, and as many more slots in every buffer, as far as every
    device has memory for them in addition to what the plan holds there. A plan without orders is returned as it is."""
    schedule, spare = plan.schedule, room_for_frames(plan, chosen)
    if schedule is None or not spare:
        return plan
    buffers = tuple(replace(buffer, slots=buffer.slots + spare) for buffer in schedule.buffers)
    return replace(plan, schedule=replace(schedule, window=schedule.window + spare, buffers=buffers))


def room_for_frames(plan: Pipeline, chosen: int | None = None) -> int:
    """How many of `spare_frames_of` all devices have memory for; 0 for a plan without orders."""
    if plan.schedule is None:
        return 0
    most = spare_frames_of(plan, chosen)
    return min(_room(plan, device, most) for device in range(len(plan.cluster.devices)))


def _room(plan: Pipeline, device: int, most: int) -> int:
    """How many more frames this device has memory for, at most `most`."""
    memory_bytes = plan.cluster.devices[device].memory_bytes
    frame_bytes, held_bytes = _frame_bytes(plan, device), _held_bytes(plan, device)
    if memory_bytes is None or not frame_bytes:
        return most
    return min(most, max(0, (memory_bytes - held_bytes) // frame_bytes))


def _frame_bytes(plan: Pipeline, device: int) -> int:
    """The bytes of one more frame: a slot of every buffer; if no buffers are listed, what the device sends and
    receives."""
    assert plan.schedule is not None
    if plan.schedule.buffers:
        return sum(buffer.nbytes for buffer in plan.schedule.buffers if buffer.device == device)
    moved = (task.transfer for task in plan.tasks if task.transfer is not None)
    return sum(one.nbytes for one in moved if device in (one.source, one.target))


def _held_bytes(plan: Pipeline, device: int) -> int:
    """The bytes that the plan holds there: weights, working memory, runtime, and rows of the frames in its frame
    window."""
    assert plan.schedule is not None
    memory_bytes = sum(one.total_bytes for one in plan.memory if one.device == device)
    if plan.schedule.buffers:
        return memory_bytes + sum(one.nbytes * one.slots for one in plan.schedule.buffers if one.device == device)
    return memory_bytes + plan.schedule.window * _frame_bytes(plan, device)
