"""Times of a pipeline: eq. 7-12 of the PICO paper, and what it leaves out.

Names: t_comp → compute_s (eq. 7, 8), t_comm → transfer_s (eq. 9, 10), T(S) → stage seconds (eq. 11), P and T → period_s
and latency_s (eq. 12), d_f → leader.

A round of transfers takes as long as its busiest device needs for its own, one after another. Where a leader scatters
and gathers that is the sum of eq. 10; where neighbours exchange halos, pairs apart work at the same time. On a shared
network all bytes of a round follow each other.

comm="full" charges what eq. 10 leaves out, the transfer of a stage's whole input from the leader before it; the first
stage's input and the last one's output stay where they are. comm="paper" does not.

A stage takes transfer_s + compute_s (eq. 11), or, where the network overlaps, the longer of the two; the latency is the
sum of both in either case. The period is the slowest stage; on a shared network at least the time of all bytes a frame
sends. Without overlap that is a lower bound of what a shared network can do, with overlap it is reached.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

from downset.clusters.model import Cluster
from downset.errors import UsageError
from downset.pipelines.drafts import Drafted, Split, StageDraft, Tile
from downset.pipelines.fetches import needs, rows_of
from downset.pipelines.problem import SplitProblem, quantities
from downset.plans import Strip, TimedBlock, TimedStage, TimedTransfer

__all__ = [
    "COMM",
    "check_comm",
    "halo_transfer_s",
    "medium_seconds",
    "owned",
    "period_and_latency",
    "reads_of",
    "round_seconds",
    "stage_of",
    "stages_of",
]

COMM = ("full", "paper")
Owners = dict[int, list[tuple[int, int, int]]]
"""By tensor: (device, first row, row behind the last) of every share, in order of rows."""
Reads = list[tuple[int, int, int, int]]
"""(device, tensor, first row, row behind the last)."""


def check_comm(comm: str) -> str:
    if comm not in COMM:
        raise UsageError(f"unknown communication model {comm!r}; choose one of {', '.join(COMM)}")
    return comm


def round_seconds(cluster: Cluster, transfers: Iterable[TimedTransfer]) -> float:
    """How long a round of transfers takes, every device doing one at a time."""
    busy = [0.0] * len(cluster.devices)
    total = 0.0
    for transfer in transfers:
        rate, latency = cluster.link(transfer.source, transfer.target)
        seconds = transfer.nbytes / rate + latency
        total += seconds
        busy[transfer.source] += seconds
        busy[transfer.target] += seconds
    return total if cluster.network.kind == "shared" else max(busy)


def stages_of(problem: SplitProblem, cluster: Cluster, drafts: Drafted, *, comm: str) -> tuple[TimedStage, ...]:
    """Stages with their MACs, bytes and seconds."""
    stages: list[TimedStage] = []
    for draft in drafts:
        stages.append(stage_of(problem, cluster, draft, comm=comm, sender=stages[-1].leader if stages else -1))
    return tuple(stages)


def stage_of(problem: SplitProblem, cluster: Cluster, draft: StageDraft, *, comm: str, sender: int = -1) -> TimedStage:
    """One stage; `sender` is the leader of the stage before it, -1 for the first."""
    owners: Owners = {}
    blocks = [_block(problem, cluster, split, draft.leader, owners) for split in draft.splits]
    start, stop = draft.splits[0].start, draft.splits[-1].stop
    if draft.splits[-1].halo:
        blocks[-1] = _gathered(problem, cluster, blocks[-1], draft.leader, owners)
    handover = problem.cut_bytes()[start] if comm == "full" and sender >= 0 else 0
    transfer_s = sum(block.transfer_s for block in blocks)
    if handover:
        transfer_s += round_seconds(cluster, [TimedTransfer(sender, draft.leader, handover)])
    compute_s = sum(block.compute_s for block in blocks)
    moved = sum(transfer.nbytes for block in blocks for transfer in (*block.before, *block.after))
    seconds = max(compute_s, transfer_s) if cluster.network.overlap else compute_s + transfer_s
    members = {strip.device for block in blocks for strip in block.strips} | {draft.leader}
    return TimedStage(
        ops=problem.covered(start, stop),
        leader=draft.leader,
        devices=tuple(sorted(members)),
        blocks=tuple(blocks),
        macs=sum(strip.macs for block in blocks for strip in block.strips),
        redundant_macs=sum(strip.redundant_macs for block in blocks for strip in block.strips),
        nbytes=moved + handover,
        handover_bytes=handover,
        compute_s=compute_s,
        transfer_s=transfer_s,
        seconds=seconds,
    )


def medium_seconds(cluster: Cluster, stages: Sequence[TimedStage]) -> float:
    """Seconds that all transfers of one frame take on a shared network; 0 on links."""
    return sum(stage.transfer_s for stage in stages) if cluster.network.kind == "shared" else 0.0


def period_and_latency(cluster: Cluster, stages: Sequence[TimedStage]) -> tuple[float, float]:
    slowest = max((stage.seconds for stage in stages), default=0.0)
    return (
        max(slowest, medium_seconds(cluster, stages)),
        sum(stage.compute_s + stage.transfer_s for stage in stages),
    )


def _block(problem: SplitProblem, cluster: Cluster, split: Split, leader: int, owners: Owners) -> TimedBlock:
    segment = problem.segment(split.start, split.stop)
    least = problem.least_macs_before()
    needed = least[split.stop] - least[split.start]
    strips = []
    for tile in split.tiles:
        if tile.columns is None:
            macs, in_bytes, out_bytes, moved_bytes = quantities(segment, tile.start, tile.stop)
            part = (tile.stop - tile.start) / segment.rows
        else:
            macs, in_bytes, out_bytes, moved_bytes, part = _tile_price(problem, split, tile, segment.rows)
        redundant = max(0, macs - round(needed * part))
        strips.append(
            Strip(
                tile.device, tile.start, tile.stop, macs, redundant, moved_bytes, in_bytes, out_bytes, tile.columns
            )
        )  # fmt: skip
    strips = _exact_redundancy(strips, needed)
    busy = [0.0] * len(cluster.devices)
    for strip in strips:
        busy[strip.device] += strip.macs / cluster.devices[strip.device].speed
    if split.halo:
        before = _fetches(problem, reads_of(problem, split, segment.rows), leader, owners)
        owners.update(owned(problem, split, segment.rows))
        after: tuple[TimedTransfer, ...] = ()
    else:
        others = [strip for strip in strips if strip.device != leader]
        before = tuple(TimedTransfer(leader, strip.device, strip.in_bytes) for strip in others if strip.in_bytes)
        after = tuple(TimedTransfer(strip.device, leader, strip.out_bytes) for strip in others if strip.out_bytes)
        owners.clear()
    seconds = round_seconds(cluster, before) + round_seconds(cluster, after)
    ops = problem.covered(split.start, split.stop)
    return TimedBlock(split.start, split.stop, ops, segment.rows, tuple(strips), before, after, max(busy), seconds)


def _exact_redundancy(strips: list[Strip], needed: int) -> list[Strip]:
    """Rounding of shares must not make MACs appear: the redundant MACs of a block are all its MACs less the need."""
    surplus = sum(strip.macs for strip in strips) - needed
    drift = surplus - sum(strip.redundant_macs for strip in strips)
    for index, strip in sorted(enumerate(strips), key=lambda item: -item[1].macs):
        given = min(max(strip.redundant_macs + drift, 0), strip.macs)
        drift -= given - strip.redundant_macs
        strips[index] = replace(strip, redundant_macs=given)
        if drift == 0:
            break
    return strips


def reads_of(problem: SplitProblem, split: Split, rows: int) -> Reads:
    """What the strips of a halo block read that the block does not make."""
    made = {t for unit in problem.units[split.start : split.stop] for op in unit for t in problem.ops[op].outputs}
    return [
        (tile.device, tensor, low, high)
        for tile in split.tiles
        for tensor, (low, high) in needs(problem, split, tile.start, tile.stop, rows).items()
        if tensor not in made
    ]


def _fetches(problem: SplitProblem, reads: Reads, leader: int, owners: Owners) -> tuple[TimedTransfer, ...]:
    """What each device lacks of what it reads, from whoever holds it."""
    moved: dict[tuple[int, int], int] = {}
    for device, tensor, low, high in reads:
        row_bytes = problem.tensors[tensor].row_bytes
        shares = owners.get(tensor, [(leader, 0, problem.tensors[tensor].rows)])
        for place in range(bisect_right(shares, low, key=_end), len(shares)):  # shares lie in order of rows
            owner, begin, end = shares[place]
            if begin >= high:
                break
            if owner != device:
                nbytes = (min(high, end) - max(low, begin)) * row_bytes
                moved[owner, device] = moved.get((owner, device), 0) + nbytes
    return tuple(TimedTransfer(source, target, nbytes) for (source, target), nbytes in sorted(moved.items()))


def owned(problem: SplitProblem, split: Split, rows: int) -> Owners:
    """Every device of a halo block has the rows that it made."""
    owners = {}
    for unit in problem.units[split.start : split.stop]:
        for op in unit:
            for tensor in problem.ops[op].outputs:
                held = problem.tensors[tensor]
                shares = ((tile.device, *rows_of(held, tile.start, tile.stop, rows)) for tile in split.tiles)
                owners[tensor] = [share for share in shares if share[1] < share[2]]
    return owners


def _end(share: tuple[int, int, int]) -> int:
    return share[2]


def halo_transfer_s(
    problem: SplitProblem, cluster: Cluster, owners: Owners, split: Split, reads: Reads, leader: int
) -> float:
    """Seconds of a halo block's transfers, given who holds which rows (else the leader); of the last block's with the
    gathering behind it."""
    seconds = round_seconds(cluster, _fetches(problem, reads, leader, owners))
    if split.stop == problem.cuts:
        rows = problem.segment(split.start, split.stop).rows
        gathered = _gathers(problem, split.stop, leader, owners | owned(problem, split, rows))
        seconds += round_seconds(cluster, gathered)
    return seconds


def _gathered(problem: SplitProblem, cluster: Cluster, block: TimedBlock, leader: int, owners: Owners) -> TimedBlock:
    """The last halo block of a stage: its leader gathers every tensor that crosses the cut."""
    after = _gathers(problem, block.stop, leader, owners)
    seconds = round_seconds(cluster, block.before) + round_seconds(cluster, after)
    return replace(block, after=after, transfer_s=seconds)


def _gathers(problem: SplitProblem, cut: int, leader: int, owners: Owners) -> tuple[TimedTransfer, ...]:
    moved: dict[int, int] = {}
    for tensor in problem.crossing(cut):
        for owner, begin, end in owners.get(tensor, []):
            if owner != leader:
                moved[owner] = moved.get(owner, 0) + (end - begin) * problem.tensors[tensor].row_bytes
    return tuple(TimedTransfer(owner, leader, nbytes) for owner, nbytes in sorted(moved.items()))


def _tile_price(problem: SplitProblem, split: Split, tile: Tile, rows: int) -> tuple[int, int, int, int, float]:
    """(MACs, bytes in, bytes out, moved bytes, part of the frame) of a tile: rows and columns need their halos
    independently."""
    assert tile.columns is not None
    across = problem.turned()
    frame_columns = across.segment(split.start, split.stop).rows
    down = needs(problem, split, tile.start, tile.stop, rows)
    side = needs(across, split, *tile.columns, frame_columns)
    macs = in_bytes = out_bytes = moved_bytes = 0
    inside = {op for unit in problem.units[split.start : split.stop] for op in unit}
    made = {tensor for op in inside for tensor in problem.ops[op].outputs}

    def area(tensor: int) -> float:
        low, high = down[tensor]
        left, right = side[tensor]
        return (high - low) * (right - left) / across.tensors[tensor].rows

    for op in inside:
        described = problem.ops[op]
        if described.outputs[0] in down and described.outputs[0] in side:
            macs += round(described.macs_per_row * area(described.outputs[0]))
            touched = () if described.macs_per_row else (*described.inputs, *described.outputs)
            moved_bytes += sum(round(problem.tensors[t].row_bytes * area(t)) for t in touched)
    for tensor in down.keys() & side.keys():
        if tensor not in made:
            in_bytes += round(problem.tensors[tensor].row_bytes * area(tensor))
    part = ((tile.stop - tile.start) / rows) * ((tile.columns[1] - tile.columns[0]) / frame_columns)
    for tensor in problem.crossing(split.stop):
        if tensor in made:
            out_bytes += round(problem.tensors[tensor].nbytes * part)
    return macs, in_bytes, out_bytes, moved_bytes, part
