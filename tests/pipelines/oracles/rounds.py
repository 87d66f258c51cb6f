"""Pipelines of least period by sums of rounds, searched plainly in Python.

It keeps every pair of computing and communication that no other beats: of a block (T, C), of a stage, and of the
pipeline so far (period, medium, latency). It is exact and slow: for small networks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from downset.budget import Budget
from downset.pipelines.device_order import CanonicalDevices, canonical
from downset.pipelines.problem import SplitProblem
from downset.pipelines.segment_prices import SegmentPrices, quantities

__all__ = ["least_rounds"]

Trade = tuple[float, float, tuple[tuple[int, int, tuple[int, ...]], ...]]
"""(computing seconds, communication seconds, blocks as (start, stop, row boundaries))."""


def least_rounds(
    problem, cluster, *, comm, max_latency_s=math.inf, several_blocks=True, least_latency=False, forbidden=frozenset()
) -> float:
    """The least period of a pipeline, in seconds, or the period of that of least latency; infinity: there is none."""
    form = canonical(cluster)
    handover = [0 if comm == "paper" else nbytes for nbytes in problem.cut_bytes()]
    shared = cluster.network.kind == "shared"
    run = _PipelineSearch(
        problem, form, handover, cluster.network.overlap, shared, max_latency_s, several_blocks, least_latency
    )
    run.banned = frozenset((start, stop, form.order.index(device)) for start, stop, device in forbidden)
    run.moved = int(comm != "paper")
    run.clock = Budget(60.0).start()
    path = run.best()
    return math.inf if path is None else path[0]


class _PipelineSearch:
    banned: frozenset[tuple[int, int, int]] = frozenset()
    moved = 0
    """The number of MACs that take as long as one moved byte."""

    def __init__(
        self,
        problem: SplitProblem,
        devices: CanonicalDevices,
        handover: list[int],
        overlap: bool,
        shared: bool,
        latency_limit_s: float,
        several_blocks: bool,
        least_latency: bool,
    ) -> None:
        self.problem, self.devices, self.handover = problem, devices, handover
        self.overlap, self.shared, self.latency_limit_s = overlap, shared, latency_limit_s
        self.several_blocks, self.least_latency = several_blocks, least_latency
        self.states = 0
        self.counts = [devices.type.count(kind) for kind in sorted(set(devices.type))]
        self.first = [devices.type.index(kind) for kind in sorted(set(devices.type))]
        self.blocks: dict[tuple[int, int, tuple[int, ...], int], list[Trade]] = {}
        self.stages: dict[tuple[int, int, tuple[int, ...], int], list[Trade]] = {}

    def best(self) -> tuple[float, list[Any]] | None:
        """The best period with its stages. Labels by (devices used by type, cut, last leader) are Pareto sets of
        (period, medium, latency)."""
        sets = list(itertools.product(*(range(count + 1) for count in self.counts)))
        table: dict[tuple[tuple[int, ...], int, int], list[tuple[float, float, float, list[Any]]]] = {}
        none = (0,) * len(self.counts)
        table[none, 0, -1] = [(0.0, 0.0, 0.0, [])]
        for used in sorted(sets, key=sum):
            for cut in range(self.problem.cuts):
                for head in range(-1, len(self.devices.speed)):
                    for label in table.get((used, cut, head), []):
                        for target, path in self.following(used, cut, head, label, sets):
                            _insert(table.setdefault(target, []), path)
        ends = [label for (_, cut, _), labels in table.items() if cut == self.problem.cuts for label in labels]
        if not ends:
            return None
        rank = (lambda label: label[2]) if self.least_latency else self.period
        end = min(ends, key=rank)
        return self.period(end), end[3]

    def period(self, label: tuple[float, float, float, list[Any]]) -> float:
        return max(label[0], label[1]) if self.shared else label[0]

    def following(
        self,
        used: tuple[int, ...],
        cut: int,
        head: int,
        label: tuple[float, float, float, list[Any]],
        sets: Iterable[tuple[int, ...]],
    ) -> Iterator[tuple[tuple[tuple[int, ...], int, int], tuple[float, float, float, list[Any]]]]:
        for extra in sets:
            if not any(extra) or any(a + b > c for a, b, c in zip(used, extra, self.counts, strict=True)):
                continue
            members = tuple(self.first[kind] + used[kind] + k for kind in range(len(extra)) for k in range(extra[kind]))
            alike = tuple(self.first[kind] + k for kind in range(len(extra)) for k in range(extra[kind]))
            after = tuple(a + b for a, b in zip(used, extra, strict=True))
            for stop in range(cut + 1, self.problem.cuts + 1):
                if any((cut, stop, device) in self.banned for device in members):
                    continue
                for place, leader in enumerate(members):
                    hand = self.hand_over(cut, head, leader)
                    for computing, transfer, blocks in self.stage(cut, stop, alike, place):
                        moved = transfer + hand
                        seconds = max(computing, moved) if self.overlap else computing + moved
                        latency = label[2] + computing + moved
                        if latency > self.latency_limit_s * (1 + 1e-12):
                            continue
                        stage = (leader, [(a, b, list(bounds)) for a, b, bounds in blocks], list(members))
                        key = (after, stop, -1 if self.devices.uniform else leader)
                        yield key, (max(label[0], seconds), label[1] + moved, latency, [*label[3], stage])

    def hand_over(self, cut: int, head: int, leader: int) -> float:
        if cut == 0 or self.handover[cut] == 0:
            return 0.0
        source = head if head >= 0 else (leader + 1) % len(self.devices.speed)
        return self.handover[cut] * self.devices.per_byte[source][leader] + self.devices.latency[source][leader]

    def stage(self, start: int, stop: int, members: tuple[int, ...], place: int) -> list[Trade]:
        key = (start, stop, members, place)
        if key not in self.stages:
            trades: list[Trade] = []
            for trade in self.block(start, stop, members, place):
                _insert_trade(trades, trade)
            if self.several_blocks and len(members) > 1:
                for middle in range(start + 1, stop):
                    for one in self.stage(start, middle, members, place):
                        for two in self.block(middle, stop, members, place):
                            _insert_trade(trades, (one[0] + two[0], one[1] + two[1], (*one[2], *two[2])))
            self.stages[key] = trades
        return self.stages[key]

    def block(self, start: int, stop: int, members: tuple[int, ...], place: int) -> list[Trade]:
        key = (start, stop, members, place)
        if key not in self.blocks:
            segment = self.problem.segment(start, stop)
            layers: list[list[tuple[float, float, tuple[int, ...]]]] = [[] for _ in range(segment.rows + 1)]
            layers[0] = [(0.0, 0.0, (0,))]
            for k in range(len(members)):
                layers = self.extended(segment, layers, members, k, place)
            self.blocks[key] = [(one, two, ((start, stop, bounds),)) for one, two, bounds in layers[segment.rows]]
        return self.blocks[key]

    def extended(
        self,
        segment: SegmentPrices,
        layers: list[list[tuple[float, float, tuple[int, ...]]]],
        members: tuple[int, ...],
        k: int,
        place: int,
    ) -> list[list[tuple[float, float, tuple[int, ...]]]]:
        """All ways to give the next device rows, by the row at which they end."""
        if self.clock.late():
            raise TimeoutError
        extended: list[list[tuple[float, float, tuple[int, ...]]]] = [[] for _ in range(segment.rows + 1)]
        device, leader = members[k], members[place]
        for low in range(segment.rows + 1):
            for high in range(low, segment.rows + 1) if layers[low] else ():
                self.states += 1
                macs, in_bytes, out_bytes, moved_bytes = quantities(segment, low, high)
                work, moved = macs + self.moved * moved_bytes, 0.0
                if k != place and high > low:
                    per_byte, latency = self.devices.per_byte[leader][device], self.devices.latency[leader][device]
                    moved = (in_bytes + out_bytes) * per_byte + 2 * latency
                for computing, transfer, bounds in layers[low]:
                    label = (max(computing, work / self.devices.speed[device]), transfer + moved, (*bounds, high))
                    _insert_trade(extended[high], label)
        return extended


def _insert_trade(labels: list[Any], label: Any) -> None:
    """Insert a label; keep the labels of which no other is at least as good in both of their first two numbers."""
    if any(other[0] <= label[0] and other[1] <= label[1] for other in labels):
        return
    labels[:] = [other for other in labels if not (label[0] <= other[0] and label[1] <= other[1])]
    labels.append(label)


def _insert(labels: list[Any], label: Any) -> None:
    """Insert a label; keep the labels of which no other is at least as good in all of their first three numbers."""
    if any(all(a <= b for a, b in zip(other[:3], label[:3], strict=True)) for other in labels):
        return
    labels[:] = [other for other in labels if not all(a <= b for a, b in zip(label[:3], other[:3], strict=True))]
    labels.append(label)
