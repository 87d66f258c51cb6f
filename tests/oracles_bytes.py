"""The bytes of a pipeline's devices while frames pass: which row of which frame lies where. Written from the meaning of
a plan's tasks, orders and buffers alone; it shares no code with the planners, the check or the simulator.

Networks are those of `network`: kernels and strides along rows, and kinds that read row for row."""

from itertools import pairwise

import numpy as np

from downset.clusters.model import Cluster, Device, Network
from tests.spatial import Builder


class Overwritten(Exception):
    """A task read, or left behind, other bytes than it should."""


def network(draw):
    """Layers that leave rows unread (strides beyond kernels, windows that end early), sums, and means of all rows."""
    build = Builder(False, 0)
    tips = [build.tensor((draw.randint(1, 3), draw.choice([1, 2, 7, 9, 13, 20, 33, 60]), 1))]
    windows = draw.choice([[(1, 1, 0), (1, 2, 0), (3, 1, 1), (3, 2, 1)], [(1, 1, 0), (1, 3, 0), (2, 4, 0)]])
    for _ in range(draw.randint(1, 8)):
        source = tips[-1] if draw.random() < 0.8 else draw.choice(tips[-3:])
        channels, rows, _ = build.sizes[source]
        same = [other for other in tips if build.sizes[other] == build.sizes[source]]
        kernel, stride, pad = draw.choice(windows)
        made = (rows + 2 * pad - kernel) // stride + 1
        kind = draw.choice(["Conv", "Conv", "Conv", "MaxPool", "Add", "Relu", "GlobalAveragePool"])
        if kind == "GlobalAveragePool" and draw.random() < 0.6:
            kind = "Conv"
        if kind == "Add":
            tips.append(build.op("Add", [source, draw.choice(same)], build.sizes[source]))
        elif kind in ("Relu", "GlobalAveragePool"):
            tips.append(build.op(kind, [source], (channels, rows if kind == "Relu" else 1, 1)))
        elif made >= 1:
            window = {"kernel_shape": [kernel, 1], "strides": [stride, 1], "pads": [pad, 0, pad, 0]}
            out = draw.randint(1, 3) if kind == "Conv" else channels
            weights = [build.weights(out, channels, kernel, 1)] if kind == "Conv" else []
            tips.append(build.op(kind, [source, *weights], (out, made, 1), **window))
    return build.graph((0,)) if build.ops else network(draw)


def cluster(draw):
    """Unequal devices on links or a medium; messages occupy the network for all of their time or a part of it."""
    devices = tuple(
        Device(f"d{k}", draw.choice([1.0, 3.0, 40.0]), bytes_per_s=draw.choice([20.0, 200.0]))
        for k in range(draw.randint(1, 4))
    )
    overlap = draw.random() < 0.7
    part = {"occupied_bytes_per_s": draw.choice([None, 40.0])} if overlap else {}
    kind = draw.choice(["links", "links", "shared"])
    return Cluster(devices, Network(kind, draw.choice([5.0, 40.0]), 0.0, overlap, **part))


def _rows_read(graph, op, low, high, rows):
    kernel, stride, pad = (
        op.attrs.get(key, [default])[0] for key, default in (("kernel_shape", 1), ("strides", 1), ("pads", 0))
    )
    if op.kind == "GlobalAveragePool":
        return 0, rows
    return max(0, low * stride - pad), min(rows, (high - 1) * stride - pad + kernel)


def _strip_rows(graph, block, strip):
    """By tensor: the rows that a strip reads or makes; and the tensors that its block makes for others."""
    made = {t for index in block.ops for t in graph.ops[index].outputs}
    outside = {t for index, op in enumerate(graph.ops) if index not in block.ops for t in op.inputs}
    inside = {t for index in block.ops for t in graph.ops[index].inputs}
    sinks = {t for t in made if t in outside or t in graph.outputs or t not in inside}
    rows = {t: graph.tensors[t].shape[2] for t in range(len(graph.tensors)) if graph.tensors[t].role != "constant"}
    held = {t: (strip.start * rows[t] // block.frame_rows, strip.stop * rows[t] // block.frame_rows) for t in sinks}
    held = {t: span for t, span in held.items() if span[0] < span[1]}
    for index in sorted(block.ops, reverse=True):
        op = graph.ops[index]
        if op.outputs[0] not in held:
            continue
        for tensor in (t for t in op.inputs if t in rows):
            span = _rows_read(graph, op, *held[op.outputs[0]], rows[tensor])
            before = held.get(tensor, span)
            held[tensor] = (min(before[0], span[0]), max(before[1], span[1]))
    return held, made, sinks


def accesses(graph, plan):
    """By task: (device, tensor, first row, row behind the last) of what it reads, and of what it writes."""
    found = []
    for task in plan.tasks:
        if task.transfer is not None:
            moved = [(rows.tensor, rows.start, rows.stop) for rows in task.transfer.rows]
            ends = task.transfer.source, task.transfer.target
            found.append(tuple([(end, *rows) for rows in moved] for end in ends))
            continue
        block = plan.stages[task.stage].blocks[task.block]
        held, made, sinks = _strip_rows(graph, block, block.strips[task.strip])
        read = [(task.device, t, *span) for t, span in held.items() if t not in made]
        found.append((read, [(task.device, t, *span) for t, span in held.items() if t in sinks]))
    return found


def delayed_run(draw, plan, frames):
    """{(frame, task): (begin, end)} of a run in which every task takes a time of its own and begins late by chance: the
    earliest times that the orders, the window and the slots allow. A frame's slot is free when every task that writes
    or reads it is done. Frames before the first and behind the last are empty: they take turns and slots, but no
    time."""
    window = plan.schedule.window
    numbers = range(1 - window, frames + 2 * window)
    length = {(k, i): draw.choice([0.1, 1, 1, 2, 9]) if 0 <= k < frames else 0 for k in numbers for i in _tasks(plan)}
    late = {node: draw.choice([0, 0, 0, 1, 8]) if 0 <= node[0] < frames else 0 for node in length}
    waits = {(k, i): [((k, other), 1.0) for other in plan.tasks[i].after] for k, i in length}
    for order in plan.schedule.orders:
        line = [
            (n - turn.behind, turn.task)
            for n in range(numbers.start, numbers.stop + max(turn.behind for turn in order.turns))
            for turn in order.turns
            if n - turn.behind in numbers
        ]
        for first, second in pairwise(line):
            waits[second].append((first, _part_occupied(draw, plan, first[1])))
    for k in numbers[window:]:
        for i in _tasks(plan):
            waits[k, i] += [((k - window, other), 1.0) for other in _tasks(plan)]
    for buffer in plan.schedule.buffers:
        for k in numbers[buffer.slots :]:
            for writer in buffer.writers:
                waits[k, writer] += [((k - buffer.slots, user), 1.0) for user in {*buffer.writers, *buffer.readers}]
    starts, left = {}, list(waits)
    while left:
        missing = [before for before, _ in waits[left[-1]] if before not in starts]
        if missing:
            left += missing
            continue
        node = left.pop()
        starts[node] = late[node] + max([0, *(starts[one] + part * length[one] for one, part in waits[node])])
    return {node: (start, start + length[node]) for node, start in starts.items() if 0 <= node[0] < frames}


def _tasks(plan):
    return range(len(plan.tasks))


def _part_occupied(draw, plan, task):
    """The part of its time for which a task occupies its resources."""
    transfer = plan.tasks[task].transfer
    if transfer is None:
        return 1.0
    ends = transfer.source, transfer.target
    return draw.random() if plan.cluster.occupied.link(*ends) != plan.cluster.link(*ends) else 1.0


def replay(graph, plan, times):
    """Write and read every byte of the arenas in the order of the times; raise Overwritten where a task finds other
    bytes than those of its rows."""
    frames = 1 + max(frame for frame, _ in times)
    tags = {}
    arenas = {held.device: np.full(held.arena_bytes, -1, np.int64) for held in plan.memory}
    buffers = {(buffer.device, buffer.tensor): buffer for buffer in plan.schedule.buffers if buffer.tensor >= 0}
    inner = {buffer.writers[0]: buffer for buffer in plan.schedule.buffers if buffer.tensor < 0}
    events = []

    def span(buffer, frame, low, high):
        row_bytes = buffer.nbytes // max(buffer.stop - buffer.start, 1)
        at = buffer.offset + frame % buffer.slots * buffer.nbytes
        part = arenas[buffer.device][at + (low - buffer.start) * row_bytes : at + (high - buffer.start) * row_bytes]
        rows = [tags.setdefault((buffer.device, buffer.tensor, frame, row), len(tags)) for row in range(low, high)]
        return part, np.repeat(np.array(rows, np.int64), row_bytes)

    def write(when, area, *, starts=True):
        part, tag = area
        events.append((when, starts, lambda: part.__setitem__(slice(None), tag)))

    def read(when, area, what, *, starts):
        def look():
            if not (area[0] == area[1]).all():
                raise Overwritten(what)

        events.append((when, starts, look))

    listed = accesses(graph, plan)
    for frame in range(frames):
        given, results = [], []
        for index, (reads, writes) in enumerate(listed):
            begin, end = times[frame, index]
            for device, tensor, low, high in writes:
                area = span(buffers[device, tensor], frame, low, high)
                write(begin, area)
                read(end, area, f"frame {frame}, task {index} lost rows of {tensor} that it wrote", starts=False)
                if device == plan.exit and tensor in graph.outputs:
                    results.append((end, tensor))
            for device, tensor, low, high in reads:
                area = span(buffers[device, tensor], frame, low, high)
                for when, starts in ((begin, True), (end, False)):
                    read(when + 0, area, f"frame {frame}, task {index} read rows of {tensor}", starts=2 * starts)
                if device == plan.entry and tensor in graph.inputs:
                    given.append((begin, tensor))
            if index in inner:
                buffer = inner[index]
                part = arenas[buffer.device][buffer.offset : buffer.offset + buffer.nbytes]
                area = part, np.full(buffer.nbytes, tags.setdefault((frame, index), len(tags)), np.int64)
                write(begin, area)
                read(end, area, f"frame {frame}, task {index} lost what it held inside", starts=False)
        for tensor in {tensor for _, tensor in given}:
            write(min(given)[0], span(buffers[plan.entry, tensor], frame, 0, graph.tensors[tensor].shape[2]))
        for tensor in {tensor for _, tensor in results}:
            area = span(buffers[plan.exit, tensor], frame, 0, graph.tensors[tensor].shape[2])
            read(max(results)[0], area, f"frame {frame} lost its result {tensor}", starts=False)
    for _, _, act in sorted(events, key=lambda event: event[:2]):
        act()
