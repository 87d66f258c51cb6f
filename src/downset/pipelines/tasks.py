"""Turns stages into the tasks of a frame: the rows that each moves, the tasks that it waits for, how long it takes.

Names: rule → how the strips of a block get their inputs; share → rows of a tensor that a device holds.
Rules: leader: the leader sends every other device its input rows and gathers all rows made. halo: a device fetches the
rows that it neither made nor fetched before from devices that hold them; at the end the stage's leader gathers. direct:
as halo, also across stages and without a leader. Between two leaders, the next one fetches all that crosses the cut.
If several devices hold a row, the one least loaded so far sends it, of equals the first; one holder sends a run of
rows. All rows that one device sends another before one block (or for a gathering or a hand-over) are one message.
Under comm="paper" the transfers are those of eq. 10: none between leaders; a row that a device fetched as a halo is not
kept; and a row that is computed twice belongs to its own strip alone.
Complexity: O(strips · shares of a tensor) for each tensor that a block reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from downset.clusters.model import Cluster
from downset.pipelines.accounting import Accounting
from downset.pipelines.drafts import Split, StageDraft, StageDrafts
from downset.pipelines.prices import PricedChain
from downset.pipelines.scheduling.events import TimedTask
from downset.pipelines.strips import given_rows, made_rows, nbytes_of, strips_of
from downset.results.pipelines import Block, FrameTasks, Pipeline, PipelineStage, Resource, Rows, Strip, Task, Transfer
from downset.results.task_times import compute_s, occupied_parts, resources_of, task_seconds, transfer_s

__all__ = ["HaloBlocks", "frame_tasks", "timed_tasks"]

_KINDS = ("device", "processor", "radio", "send", "receive", "medium")


def frame_tasks(
    problem: PricedChain,
    cluster: Cluster,
    drafts: StageDrafts,
    accounting: Accounting,
    halo_blocks: HaloBlocks | None = None,
) -> FrameTasks:
    """The tasks of stages. Frames appear at the source and results stay at the sink; if these are outside, at the first
    and the last leader, or without leaders at the drafts' entry and exit. `halo_blocks`: blocks of halo exchange that
    were listed before for the same problem, cluster and accounting; this call adds its own."""
    first, last = _end(drafts[0], drafts[0].entry), _end(drafts[-1], drafts[-1].exit)
    listing = _Listing(problem, cluster, {} if halo_blocks is None else halo_blocks, paper=accounting.comm == "paper")
    entry, exit_ = (
        first if accounting.source is None else accounting.source,
        last if accounting.sink is None else accounting.sink,
    )
    frame = [Rows(tensor, 0, problem.tensors[tensor].rows) for tensor in problem.crossing(0)]
    listing.hold(entry, frame, -1)
    stages, sender = [], entry
    for number, draft in enumerate(drafts):
        stages.append(listing.stage(number, draft, sender))
        sender = draft.leader
    if sender < 0:
        listing.fetch({exit_: _crossing(problem, problem.cuts)})
    elif exit_ != sender:
        listing.send([(sender, exit_, _crossing(problem, problem.cuts))])
    frame_bytes, result_bytes = (
        sum(nbytes_of(problem, rows) for rows in _crossing(problem, cut)) for cut in (0, problem.cuts)
    )
    return FrameTasks(tuple(stages), tuple(listing.tasks), entry, exit_, frame_bytes, result_bytes)


def _end(draft: StageDraft, chosen: int) -> int:
    """The device where a stage's input appears or its output stays, by default."""
    if draft.leader >= 0:
        return draft.leader
    return chosen if chosen >= 0 else draft.splits[0].tiles[0].device


def _crossing(problem: PricedChain, cut: int) -> list[Rows]:
    whole = (Rows(tensor, 0, problem.tensors[tensor].rows) for tensor in problem.crossing(cut))
    return [rows for rows in whole if problem.tensors[rows.tensor].row_bytes]


class BlockRows(NamedTuple):
    """The strips of a block with the rows that each tile reads and makes."""

    strips: tuple[Strip, ...]
    inputs: tuple[tuple[Rows, ...], ...]
    made: tuple[tuple[Rows, ...], ...]


HaloBlocks = dict[Split, BlockRows]


class _Share(NamedTuple):
    device: int
    rows: Rows
    task: int


class _Listing:
    """Lists the tasks so far and the rows that each device holds."""

    def __init__(self, problem: PricedChain, cluster: Cluster, halo_blocks: HaloBlocks, *, paper: bool) -> None:
        self.problem, self.cluster, self.halo_blocks, self.paper = problem, cluster, halo_blocks, paper
        self.tasks: list[Task] = []
        self.shares: dict[int, list[_Share]] = {}
        self.load_s = [0.0] * len(cluster.devices)
        self.place = (0, 0)

    def hold(self, device: int, pieces: Iterable[Rows], task: int) -> None:
        for rows in pieces:
            self.shares.setdefault(rows.tensor, []).append(_Share(device, rows, task))

    def stage(self, number: int, draft: StageDraft, sender: int) -> PipelineStage:
        start, stop = draft.splits[0].start, draft.splits[-1].stop
        self.place = (number, 0)
        if draft.leader >= 0:
            self.hand_over(draft.leader, sender, start)
        blocks = []
        for place, split in enumerate(draft.splits):
            self.place = (number, place)
            blocks.append(self.block(split, draft.leader))
            scatters_next = place + 1 == len(draft.splits) or not draft.splits[place + 1].halo
            if split.halo and draft.leader >= 0 and scatters_next:
                self.fetch({draft.leader: _crossing(self.problem, split.stop)})
        strips = [strip for block in blocks for strip in block.strips]
        members = {strip.device for strip in strips} | ({draft.leader} if draft.leader >= 0 else set())
        return PipelineStage(
            self.problem.covered(start, stop),
            draft.leader,
            tuple(sorted(members)),
            tuple(blocks),
            sum(strip.macs for strip in strips),
            sum(strip.redundant_macs for strip in strips),
        )

    def hand_over(self, leader: int, sender: int, cut: int) -> None:
        if leader == sender:
            return
        crossing = _crossing(self.problem, cut)
        if self.paper:
            self.hold(leader, crossing, -1)
        else:
            self.send([(sender, leader, crossing)])

    def block(self, split: Split, leader: int) -> Block:
        rule: Literal["leader", "halo", "direct"] = "leader"
        if split.halo:
            rule = "halo" if leader >= 0 else "direct"
            strips = self.halo_block(split)
        else:
            strips = strips_of(self.problem, self.cluster, split)
            self.leader_block(split, strips, leader)
        ops = self.problem.covered(split.start, split.stop)
        rows = self.problem.segment(split.start, split.stop).rows
        return Block(split.start, split.stop, ops, self.problem.axis, rows, rule, strips)

    def leader_block(self, split: Split, strips: Sequence[Strip], leader: int) -> None:
        inputs = [given_rows(self.problem, split, tile) for tile in split.tiles]
        sent = self.send(
            [
                (leader, tile.device, rows)
                for tile, rows in zip(split.tiles, inputs, strict=True)
                if tile.device != leader
            ],
            kept=False,
        )
        after = [
            self.holding(leader, rows) if tile.device == leader else sent.get((leader, tile.device), ())
            for tile, rows in zip(split.tiles, inputs, strict=True)
        ]
        computed = self.compute(strips, after)
        gathered = []
        for tile, task in zip(split.tiles, computed, strict=True):
            rows = made_rows(self.problem, split, tile, halos=False)
            self.hold(tile.device, rows, task)
            if tile.device != leader:
                gathered.append((tile.device, leader, rows))
        self.send(gathered)
        if self.paper:  # the leader holds all rows, all other devices none
            for tensor in self.problem.sinks(split.start, split.stop):
                self.shares[tensor] = [share for share in self.shares.get(tensor, []) if share.device == leader]

    def halo_block(self, split: Split) -> tuple[Strip, ...]:
        rows = self.halo_blocks.get(split)
        if rows is None:
            rows = self.halo_blocks[split] = BlockRows(
                strips_of(self.problem, self.cluster, split),
                tuple(given_rows(self.problem, split, tile) for tile in split.tiles),
                tuple(made_rows(self.problem, split, tile, halos=not self.paper) for tile in split.tiles),
            )
        wanted: dict[int, list[Rows]] = {}
        for tile, needed in zip(split.tiles, rows.inputs, strict=True):
            wanted.setdefault(tile.device, []).extend(needed)
        fetched = self.fetch(wanted, kept=not self.paper)
        after = [
            (*self.holding(tile.device, needed), *fetched.get(tile.device, ()))
            for tile, needed in zip(split.tiles, rows.inputs, strict=True)
        ]
        computed = self.compute(rows.strips, [tuple(sorted(set(tasks))) for tasks in after])
        for tile, rows_of_tile, task in zip(split.tiles, rows.made, computed, strict=True):
            self.hold(tile.device, rows_of_tile, task)
        return rows.strips

    def compute(self, strips: Sequence[Strip], after: Sequence[tuple[int, ...]]) -> list[int]:
        first = len(self.tasks)
        for number, (strip, waits) in enumerate(zip(strips, after, strict=True)):
            self.tasks.append(Task(*self.place, strip.device, strip=number, after=waits))
            self.load_s[strip.device] += compute_s(self.cluster.devices[strip.device], strip)
        return list(range(first, len(self.tasks)))

    def fetch(self, wanted: dict[int, list[Rows]], *, kept: bool = True) -> dict[int, tuple[int, ...]]:
        """Send the devices the rows that they do not hold. Returns, by device, the tasks that send them."""
        messages: dict[tuple[int, int], list[Rows]] = {}
        for device, rows in wanted.items():
            for source, part in (piece for one in rows for piece in self.lacking(device, one)):
                parts = messages.setdefault((source, device), [])
                if parts and parts[-1].tensor == part.tensor and parts[-1].stop == part.start:
                    part = Rows(part.tensor, parts.pop().start, part.stop)
                parts.append(part)
        sent = self.send([(*ends, parts) for ends, parts in sorted(messages.items())], kept=kept)
        return {
            device: tuple(task for (_, target), tasks in sent.items() if target == device for task in tasks)
            for device in wanted
        }

    def send(
        self, messages: Iterable[tuple[int, int, Sequence[Rows]]], *, kept: bool = True
    ) -> dict[tuple[int, int], tuple[int, ...]]:
        """Add one round of messages (source, target, rows); messages without rows are left out. Returns their tasks.
        `kept`: the target holds the rows from then on."""
        joined: dict[tuple[int, int], list[Rows]] = {}
        for source, target, rows in messages:
            if rows:
                joined.setdefault((source, target), []).extend(rows)
        sent: dict[tuple[int, int], tuple[int, ...]] = {}
        for (source, target), rows in joined.items():
            nbytes = sum(nbytes_of(self.problem, part) for part in rows)
            transfer = Transfer(source, target, tuple(rows), nbytes)
            task = Task(*self.place, source, transfer=transfer, after=self.holding(source, rows))
            seconds = transfer_s(self.cluster, transfer)
            self.load_s[source] += seconds
            self.load_s[target] += seconds
            sent[source, target] = (len(self.tasks),)
            self.tasks.append(task)
        for ends, rows in joined.items() if kept else ():
            self.hold(ends[1], rows, *sent[ends])
        return sent

    def holding(self, device: int, wanted: Sequence[Rows]) -> tuple[int, ...]:
        """The tasks that gave the device any of these rows."""
        holders = {
            share.task
            for rows in wanted
            for share in self.shares.get(rows.tensor, ())
            if share.device == device and share.task >= 0 and _meet(share.rows, rows)
        }
        return tuple(sorted(holders))

    def lacking(self, device: int, wanted: Rows) -> list[tuple[int, Rows]]:
        """(holder, rows) for the rows that the device does not hold, in order of rows."""
        shares = self.shares.get(wanted.tensor, [])
        missing, row = [], wanted.start
        while row < wanted.stop:
            here = [share for share in shares if share.rows.start <= row < share.rows.stop]
            own = [share.rows.stop for share in here if share.device == device]
            if own:
                row = max(own)
                continue
            later = [share.rows.start for share in shares if share.device == device and share.rows.start > row]
            holder = min(here, key=lambda share: (self.load_s[share.device], share.device, -share.rows.stop))
            stop = min([holder.rows.stop, wanted.stop, *later])
            missing.append((holder.device, Rows(wanted.tensor, row, stop)))
            row = stop
        return missing


def _meet(one: Rows, two: Rows) -> bool:
    if max(one.start, two.start) >= min(one.stop, two.stop):
        return False
    if one.columns is None or two.columns is None:
        return True
    return max(one.columns[0], two.columns[0]) < min(one.columns[1], two.columns[1])


def timed_tasks(cluster: Cluster, frame: FrameTasks | Pipeline) -> tuple[list[TimedTask], tuple[Resource, ...]]:
    """The tasks with their seconds and the numbers of their resources, and all resources that any task occupies: sorted
    by device, the medium last."""
    resources = [resources_of(cluster, task) for task in frame.tasks]
    used = sorted(
        {one for own in resources for one in own},
        key=lambda resource: (resource.kind == "medium", resource.device, _KINDS.index(resource.kind)),
    )
    number = {resource: place for place, resource in enumerate(used)}
    seconds = task_seconds(cluster, frame)
    timed = [
        TimedTask(occupied, tuple(sorted(number[one] for one in own)), task.after, whole - occupied)
        for task, own, whole, occupied in zip(
            frame.tasks, resources, seconds, occupied_parts(cluster, frame.tasks, seconds), strict=True
        )
    ]
    return timed, tuple(used)
