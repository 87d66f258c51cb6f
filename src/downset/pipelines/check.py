"""Checks the laws of pipeline plans. Imports no planner: MACs, bytes and rows are computed strip by strip with
`graph.row_form`, and times from the plan's work and cluster (check_times.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from downset.clusters.model import MOST_DEVICES
from downset.errors import InvalidPlan
from downset.graph.core import Graph
from downset.graph.row_form import Interval, RowForm
from downset.pipelines.check_buffers import check_buffers
from downset.pipelines.check_rows import PlanRows, check_rows
from downset.pipelines.check_times import check_times
from downset.results.pipelines import Block, Pipeline, PipelineStage, Strip

if TYPE_CHECKING:
    from downset.pipelines.prices import PricedChain

__all__ = ["verify_pipeline", "verify_stages_cover", "verify_without_graph"]


def verify_pipeline(graph: Graph, plan: Pipeline) -> None:
    """Raise InvalidPlan naming the first broken law, or return None.

    Laws: every operator is in one stage, after those it needs; no device is in two stages; the strips of every block
    cover its frame; MACs and bytes are what the rows of a strip need, and redundant MACs are those beyond the rows that
    are read; every strip is one task; a task reads and sends only rows that its device holds from earlier tasks; every
    resource does each of its tasks once in a round, in orders that do not deadlock; times follow from MACs, bytes and
    the cluster; the period is the one at which the orders settle, the latency that of a frame alone; buffers hold the
    rows that tasks read and write and share no bytes while both may be in use; memory is the sum of buffers, weights
    and the device's runtime, and at most what the device has; bound <= period, and they are equal if proven."""
    predecessors = graph.predecessors()
    done: set[int] = set()
    for place, stage in enumerate(plan.stages):
        inside = done.union(stage.ops)
        for op in stage.ops:
            if not 0 <= op < len(graph.ops):
                raise InvalidPlan(f"stage {place} names operator {op}; the model has {len(graph.ops)}")
            if op in done or not inside.issuperset(predecessors[op]):
                raise InvalidPlan(f"stage {place}: operator {graph.ops[op].name!r} comes twice or before one it needs")
        done.update(stage.ops)
    if len(done) < len(graph.ops):
        missing_op = next(op for op in range(len(graph.ops)) if op not in done)
        raise InvalidPlan(f"operator {graph.ops[missing_op].name!r} is in no stage")
    _check_shape(plan)
    rows = PlanRows(graph, plan)
    least = _least_macs(rows.form, rows.columns)
    for place, stage in enumerate(plan.stages):
        _check_macs(least, stage, place)
    check_rows(rows, plan)
    check_times(plan)
    check_buffers(rows, plan)


def verify_without_graph(plan: Pipeline) -> None:
    """Raise InvalidPlan naming the first broken law of those that need no graph: devices exist and are in one stage
    each, strips cover their frames, every strip has a task, orders do not deadlock, and times follow from the plan's
    MACs, bytes and cluster."""
    _check_shape(plan)
    check_times(plan)


def _check_cluster(plan: Pipeline) -> None:
    """Device names are distinct, links are between two devices, and source and sink are devices or outside."""
    names, indices = [device.name for device in plan.cluster.devices], range(len(plan.cluster.devices))
    if not 1 <= len(names) <= MOST_DEVICES:
        raise InvalidPlan(f"the cluster has {len(names)} devices; plans are for 1 to {MOST_DEVICES}")
    if "" in names or len(set(names)) < len(names):
        raise InvalidPlan("the cluster has a device without a name, or two of one name")
    pairs = [link.pair for link in plan.cluster.network.links]
    if len(set(pairs)) < len(pairs) or any(
        one not in indices or two not in indices or one >= two for one, two in pairs
    ):
        raise InvalidPlan("a link of the cluster is not between two of its devices, or stands there twice")
    for what, name in (("source", plan.source), ("sink", plan.sink)):
        if name != "outside" and name not in names:
            raise InvalidPlan(f"the {what} is {name!r}; the devices are {', '.join(names)}")


def _check_shape(plan: Pipeline) -> None:
    _check_cluster(plan)
    devices = range(len(plan.cluster.devices))
    for place, stage in enumerate(plan.stages):
        for device in sorted({*_working(stage), *stage.devices}):
            if device not in devices:
                raise InvalidPlan(f"stage {place} names device {device}; the cluster has {len(devices)}")
    for what, device in (("entry", plan.entry), ("exit", plan.exit)):
        if device not in devices:
            raise InvalidPlan(f"{what} is device {device}; the cluster has {len(devices)}")
    if min(plan.frame_bytes, plan.result_bytes) < 0:
        raise InvalidPlan("a frame or a result of less than 0 bytes")
    _disjoint(plan.stages)
    _check_rules(plan)
    cut = 0
    for place, stage in enumerate(plan.stages):
        for block in stage.blocks:
            if block.start != cut or not cut < block.stop <= cut + len(block.ops):  # a unit has at least one operator
                raise InvalidPlan(f"stage {place} has a block from cut {block.start} to {block.stop}, after cut {cut}")
            cut = block.stop
    for place, stage in enumerate(plan.stages):
        for device in sorted(_working(stage) - {*stage.devices}):
            raise InvalidPlan(f"stage {place}: device {device} has work there and is not listed")
        for block in stage.blocks:
            _check_cover(block, place)
            if block.axis not in (0, 1):
                raise InvalidPlan(f"stage {place}: a block is cut along axis {block.axis}, which is neither 0 nor 1")
            if any(min(_counts(strip)) < 0 for strip in block.strips):
                raise InvalidPlan(f"stage {place}: a strip with less than 0 MACs or bytes")
            if any(sum(strip.macs_of.values()) > strip.macs for strip in block.strips):
                raise InvalidPlan(f"stage {place}: a strip with more MACs by kind than in all")
    _check_strips_are_tasks(plan)


def _check_rules(plan: Pipeline) -> None:
    """Blocks hand rows over directly if and only if their stage has no leader, which only topology direct allows."""
    for place, stage in enumerate(plan.stages):
        if stage.leader == -1 and plan.topology != "direct":
            raise InvalidPlan(f"stage {place} has no leader; topology {plan.topology} needs one")
        for block in stage.blocks:
            if (block.rule == "direct") != (stage.leader == -1):
                raise InvalidPlan(f"stage {place}: rule {block.rule} of a block with leader {stage.leader}")


def _counts(strip: Strip) -> tuple[int, ...]:
    kinds = strip.macs_of.values()
    sizes = (strip.moved_bytes, strip.in_bytes, strip.out_bytes, strip.weight_bytes)
    return (strip.macs, strip.redundant_macs, *sizes, *kinds)


def _working(stage: PipelineStage) -> set[int]:
    leader = {stage.leader} if stage.leader != -1 else set()
    return leader | {strip.device for block in stage.blocks for strip in block.strips}


def _check_strips_are_tasks(plan: Pipeline) -> None:
    """Every strip is one task of its device; every other task is a message between two devices."""
    devices = range(len(plan.cluster.devices))
    seen: set[tuple[int, int, int]] = set()
    for number, task in enumerate(plan.tasks):
        if any(other not in range(number) for other in task.after):
            raise InvalidPlan(f"task {number} comes after tasks {task.after}, which are not all before it")
        if not 0 <= task.stage < len(plan.stages) or not 0 <= task.block < len(plan.stages[task.stage].blocks):
            raise InvalidPlan(f"task {number} names block {task.block} of stage {task.stage}, which does not exist")
        if (task.strip < 0) == (task.transfer is None):
            raise InvalidPlan(f"task {number} must be either a strip or a transfer")
        if task.transfer is not None:
            ends = (task.transfer.source, task.transfer.target)
            if task.device != ends[0] or ends[0] == ends[1] or any(end not in devices for end in ends):
                raise InvalidPlan(f"task {number} of device {task.device} sends from device {ends[0]} to {ends[1]}")
            if task.transfer.nbytes < 0:
                raise InvalidPlan(f"task {number} sends less than 0 bytes")
            continue
        strips = plan.stages[task.stage].blocks[task.block].strips
        key = (task.stage, task.block, task.strip)
        if key in seen or task.strip >= len(strips) or strips[task.strip].device != task.device:
            raise InvalidPlan(f"task {number}: strip {task.strip} comes twice, does not exist or is another device's")
        seen.add(key)
    wanted = sum(len(block.strips) for stage in plan.stages for block in stage.blocks)
    if len(seen) != wanted:
        raise InvalidPlan(f"{wanted - len(seen)} strips have no task")


def verify_stages_cover(problem: PricedChain, stages: Sequence[PipelineStage]) -> None:
    """Check the laws that need no graph: units are in order, each device is in one stage, strips cover their frames."""
    cut = 0
    for place, stage in enumerate(stages):
        for block in stage.blocks:
            if block.start != cut or block.stop <= cut:
                raise InvalidPlan(f"stage {place} begins a block at cut {block.start}, after cut {cut}")
            cut = block.stop
            if block.frame_rows != problem.segment(block.start, block.stop).rows:
                raise InvalidPlan(f"stage {place}: the frame at cut {cut} does not have {block.frame_rows} rows")
            _check_cover(block, place)
    if cut != problem.cuts:
        raise InvalidPlan(f"the stages end at cut {cut} of {problem.cuts}")
    _disjoint(stages)


def _disjoint(stages: Sequence[PipelineStage]) -> None:
    owner: dict[int, int] = {}
    for place, stage in enumerate(stages):
        for device in stage.devices:
            if owner.setdefault(device, place) != place:
                raise InvalidPlan(f"device {device} is in stages {owner[device]} and {place}")


def _check_cover(block: Block, place: int) -> None:
    """Row strips follow each other; tiles fill the area of the frame and do not overlap."""
    if all(strip.columns is None for strip in block.strips):
        rows = sorted((strip.start, strip.stop) for strip in block.strips)
        ends = [0, *(stop for _, stop in rows)]
        if [start for start, _ in rows] != ends[:-1] or ends[-1] != block.frame_rows:
            raise InvalidPlan(f"stage {place}: the strips {rows} do not cover {block.frame_rows} rows once")
        return
    area = 0
    for index, one in enumerate(block.strips):
        if one.columns is None:
            raise InvalidPlan(f"stage {place}: strips and tiles in one block")
        area += (one.stop - one.start) * (one.columns[1] - one.columns[0])
        for two in block.strips[:index]:
            assert two.columns is not None
            if max(one.start, two.start) < min(one.stop, two.stop) and max(one.columns[0], two.columns[0]) < min(
                one.columns[1], two.columns[1]
            ):
                raise InvalidPlan(f"stage {place}: two tiles overlap")
    columns = max(strip.columns[1] for strip in block.strips if strip.columns is not None)
    if area != block.frame_rows * columns:
        raise InvalidPlan(f"stage {place}: the tiles do not fill the frame")


def _least_macs(form: RowForm, across: RowForm) -> list[int]:
    """The MACs of each operator for the rows and columns that are read in the whole network."""
    rows, columns = _rows_read(form), _rows_read(across)
    return [
        op.macs_per_row * rows[index] * columns[index] // max(across.ops[index].rows, 1)
        for index, op in enumerate(form.ops)
    ]


def _rows_read(form: RowForm) -> list[int]:
    """The number of rows of each operator that are read; all rows of an operator whose results nothing reads."""
    inputs = {item.tensor for op in form.ops for item in op.inputs}
    read = {tensor: [(0, max(form.rows[tensor], 1))] for tensor in form.outputs}
    rows_read = [0] * len(form.ops)
    for index in range(len(form.ops) - 1, -1, -1):
        op = form.ops[index]
        spans = _united([span for tensor in op.outputs for span in read.get(tensor, ())])
        if not inputs.intersection(op.outputs) or (op.whole and spans):
            spans = [(0, max(op.rows, 1))]
        rows_read[index] = sum(stop - start for start, stop in spans)
        for item in op.inputs:
            extent = max(form.rows[item.tensor], 1)
            into = read.setdefault(item.tensor, [])
            if item.map is None or op.whole:
                into += [(0, extent)] if spans else []
            elif item.map.has_no_gaps:
                into += [item.map(span, extent) for span in spans]
            else:
                into += [item.map((row, row + 1), extent) for span in spans for row in range(*span)]
    return rows_read


_Spans = list[Interval]


def _united(spans: _Spans) -> _Spans:
    """The same rows as sorted, disjoint spans."""
    merged: _Spans = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def _check_macs(least: Sequence[int], stage: PipelineStage, place: int) -> None:
    """Redundant MACs are all MACs beyond `least`."""
    strips = [strip for block in stage.blocks for strip in block.strips]
    surplus = stage.macs - sum(least[op] for op in stage.ops)
    if sum(strip.macs for strip in strips) != stage.macs or stage.redundant_macs != surplus:
        raise InvalidPlan(
            f"stage {place} states {stage.macs} MACs, {stage.redundant_macs} redundant: not what it needs"
        )
    if sum(strip.redundant_macs for strip in strips) != stage.redundant_macs:
        raise InvalidPlan(f"stage {place}: its strips' redundant MACs are not its {stage.redundant_macs}")
    if sorted(op for block in stage.blocks for op in block.ops) != sorted(stage.ops):
        raise InvalidPlan(f"stage {place}: its blocks do not hold its operators once")
