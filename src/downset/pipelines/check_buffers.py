"""Checks that a plan's buffers are those that its tasks need, share no bytes while both may be in use, and make up the
memory that the plan states. It derives buffers from rows, and the order of tasks from the plan's arcs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from downset.errors import InvalidPlan
from downset.pipelines.check_rows import PlanRows, TensorArea
from downset.results.pipelines import Block, Buffer, DeviceMemory, Pipeline, PipelineSchedule, Strip

__all__ = ["check_buffers", "check_named", "check_places"]

_INNER = -1
_FAR = 1 << 40


def check_buffers(rows: PlanRows, plan: Pipeline) -> None:
    """Raise InvalidPlan for a buffer that is missing, superfluous, or of other rows or tasks than the plan's tasks
    need, and for stated weights other than those of the operators that a device computes."""
    if plan.schedule is not None:
        wanted = _wanted(rows, plan)
        inner = _inner(rows, plan)
        for buffer in plan.schedule.buffers:
            if buffer.tensor == _INNER:
                _check_inner(buffer, inner)
                continue
            expected = wanted.pop((buffer.device, buffer.tensor), None)
            if expected is None:
                raise InvalidPlan(f"device {buffer.device} has no task for its buffer of tensor {buffer.tensor}")
            _check_buffer(rows, buffer, *expected)
        if wanted:
            device, tensor = min(wanted)
            raise InvalidPlan(f"device {device} has no buffer for {rows.graph.tensors[tensor].name!r}")
        missing = [task for task, (least, _) in inner.items() if least]
        if missing:
            raise InvalidPlan(f"there is no buffer for what task {missing[0]} holds inside")
    areas = _weights(rows, plan)
    _check_devices(plan)
    for stated in plan.memory:
        described = plan.cluster.devices[stated.device]
        _equal(stated, "weights", stated.weights_bytes, areas.get(stated.device, 0))
        _equal(stated, "overhead", stated.overhead_bytes, described.runtime_bytes)


def _equal(areas: DeviceMemory, what: str, stated: int, counted: int) -> None:
    if stated != counted:
        raise InvalidPlan(f"device {areas.device} states {stated} bytes of {what}, but has {counted}")


def _check_devices(plan: Pipeline) -> None:
    devices = {device for stage in plan.stages for device in stage.devices}
    if plan.schedule is not None:
        devices |= {plan.entry, plan.exit}
    if {areas.device for areas in plan.memory} != devices:
        raise InvalidPlan(f"memory must be stated for the devices {sorted(devices)}, and for no others")


Wanted = dict[tuple[int, int], tuple[TensorArea, set[int], set[int]]]


def _wanted(rows: PlanRows, plan: Pipeline) -> Wanted:
    """The hull and the tasks that write and read it, by device and tensor."""
    expected: Wanted = {}

    def add(device: int, tensor: int, part: TensorArea, task: int, *, writes: bool) -> None:
        if not rows.form.bytes_per_row[tensor]:
            return
        part_before, writers, readers = expected.get((device, tensor), (part, set[int](), set[int]()))
        spans = [(min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(part_before, part, strict=True)]
        (writers if writes else readers).add(task)
        expected[device, tensor] = (TensorArea(*spans), writers, readers)

    for number, task in enumerate(plan.tasks):
        if task.transfer is not None:
            for item in task.transfer.rows:
                add(task.transfer.source, item.tensor, rows.part(item), number, writes=False)
                add(task.transfer.target, item.tensor, rows.part(item), number, writes=True)
            continue
        block = plan.stages[task.stage].blocks[task.block]
        areas, own, outputs = _strip_parts(rows, block, block.strips[task.strip])
        for tensor, part in areas.items():
            if tensor not in outputs or tensor in own:
                add(task.device, tensor, part, number, writes=tensor in outputs)
    frame_tensors, outputs = set(rows.graph.inputs), _results(rows)
    inputs = [key for key in expected if key[0] == plan.entry and key[1] in frame_tensors]
    taking = set().union(*(expected[key][2] for key in inputs))
    results = [key for key in expected if key[0] == plan.exit and key[1] in outputs]
    ending = set().union(*(expected[key][1] for key in results))
    for key in inputs:
        expected[key] = (_whole(rows, key[1]), set(taking), expected[key][2])
    for key in results:
        expected[key] = (_whole(rows, key[1]), expected[key][1], expected[key][2] | ending)
    return {key: (part, writers, readers or writers) for key, (part, writers, readers) in expected.items()}


def _results(rows: PlanRows) -> set[int]:
    results = {tensor for op in rows.form.ops for tensor in op.outputs}
    return results.intersection(rows.graph.outputs)


def _whole(rows: PlanRows, tensor: int) -> TensorArea:
    return TensorArea((0, max(rows.form.rows[tensor], 1)), (0, rows.width(tensor)))


def _strip_parts(
    rows: PlanRows, block: Block, strip: Strip
) -> tuple[dict[int, TensorArea], dict[int, TensorArea], set[int]]:
    """Three things of a strip: the area of each tensor that it reads or makes; its own part of each tensor that the
    block makes for others; and the tensors made in the block. An operator that is computed whole makes such a tensor
    even if no row of it is the strip's own."""
    results = {tensor for op in block.ops for tensor in rows.form.ops[op].outputs}
    areas, _ = rows.parts(block, strip)
    return areas, {tensor: areas[tensor] for tensor in rows.sinks(block) if tensor in areas}, results


def _check_buffer(rows: PlanRows, buffer: Buffer, part: TensorArea, writers: set[int], readers: set[int]) -> None:
    name = f"device {buffer.device}'s buffer of {rows.graph.tensors[buffer.tensor].name!r}"
    columns = buffer.columns or (0, rows.width(buffer.tensor))
    if ((buffer.start, buffer.stop), columns) != tuple(part):
        raise InvalidPlan(f"{name} has rows {buffer.start}-{buffer.stop}, but it needs {part.rows[0]}-{part.rows[1]}")
    if buffer.nbytes != rows.nbytes(buffer.tensor, part):
        raise InvalidPlan(f"{name} states {buffer.nbytes} bytes, but its rows are {rows.nbytes(buffer.tensor, part)}")
    if set(buffer.writers) != writers or set(buffer.readers) != readers:
        raise InvalidPlan(f"{name} must be written by tasks {sorted(writers)} and read by {sorted(readers)}")


def _inner(rows: PlanRows, plan: Pipeline) -> dict[int, tuple[int, int]]:
    """The least and the most bytes that each computing task holds inside, computed operator by operator."""
    inner = {}
    for number, task in enumerate(plan.tasks):
        if task.transfer is not None:
            continue
        block = plan.stages[task.stage].blocks[task.block]
        areas, own, results = _strip_parts(rows, block, block.strips[task.strip])
        inside = {
            tensor: rows.nbytes(tensor, part)
            for tensor, part in areas.items()
            if tensor in results and tensor not in own
        }
        least = 0
        for op in (rows.form.ops[index] for index in block.ops):
            if any(tensor in areas for tensor in op.outputs):
                touched = {*op.outputs, *(item.tensor for item in op.inputs)}
                least = max(least, sum(inside.get(tensor, 0) for tensor in touched))
        inner[number] = (least, sum(inside.values()))
    return inner


def _check_inner(buffer: Buffer, inner: dict[int, tuple[int, int]]) -> None:
    tasks = {*buffer.writers, *buffer.readers}
    task = min(tasks)
    if len(tasks) > 1 or task not in inner:
        raise InvalidPlan(f"tasks {sorted(tasks)} must each have one buffer for what they hold inside")
    least, most = inner.pop(task)
    if (buffer.start, buffer.stop, buffer.columns) != (0, 0, None):
        raise InvalidPlan(f"task {task}: what it holds inside has no rows, but its buffer states some")
    if not least <= buffer.nbytes <= most:
        raise InvalidPlan(
            f"task {task} states {buffer.nbytes} bytes that it holds inside; between {least} and {most} are needed"
        )


def _weights(rows: PlanRows, plan: Pipeline) -> dict[int, int]:
    """The bytes of the constants that the operators of each device read, each once. An operator that reads only
    constants is computed before any run, so its results are constants."""
    tensors = rows.graph.tensors
    folded = {
        index
        for index, op in enumerate(rows.graph.ops)
        if all(tensors[tensor].role == "constant" for tensor in op.outputs if tensor >= 0)
    }
    read: dict[int, set[int]] = {}
    for block in (block for stage in plan.stages for block in stage.blocks):
        for strip in block.strips:
            areas, _, _ = _strip_parts(rows, block, strip)
            computed = [
                index
                for index in block.ops
                if index not in folded and any(t in areas for t in rows.form.ops[index].outputs)
            ]
            read.setdefault(strip.device, set()).update(t for op in computed for t in rows.graph.ops[op].inputs)
    return {
        device: sum(tensors[tensor].nbytes for tensor in own if rows.is_weight(tensor)) for device, own in read.items()
    }


def check_named(plan: Pipeline, schedule: PipelineSchedule) -> None:
    """Raise InvalidPlan for a buffer whose device or tasks do not exist, or that has no slots, bytes or place."""
    devices, tasks = range(len(plan.cluster.devices)), range(len(plan.tasks))
    for buffer in schedule.buffers:
        if buffer.device not in devices or buffer.slots < 1 or buffer.nbytes < 1 or buffer.offset < 0:
            raise InvalidPlan(f"a buffer of tensor {buffer.tensor} has no device, slot, bytes or place")
        if not buffer.writers or not buffer.readers or any(t not in tasks for t in (*buffer.writers, *buffer.readers)):
            raise InvalidPlan(f"a buffer of tensor {buffer.tensor} names no tasks, or tasks that do not exist")


def check_places(plan: Pipeline, schedule: PipelineSchedule, late: Sequence[bool]) -> None:
    """Raise InvalidPlan for buffers that share bytes though both are in use at once in some run, and for arenas that
    are not as large as their buffers. `late`: by task, whether it is done later than it occupies its resources."""
    ends = dict.fromkeys(range(len(plan.cluster.devices)), 0)
    for buffer in schedule.buffers:
        ends[buffer.device] = max(ends[buffer.device], _end(buffer))
    for areas in plan.memory:
        _equal(areas, "arena", areas.arena_bytes, ends.get(areas.device, 0))
    if plan.memory and any(
        end and device not in {areas.device for areas in plan.memory} for device, end in ends.items()
    ):
        raise InvalidPlan("a device with buffers is not in the plan's memory")
    for device in ends:
        own = [buffer for buffer in schedule.buffers if buffer.device == device]
        # Buffers of the same tasks give the same answer, so one pair of them is enough.
        pairs: dict[tuple[tuple[int, ...], ...], tuple[Buffer, Buffer]] = {}
        for one, two in _sharing(own):
            pairs.setdefault((one.writers, one.readers, two.writers, two.readers), (one, two))
        if pairs:
            _check_apart(plan, schedule, late, list(pairs.values()))


def _end(buffer: Buffer) -> int:
    return buffer.offset + buffer.nbytes * buffer.slots


def _sharing(buffers: Sequence[Buffer]) -> Iterator[tuple[Buffer, Buffer]]:
    """Pairs of buffers that have bytes in common."""
    ordered = sorted(buffers, key=lambda buffer: buffer.offset)
    for place, one in enumerate(ordered):
        end = _end(one)
        for other in range(place + 1, len(ordered)):
            if ordered[other].offset >= end:
                break
            yield one, ordered[other]


def _check_apart(
    plan: Pipeline, schedule: PipelineSchedule, late: Sequence[bool], pairs: Sequence[tuple[Buffer, Buffer]]
) -> None:
    """Check, for every run and any two frames, that all use of one buffer is over before the other is written."""
    sources = sorted({task for pair in pairs for buffer in pair for task in buffer.users})
    row = {task: place for place, task in enumerate(sources)}
    apart = _frames_apart(plan, schedule, late, sources)

    def ahead(one: Buffer, two: Buffer) -> int:
        """By how many frames a written frame of `two` may be ahead of a frame of `one` that is still in use."""
        return int(apart[np.ix_([row[task] for task in one.users], list(two.writers))].max())

    for one, two in pairs:
        # Frame k + d of `two` waits for frame k of `one` if d is `ahead`; a smaller d must be over before.
        if ahead(one, two) + ahead(two, one) > 1:
            raise InvalidPlan(
                f"device {one.device}: buffers of tensors {one.tensor} and {two.tensor} share bytes, though both may "
                "be in use at once"
            )


def _frames_apart(
    plan: Pipeline, schedule: PipelineSchedule, late: Sequence[bool], sources: Sequence[int]
) -> npt.NDArray[np.int64]:
    """[source, task]: the fewest frames on any path of one or more waits, from the end of the source to the task."""
    tails, heads, frames = (np.array(column, np.int64) for column in zip(*_waits(plan, schedule, late), strict=True))
    order = np.argsort(heads, kind="stable")
    tails, heads, frames = tails[order], heads[order], frames[order]
    firsts = np.flatnonzero(np.r_[True, heads[1:] != heads[:-1]])
    targets = heads[firsts]
    nodes = 2 * len(plan.tasks) + 2 + len(schedule.buffers)
    distances = np.full((len(sources), nodes), _FAR, np.int64)
    nodes_reached = distances.copy()
    nodes_reached[np.arange(len(sources)), [len(plan.tasks) + source for source in sources]] = 0
    for _ in range(2 * nodes):
        reached = np.minimum.reduceat(nodes_reached[:, tails] + frames, firsts, axis=1)
        if not (reached < distances[:, targets]).any():
            break
        distances[:, targets] = np.minimum(distances[:, targets], reached)
        nodes_reached = distances
    return distances[:, : len(plan.tasks)]


def _waits(plan: Pipeline, schedule: PipelineSchedule, late: Sequence[bool]) -> Iterable[tuple[int, int, int]]:
    """(tail, head, frames): the head of a frame waits for the tail of `frames` frames before. Nodes are the starts of
    tasks, then the ends of tasks, then begin and end of a frame, then one for each buffer: the moment when the last
    of its tasks has freed it. The next turn of a resource does not wait until a late task is done."""
    count = len(plan.tasks)
    begin, end = 2 * count, 2 * count + 1
    yield end, begin, schedule.window
    for number, task in enumerate(plan.tasks):
        yield begin, number, 0
        yield number, count + number, 0
        yield count + number, end, 0
        yield from ((count + other, number, 0) for other in task.after)
    for order in schedule.orders:
        for place, turn in enumerate(order.turns):
            later = order.turns[(place + 1) % len(order.turns)]
            again = 1 if place + 1 == len(order.turns) else 0
            free = turn.task if late[turn.task] else count + turn.task
            yield free, later.task, again + turn.behind - later.behind
    for place, buffer in enumerate(schedule.buffers):
        free = end + 1 + place
        yield from ((count + user, free, 0) for user in buffer.users)
        yield from ((free, writer, buffer.slots) for writer in buffer.writers)
