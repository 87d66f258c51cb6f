"""Checks that a plan's tasks have the rows that they read and send, and that strips state the MACs and bytes of their
rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from downset.errors import InvalidPlan
from downset.graph.core import ABSENT, Graph
from downset.graph.cost import row_form
from downset.graph.row_form import Interval, RowForm, needed
from downset.results.pipelines import Block, Pipeline, Rows, Strip, Task

__all__ = ["PlanRows", "TensorArea", "check_rows"]


class TensorArea(NamedTuple):
    """Half-open ranges of rows and columns of a tensor."""

    rows: Interval
    columns: Interval


class _HeldArea(NamedTuple):
    device: int
    part: TensorArea
    task: int


class PlanRows:
    """The rows that the strips of a plan need and make, by the halo arithmetic of its graph."""

    def __init__(self, graph: Graph, plan: Pipeline) -> None:
        axes = {block.axis for stage in plan.stages for block in stage.blocks}
        if len(axes) > 1:
            raise InvalidPlan("some blocks cut rows, others columns")
        self.graph, axis = graph, min(axes, default=0)
        self.form, self.columns = (row_form(graph, axis=one, halos_required=False) for one in (axis, 1 - axis))
        self._sinks: dict[int, list[int]] = {}
        self._parts: dict[tuple[int, ...], tuple[dict[int, TensorArea], dict[int, TensorArea]]] = {}
        tiled = any(strip.columns for stage in plan.stages for block in stage.blocks for strip in block.strips)
        self.across = self.columns if tiled else None

    def width(self, tensor: int) -> int:
        return 1 if self.across is None else max(self.across.rows[tensor], 1)

    def part(self, rows: Rows) -> TensorArea:
        return TensorArea((rows.start, rows.stop), rows.columns or (0, self.width(rows.tensor)))

    def is_weight(self, tensor: int) -> bool:
        return tensor != ABSENT and self.graph.tensors[tensor].role == "constant"

    def nbytes(self, tensor: int, part: TensorArea) -> int:
        whole = self.form.bytes_per_row[tensor] * (part.rows[1] - part.rows[0])
        return whole * (part.columns[1] - part.columns[0]) // self.width(tensor)

    def sinks(self, block: Block) -> list[int]:
        """The tensors that a block makes for others, for the user, or that nothing reads."""
        if id(block) in self._sinks:
            return self._sinks[id(block)]
        inside = set(block.ops)
        results = {tensor for op in inside for tensor in self.form.ops[op].outputs}
        outside = [described for op, described in enumerate(self.form.ops) if op not in inside]
        read_outside = {item.tensor for described in outside for item in described.inputs}
        read_inside = {item.tensor for op in inside for item in self.form.ops[op].inputs}
        outputs = sorted(results & (read_outside | set(self.form.outputs)) | results - read_inside)
        self._sinks[id(block)] = outputs
        return outputs

    def parts(self, block: Block, strip: Strip) -> tuple[dict[int, TensorArea], dict[int, TensorArea]]:
        """Two maps from tensors to areas: all that the strip reads and makes, and the strip's own part of the block's
        sinks."""
        key = (id(block), strip.start, strip.stop, *(strip.columns or ()))
        if key not in self._parts:
            self._parts[key] = self._cut(block, strip, self.sinks(block))
        return self._parts[key]

    def _cut(
        self, block: Block, strip: Strip, sinks: Sequence[int]
    ) -> tuple[dict[int, TensorArea], dict[int, TensorArea]]:
        rows = _cut(self.form, block.ops, sinks, (strip.start, strip.stop), block.frame_rows)
        if strip.columns is None or self.across is None:
            wide = {tensor: (0, self.width(tensor)) for tensor in rows[0]}
            return _joined(rows[0], wide), _joined(rows[1], wide)
        frame = max(other.columns[1] for other in block.strips if other.columns is not None)
        columns = _cut(self.across, block.ops, sinks, strip.columns, frame)
        return _joined(rows[0], columns[0]), _joined(rows[1], columns[1])

    def reads(self, index: int, part_made: TensorArea) -> Iterator[tuple[int, TensorArea]]:
        """The areas of tensors that an operator reads to make an area of its outputs."""
        for place, item in enumerate(self.form.ops[index].inputs):
            across = None if self.across is None else self.across.ops[index].inputs[place].map
            rows, width = max(self.form.rows[item.tensor], 1), self.width(item.tensor)
            yield (
                item.tensor,
                TensorArea(
                    (0, rows) if item.map is None else item.map(part_made.rows, rows),
                    (0, width) if across is None else across(part_made.columns, width),
                ),
            )


def _cut(
    form: RowForm, ops: Iterable[int], sinks: Sequence[int], span: Interval, frame: int
) -> tuple[dict[int, Interval], dict[int, Interval]]:
    own = {}
    for tensor in sinks:
        extent = max(form.rows[tensor], 1)
        own[tensor] = (span[0] * extent // frame, span[1] * extent // frame)
    return dict(needed(form, tuple(ops), own)), own


def _joined(rows: dict[int, Interval], columns: dict[int, Interval]) -> dict[int, TensorArea]:
    return {
        tensor: TensorArea(span, columns[tensor])
        for tensor, span in rows.items()
        if tensor in columns and span[0] < span[1] and columns[tensor][0] < columns[tensor][1]
    }


def check_rows(rows: PlanRows, plan: Pipeline) -> None:
    """Raise InvalidPlan for a strip whose MACs or bytes are not those of its rows, for a task that reads or sends rows
    that its device does not hold from earlier tasks, and for a result that is not at the exit."""
    shares: dict[int, list[_HeldArea]] = {}
    for tensor in rows.graph.inputs:
        whole = TensorArea((0, max(rows.form.rows[tensor], 1)), (0, rows.width(tensor)))
        shares.setdefault(tensor, []).append(_HeldArea(plan.entry, whole, -1))
    _check_frame(rows, plan)
    for number, task in enumerate(plan.tasks):
        if task.transfer is not None:
            _check_transfer(rows, plan, shares, number, task)
            continue
        block = plan.stages[task.stage].blocks[task.block]
        strip = block.strips[task.strip]
        areas, own = rows.parts(block, strip)
        results = {tensor for op in block.ops for tensor in rows.form.ops[op].outputs}
        _check_strip(rows, plan, task, areas, own)
        for tensor, part in areas.items():
            if tensor not in results:
                _check_held(rows, plan, shares, number, tensor, part)
        for tensor in own:
            shares.setdefault(tensor, []).append(_HeldArea(task.device, areas[tensor], number))
    computed = {tensor for op in rows.form.ops for tensor in op.outputs}
    for tensor in rows.graph.outputs:
        if tensor in computed and rows.form.bytes_per_row[tensor]:
            whole = TensorArea((0, max(rows.form.rows[tensor], 1)), (0, rows.width(tensor)))
            if not _covered(whole, [share.part for share in shares.get(tensor, []) if share.device == plan.exit]):
                raise InvalidPlan(f"the result {_name(rows, tensor)} is not all at device {plan.exit}, the exit")


def _check_frame(rows: PlanRows, plan: Pipeline) -> None:
    """Raise InvalidPlan if the stated bytes of a frame or a result are not the graph's. A plan may leave them out if
    moving them costs no device time."""
    read = {item.tensor for op in rows.form.ops for item in op.inputs}
    results = {tensor for op in rows.form.ops for tensor in op.outputs}
    charged = any(device.messages is not None for device in plan.cluster.devices)
    for what, stated, tensors in (
        ("frame", plan.frame_bytes, read.intersection(rows.graph.inputs)),
        ("result", plan.result_bytes, results.intersection(rows.graph.outputs)),
    ):
        nbytes = sum(
            rows.form.bytes_per_row[tensor] * max(rows.form.rows[tensor], 1)
            for tensor in tensors
            if rows.graph.tensors[tensor].role != "constant"
        )
        if stated != nbytes and (stated or charged):
            raise InvalidPlan(f"the plan states {stated} bytes of a {what}, but the model's has {nbytes}")


def _check_transfer(
    rows: PlanRows, plan: Pipeline, shares: dict[int, list[_HeldArea]], number: int, task: Task
) -> None:
    transfer = task.transfer
    assert transfer is not None
    nbytes = 0
    for item in transfer.rows:
        if not 0 <= item.tensor < len(rows.form.rows):
            raise InvalidPlan(f"task {number} sends tensor {item.tensor}; the model has {len(rows.form.rows)}")
        part = rows.part(item)
        extent, width = max(rows.form.rows[item.tensor], 1), rows.width(item.tensor)
        if not 0 <= part.rows[0] < part.rows[1] <= extent or not 0 <= part.columns[0] < part.columns[1] <= width:
            raise InvalidPlan(f"task {number} sends rows that {_name(rows, item.tensor)} does not have")
        nbytes += rows.nbytes(item.tensor, part)
        _check_held(rows, plan, shares, number, item.tensor, part)
    if nbytes != transfer.nbytes:
        raise InvalidPlan(f"task {number} states {transfer.nbytes} bytes, but its rows are {nbytes}")
    for item in transfer.rows:
        shares.setdefault(item.tensor, []).append(_HeldArea(transfer.target, rows.part(item), number))


def _check_held(
    rows: PlanRows,
    plan: Pipeline,
    shares: dict[int, list[_HeldArea]],
    number: int,
    tensor: int,
    part: TensorArea,
) -> None:
    """Check that the device of a task has the area from tasks before it. Under `paper` a leader has all that the stage
    before made."""
    if not rows.form.bytes_per_row[tensor]:
        return
    task = plan.tasks[number]
    tasks = {-1, *task.after}
    stage = plan.stages[task.stage]
    free = plan.comm == "paper" and task.device == stage.leader
    parts = [
        share.part
        for share in shares.get(tensor, [])
        if (share.device == task.device and share.task in tasks)
        or (free and (share.task < 0 or plan.tasks[share.task].stage < task.stage))
    ]
    if not _covered(part, parts):
        name = plan.cluster.devices[task.device].name
        raise InvalidPlan(
            f"task {number} needs rows {part.rows[0]}-{part.rows[1]} of {_name(rows, tensor)}, which device {name!r} "
            "does not have from the tasks before it"
        )


def _covered(wanted: TensorArea, parts: Sequence[TensorArea]) -> bool:
    """Whether the parts together contain the whole area."""
    edges = {wanted.rows[0], wanted.rows[1], *(edge for part in parts for edge in part.rows)}
    inside = sorted(edge for edge in edges if wanted.rows[0] <= edge <= wanted.rows[1])
    for low, high in pairwise(inside):
        row = wanted.columns[0]
        for begin, end in sorted(part.columns for part in parts if part.rows[0] <= low and high <= part.rows[1]):
            if begin <= row:
                row = max(row, end)
        if row < wanted.columns[1]:
            return False
    return True


def _check_strip(
    rows: PlanRows, plan: Pipeline, task: Task, areas: dict[int, TensorArea], own: dict[int, TensorArea]
) -> None:
    """Check the MACs and bytes of a strip against the rows that it needs."""
    block = plan.stages[task.stage].blocks[task.block]
    strip, where = block.strips[task.strip], f"block {task.block} of stage {task.stage}"
    weighs = plan.cluster.devices[strip.device].weight_bytes_per_s is not None
    results = {tensor for op in block.ops for tensor in rows.form.ops[op].outputs}
    macs, moved, weights = 0, 0, set[int]()
    macs_of = dict.fromkeys(strip.macs_of, 0)
    for index in block.ops:
        op = rows.form.ops[index]
        part = next((areas[tensor] for tensor in op.outputs if tensor in areas), None)
        if part is None:
            continue
        count = op.macs_per_row * (part.rows[1] - part.rows[0])
        count = round(count * (part.columns[1] - part.columns[0]) / rows.width(op.outputs[0]))
        macs += count
        if rows.graph.ops[index].kind in macs_of:
            macs_of[rows.graph.ops[index].kind] += count
        if op.macs_per_row:
            weights |= {tensor for tensor in rows.graph.ops[index].inputs if rows.is_weight(tensor)}
        else:
            moved += sum(rows.nbytes(tensor, areas[tensor]) for tensor in op.outputs if tensor in areas)
            moved += sum(rows.nbytes(tensor, read) for tensor, read in rows.reads(index, part))
    in_bytes = sum(rows.nbytes(tensor, part) for tensor, part in areas.items() if tensor not in results)
    out_bytes = sum(rows.nbytes(tensor, part) for tensor, part in own.items())
    quantities = {"MACs": macs, "moved bytes": moved, "bytes in": in_bytes, "bytes out": out_bytes}
    stated = (strip.macs, strip.moved_bytes, strip.in_bytes, strip.out_bytes)
    for (what, value), figure in zip(quantities.items(), stated, strict=True):
        if value != figure:
            raise InvalidPlan(f"{where}: rows {strip.start}-{strip.stop} need {value} {what}, not {figure}")
    read_bytes = sum(rows.graph.tensors[tensor].nbytes for tensor in weights) if weighs else 0
    if strip.weight_bytes != read_bytes:
        raise InvalidPlan(
            f"{where}: rows {strip.start}-{strip.stop} read {read_bytes} bytes of weights, not {strip.weight_bytes}"
        )
    if macs_of != dict(strip.macs_of):
        raise InvalidPlan(f"{where}: rows {strip.start}-{strip.stop} have other MACs by kind than stated")


def _name(rows: PlanRows, tensor: int) -> str:
    return repr(rows.graph.tensors[tensor].name)
