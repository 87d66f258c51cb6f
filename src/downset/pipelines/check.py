"""The laws of pipeline plans. Imports no planner: prices come from the halo arithmetic of `regions`, strip by strip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from downset.errors import InvalidPlan, UnsupportedError
from downset.graph.core import Graph
from downset.graph.cost import row_form, segment_macs
from downset.graph.row_form import Interval, RowForm
from downset.plans import TimedBlock, TimedPipeline, TimedStage, TimedTransfer

if TYPE_CHECKING:
    from downset.pipelines.problem import SplitProblem

__all__ = ["verify_pipeline", "verify_stages_cover", "verify_without_graph"]


def verify_pipeline(graph: Graph, plan: TimedPipeline) -> None:
    """Raise InvalidPlan naming the first broken law, or return None.

    Laws: every operator is in one stage, after those it needs; no device is in two stages; the strips of every block
    cover its frame; MACs are what the rows of a strip need, redundant those above what somebody reads; times follow
    from MACs, bytes and the cluster; the period is the slowest stage or the medium; bound <= period, equal if
    proven."""
    predecessors = graph.predecessors()
    done = 0
    for place, stage in enumerate(plan.stages):
        for op in stage.ops:
            missing = predecessors[op] & ~done & ~sum(1 << other for other in stage.ops)
            if missing or done >> op & 1:
                raise InvalidPlan(f"stage {place}: operator {graph.ops[op].name!r} comes twice or before one it needs")
        done |= sum(1 << op for op in stage.ops)
    if done != (1 << len(graph.ops)) - 1:
        missing_op = next(op for op in range(len(graph.ops)) if not done >> op & 1)
        raise InvalidPlan(f"operator {graph.ops[missing_op].name!r} is in no stage")
    _check_devices(plan)
    form = row_form(graph, strict=False)
    least = _least_macs(graph, form)
    for place, stage in enumerate(plan.stages):
        _check_macs(form, least, stage, place)
    _check_timing(plan)


def verify_without_graph(plan: TimedPipeline) -> None:
    """The laws of a plan by itself: devices that exist, apart, strips that cover, times that follow from its MACs,
    bytes and cluster. Raises InvalidPlan naming the first one broken."""
    _check_devices(plan)
    _check_timing(plan)


def _check_devices(plan: TimedPipeline) -> None:
    known = range(len(plan.cluster.devices))
    for place, stage in enumerate(plan.stages):
        moves = _transfers(stage)
        for device in sorted({*_working(stage), *stage.devices}):
            if device not in known:
                raise InvalidPlan(f"stage {place} names device {device}; the cluster has {len(known)}")
        if min([stage.handover_bytes, *(transfer.nbytes for transfer in moves)]) < 0:
            raise InvalidPlan(f"stage {place}: a transfer of less than 0 bytes")
        if min((strip.macs for block in stage.blocks for strip in block.strips), default=0) < 0:
            raise InvalidPlan(f"stage {place}: a strip with less than 0 MACs")
    _disjoint(plan.stages)
    for place, stage in enumerate(plan.stages):
        for device in sorted(_working(stage) - {*stage.devices}):
            raise InvalidPlan(f"stage {place}: device {device} works in it and is none of its devices")
        for block in stage.blocks:
            _check_cover(block, place)


def _transfers(stage: TimedStage) -> list[TimedTransfer]:
    return [transfer for block in stage.blocks for transfer in (*block.before, *block.after)]


def _working(stage: TimedStage) -> set[int]:
    ends = {device for transfer in _transfers(stage) for device in (transfer.source, transfer.target)}
    return {stage.leader, *ends, *(strip.device for block in stage.blocks for strip in block.strips)}


def _check_timing(plan: TimedPipeline) -> None:
    _check_handovers(plan)
    for place, stage in enumerate(plan.stages):
        _check_times(plan, stage, place)
    _check_period(plan)


def verify_stages_cover(problem: SplitProblem, stages: Sequence[TimedStage]) -> None:
    """The laws that need no graph: units in order, devices apart, strips that cover."""
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


def _disjoint(stages: Sequence[TimedStage]) -> None:
    owner: dict[int, int] = {}
    for place, stage in enumerate(stages):
        for device in stage.devices:
            if owner.setdefault(device, place) != place:
                raise InvalidPlan(f"device {device} is in stages {owner[device]} and {place}")


def _check_cover(block: TimedBlock, place: int) -> None:
    """Row strips must follow each other; tiles must fill the frame's area and not overlap."""
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


def _least_macs(graph: Graph, form: RowForm) -> list[int]:
    """By operator: MACs of the rows and columns that somebody reads, in the whole network."""
    rows = _rows_read(form)
    try:
        across = row_form(graph, axis=1, strict=False)
    except UnsupportedError:
        return [op.macs_per_row * count for op, count in zip(form.ops, rows, strict=True)]
    columns = _rows_read(across)
    return [
        op.macs_per_row * rows[index] * columns[index] // max(across.ops[index].rows, 1)
        for index, op in enumerate(form.ops)
    ]


def _rows_read(form: RowForm) -> list[int]:
    """By operator: how many of its rows are read by somebody, or by nobody because its results are the last."""
    inputs = {item.tensor for op in form.ops for item in op.inputs}
    read: dict[int, set[int]] = {tensor: set(range(max(form.rows[tensor], 1))) for tensor in form.outputs}
    found = [0] * len(form.ops)
    for index in range(len(form.ops) - 1, -1, -1):
        op = form.ops[index]
        rows = set().union(*(read.get(tensor, set()) for tensor in op.outputs))
        if not inputs.intersection(op.outputs) or (op.whole and rows):
            rows = set(range(max(op.rows, 1)))
        found[index] = len(rows)
        for item in op.inputs:
            extent = max(form.rows[item.tensor], 1)
            into = read.setdefault(item.tensor, set())
            if item.map is None or op.whole:
                into.update(range(extent) if rows else ())
                continue
            for row in rows:
                into.update(range(*item.map((row, row + 1), extent)))
    return found


def _check_macs(form: RowForm, least: Sequence[int], stage: TimedStage, place: int) -> None:
    """MACs of every strip, from the rows it needs; redundant are all that are more than `least`."""
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
    for block in stage.blocks:
        _check_strips(form, block, place)


def _check_strips(form: RowForm, block: TimedBlock, place: int) -> None:
    """MACs of every row strip of a block, from the rows it needs."""
    inside = set(block.ops)
    made = {tensor for op in inside for tensor in form.ops[op].outputs}
    outside = [described for op, described in enumerate(form.ops) if op not in inside]
    read_outside = {item.tensor for described in outside for item in described.inputs}
    read_inside = {item.tensor for op in inside for item in form.ops[op].inputs}
    sinks = [t for t in made if t in read_outside or t in form.outputs or t not in read_inside]
    for strip in block.strips:
        wanted: dict[int, Interval] = {}
        for tensor in sinks:
            rows = max(form.rows[tensor], 1)
            wanted[tensor] = (strip.start * rows // block.frame_rows, strip.stop * rows // block.frame_rows)
        macs = segment_macs(form, block.ops, wanted)
        if strip.columns is None and macs != strip.macs:
            raise InvalidPlan(f"stage {place}: rows {strip.start}-{strip.stop} need {macs} MACs, not {strip.macs}")


def _check_times(plan: TimedPipeline, stage: TimedStage, place: int) -> None:
    devices, network = plan.cluster.devices, plan.cluster.network
    compute_s = transfer_s = 0.0
    for number, block in enumerate(stage.blocks):
        busy: dict[int, float] = {}
        for strip in block.strips:
            device = devices[strip.device]
            busy[strip.device] = busy.get(strip.device, 0.0) + device.alpha * strip.macs / device.mac_per_s
        where = f"block {number} of stage {place}"
        _equal(where, "compute_s", block.compute_s, max(busy.values(), default=0.0))
        sent_s = _round_s(plan, block.before) + _round_s(plan, block.after)
        _equal(where, "transfer_s", block.transfer_s, sent_s)
        compute_s, transfer_s = compute_s + max(busy.values(), default=0.0), transfer_s + sent_s
    if stage.handover_bytes:
        sender = plan.stages[place - 1].leader
        transfer_s += _round_s(plan, (TimedTransfer(sender, stage.leader, stage.handover_bytes),))
    where = f"stage {place}"
    _equal(where, "compute_s", stage.compute_s, compute_s)
    _equal(where, "transfer_s", stage.transfer_s, transfer_s)
    _equal(where, "seconds", stage.seconds, max(compute_s, transfer_s) if network.overlap else compute_s + transfer_s)
    moved = sum(transfer.nbytes for transfer in _transfers(stage)) + stage.handover_bytes
    if moved != stage.nbytes:
        raise InvalidPlan(f"stage {place} states {stage.nbytes} bytes, but {moved} are sent")


def _check_handovers(plan: TimedPipeline) -> None:
    """Between leaders the stage's input is charged, all of it, or with comm `paper` nothing."""
    if plan.comm not in ("full", "paper"):
        raise InvalidPlan(f"comm is {plan.comm!r}, not full or paper")
    for place, stage in enumerate(plan.stages):
        given = stage.handover_bytes
        if given and (plan.comm == "paper" or not place):
            why = "comm is paper, which charges none" if place else "there is no stage before it"
            raise InvalidPlan(f"stage {place} states handover_bytes {given}, but {why}")
        read = max((strip.in_bytes for block in stage.blocks[:1] for strip in block.strips), default=0)
        if place and read and not given and plan.comm == "full":
            raise InvalidPlan(f"stage {place} states handover_bytes 0, but it reads {read}, and comm is full")


def _round_s(plan: TimedPipeline, transfers: Sequence[TimedTransfer]) -> float:
    """A round of transfers: on a shared network one after another, on links as long as the busiest device's."""
    seconds = [t.nbytes / plan.cluster.link(t.source, t.target)[0] for t in transfers]
    seconds = [s + plan.cluster.link(t.source, t.target)[1] for s, t in zip(seconds, transfers, strict=True)]
    if plan.cluster.network.kind == "shared":
        return sum(seconds)
    ends = {device for t in transfers for device in (t.source, t.target)}
    return max(
        (sum(s for s, t in zip(seconds, transfers, strict=True) if device in (t.source, t.target)) for device in ends),
        default=0.0,
    )


def _equal(where: str, field: str, stated: float, found: float) -> None:
    if not _close(stated, found):
        raise InvalidPlan(f"{where} states {field} {stated:.9g}, but its work takes {found:.9g} s")


def _check_period(plan: TimedPipeline) -> None:
    shared = plan.cluster.network.kind == "shared"
    medium = sum(stage.transfer_s for stage in plan.stages) if shared else 0.0
    _equal("the plan", "medium_s", plan.medium_s, medium)
    _equal("the plan", "period_s", plan.period_s, max([medium, *(stage.seconds for stage in plan.stages)]))
    latency = sum(stage.compute_s + stage.transfer_s for stage in plan.stages)
    _equal("the plan", "latency_s", plan.latency_s, latency)
    evidence = plan.evidence
    if evidence.value != plan.period_s or evidence.bound > evidence.value:
        raise InvalidPlan(f"the bound {evidence.bound} is above the period {plan.period_s}, or the value is another")
    if evidence.proven and evidence.bound != evidence.value:
        raise InvalidPlan(f"called proven with value {evidence.value} and bound {evidence.bound}")


def _close(first: float, second: float) -> bool:
    return abs(first - second) <= 1e-9 * max(abs(first), abs(second))
