"""Times of a pipeline by eq. 7-12 of the PICO paper, optionally with costs that they leave out.

Names: t_comp → compute_s (eq. 7, 8), t_comm → transfer_s (eq. 9, 10), T(S) → stage seconds (eq. 11), P and T → period_s
and latency_s (eq. 12), d_f → leader.

A round of transfers takes as long as its busiest device needs for its transfers, one after another. If a leader
scatters and gathers, that is the sum of eq. 10; if neighbours exchange halos, pairs without a common device transfer at
the same time. On a shared network all bytes of a round follow each other.

comm="resources" adds costs that these equations leave out: the transfer of a stage's whole input from the previous
leader, and the bytes that operators without MACs move. Methods of papers choose by these sums, and their choice is then
judged by its resources (accounting.py). comm="paper" adds nothing.

A stage takes transfer_s + compute_s (eq. 11) or, if the network overlaps, the longer of the two; the latency is the sum
of both in either case. The period is that of the slowest stage; on a shared network at least the time of all bytes of a
frame. On a shared network without overlap this period is a lower bound; with overlap it is reached.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from downset.clusters.model import Cluster
from downset.pipelines.drafts import Split, StageDraft, StageDrafts
from downset.pipelines.prices import PricedChain
from downset.pipelines.segment_prices import rows_of
from downset.pipelines.strips import strips_of
from downset.results.pipelines import Strip, Transfer
from downset.results.task_times import compute_s

__all__ = [
    "TimedBlock",
    "TimedStage",
    "TimedTransfer",
    "halo_transfer_s",
    "medium_seconds",
    "owned",
    "period_and_latency",
    "reads_of",
    "round_seconds",
    "stage_of",
    "stages_of",
]

Owners = dict[int, list[tuple[int, int, int]]]
"""By tensor: (device, first row, row behind the last) of each share, in order of rows."""
Reads = list[tuple[int, int, int, int]]
"""(device, tensor, first row, row behind the last)."""


@dataclass(frozen=True, slots=True)
class TimedTransfer:
    source: int
    target: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TimedBlock:
    """Operators between two cuts, computed strip by strip without communication. The transfers `before` must end first;
    the transfers `after` end the block. `compute_s` is the slowest device's, `transfer_s` that of both rounds of
    transfers."""

    start: int
    stop: int
    ops: tuple[int, ...]
    frame_rows: int
    strips: tuple[Strip, ...]
    before: tuple[TimedTransfer, ...]
    after: tuple[TimedTransfer, ...]
    compute_s: float
    transfer_s: float


@dataclass(frozen=True, slots=True)
class TimedStage:
    """Blocks that the same devices run one after another. `leader` receives the stage's input from the previous stage
    and holds its output. `macs`: all that are computed; `redundant_macs`: those beyond the need. `memory_bytes`:
    weights and activations by device of the stage; empty if not asked for."""

    ops: tuple[int, ...]
    leader: int
    devices: tuple[int, ...]
    blocks: tuple[TimedBlock, ...]
    macs: int
    redundant_macs: int
    nbytes: int
    compute_s: float
    transfer_s: float
    seconds: float
    memory_bytes: tuple[int, ...] = ()


def round_seconds(cluster: Cluster, transfers: Iterable[TimedTransfer | Transfer]) -> float:
    """Seconds of a round of transfers when every device does one at a time and takes part in each for all its time."""
    busy = [0.0] * len(cluster.devices)
    total = 0.0
    for transfer in transfers:
        rate, latency = cluster.link(transfer.source, transfer.target)
        seconds = transfer.nbytes / rate + latency
        total += seconds
        busy[transfer.source] += seconds
        busy[transfer.target] += seconds
    return total if cluster.network.kind == "shared" else max(busy)


def stages_of(problem: PricedChain, cluster: Cluster, drafts: StageDrafts, *, comm: str) -> tuple[TimedStage, ...]:
    """The stages with their MACs, bytes and seconds."""
    stages: list[TimedStage] = []
    for draft in drafts:
        stages.append(stage_of(problem, cluster, draft, comm=comm, sender=stages[-1].leader if stages else -1))
    return tuple(stages)


def stage_of(problem: PricedChain, cluster: Cluster, draft: StageDraft, *, comm: str, sender: int = -1) -> TimedStage:
    """One stage with its MACs, bytes and seconds. `sender`: the leader of the previous stage, or -1."""
    owners: Owners = {}
    blocks = [_block(problem, cluster, split, draft.leader, owners, comm) for split in draft.splits]
    start, stop = draft.splits[0].start, draft.splits[-1].stop
    if draft.splits[-1].halo:
        blocks[-1] = _gathered(problem, cluster, blocks[-1], draft.leader, owners)
    handover = problem.cut_bytes()[start] if comm != "paper" and sender >= 0 else 0
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
        compute_s=compute_s,
        transfer_s=transfer_s,
        seconds=seconds,
    )


def medium_seconds(cluster: Cluster, stages: Sequence[TimedStage]) -> float:
    """Seconds of all transfers of one frame on a shared network; 0 on links."""
    return sum(stage.transfer_s for stage in stages) if cluster.network.kind == "shared" else 0.0


def period_and_latency(cluster: Cluster, stages: Sequence[TimedStage]) -> tuple[float, float]:
    slowest = max((stage.seconds for stage in stages), default=0.0)
    return (
        max(slowest, medium_seconds(cluster, stages)),
        sum(stage.compute_s + stage.transfer_s for stage in stages),
    )


def _block(problem: PricedChain, cluster: Cluster, split: Split, leader: int, owners: Owners, comm: str) -> TimedBlock:
    rows = problem.segment(split.start, split.stop).rows
    strips = strips_of(problem, cluster, split)
    busy = [0.0] * len(cluster.devices)
    for strip in strips:
        device = cluster.devices[strip.device]
        busy[strip.device] += compute_s(device, strip, paper=comm == "paper")
    if split.halo:
        before = _fetches(problem, reads_of(problem, split), leader, owners)
        owners.update(owned(problem, split, rows))
        after: tuple[TimedTransfer, ...] = ()
    else:
        others = [strip for strip in strips if strip.device != leader]
        before = tuple(TimedTransfer(leader, strip.device, strip.in_bytes) for strip in others if strip.in_bytes)
        after = tuple(TimedTransfer(strip.device, leader, strip.out_bytes) for strip in others if strip.out_bytes)
        owners.clear()
    seconds = round_seconds(cluster, before) + round_seconds(cluster, after)
    ops = problem.covered(split.start, split.stop)
    return TimedBlock(split.start, split.stop, ops, rows, strips, before, after, max(busy), seconds)


def reads_of(problem: PricedChain, split: Split) -> Reads:
    """The rows that the strips of a halo block read and the block does not make."""
    results = {t for unit in problem.units[split.start : split.stop] for op in unit for t in problem.ops[op].outputs}
    return [
        (tile.device, tensor, low, high)
        for tile in split.tiles
        for tensor, (low, high) in problem.needs(split.start, split.stop, tile.start, tile.stop, halo=True).items()
        if tensor not in results
    ]


def _fetches(problem: PricedChain, reads: Reads, leader: int, owners: Owners) -> tuple[TimedTransfer, ...]:
    """Transfers of the rows that each device reads and does not have, from devices that hold them."""
    moved: dict[tuple[int, int], int] = {}
    for device, tensor, low, high in reads:
        row_bytes = problem.tensors[tensor].row_bytes
        shares = owners.get(tensor, [(leader, 0, problem.tensors[tensor].rows)])
        for place in range(bisect_right(shares, low, key=_end), len(shares)):  # shares are in order of rows
            owner, begin, end = shares[place]
            if begin >= high:
                break
            if owner != device:
                nbytes = (min(high, end) - max(low, begin)) * row_bytes
                moved[owner, device] = moved.get((owner, device), 0) + nbytes
    return tuple(TimedTransfer(source, target, nbytes) for (source, target), nbytes in sorted(moved.items()))


def owned(problem: PricedChain, split: Split, rows: int) -> Owners:
    """The shares after a halo block: each device holds the rows that it made."""
    owners = {}
    for unit in problem.units[split.start : split.stop]:
        for op in unit:
            for tensor in problem.ops[op].outputs:
                described = problem.tensors[tensor]
                shares = ((tile.device, *rows_of(described, tile.start, tile.stop, rows)) for tile in split.tiles)
                owners[tensor] = [share for share in shares if share[1] < share[2]]
    return owners


def _end(share: tuple[int, int, int]) -> int:
    return share[2]


def halo_transfer_s(
    problem: PricedChain, cluster: Cluster, owners: Owners, split: Split, reads: Reads, leader: int
) -> float:
    """Seconds of a halo block's transfers. `owners`: who holds which rows (the leader holds all others). For the last
    block the gathering behind it counts too."""
    seconds = round_seconds(cluster, _fetches(problem, reads, leader, owners))
    if split.stop == problem.cuts:
        rows = problem.segment(split.start, split.stop).rows
        gathered = _gathers(problem, split.stop, leader, owners | owned(problem, split, rows))
        seconds += round_seconds(cluster, gathered)
    return seconds


def _gathered(problem: PricedChain, cluster: Cluster, block: TimedBlock, leader: int, owners: Owners) -> TimedBlock:
    """The last halo block of a stage, at whose end the leader gathers every tensor that crosses the cut."""
    after = _gathers(problem, block.stop, leader, owners)
    seconds = round_seconds(cluster, block.before) + round_seconds(cluster, after)
    return replace(block, after=after, transfer_s=seconds)


def _gathers(problem: PricedChain, cut: int, leader: int, owners: Owners) -> tuple[TimedTransfer, ...]:
    moved: dict[int, int] = {}
    for tensor in problem.crossing(cut):
        for owner, begin, end in owners.get(tensor, []):
            if owner != leader:
                moved[owner] = moved.get(owner, 0) + (end - begin) * problem.tensors[tensor].row_bytes
    return tuple(TimedTransfer(owner, leader, nbytes) for owner, nbytes in sorted(moved.items()))
