"""The search of native/pipelines/loads/search.hpp in Python: the same space, searched plainly.

It keeps every combination of loads that no other beats: of a block by row boundary, of the pipeline by devices used. It
is exact and slow: for small networks.
Names: peak → the largest load that is final; open → the load of the last leader's resource that hands on; medium → the
seconds of a shared network.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from downset.budget import Budget, Clock
from downset.pipelines.set_problem import SetProblem
from downset.pipelines.set_search import ExactRequest, load_problem

__all__ = ["least_load"]


LoadStage = tuple[int, int, int, list[int], list[int]]
"""(leader, start, stop, devices, row boundaries)."""


class _Row(NamedTuple):
    """The strips so far: the largest load of a device other than the leader, and what the leader sends, receives and
    computes."""

    peak: float
    sends: float
    receives: float
    computes: float
    bounds: tuple[int, ...]

    def numbers(self) -> tuple[float, ...]:
        return (self.peak, self.sends, self.receives, self.computes)


class _LoadLabel(NamedTuple):
    peak: float
    medium: float
    open: float
    stages: tuple[LoadStage, ...]

    def numbers(self) -> tuple[float, ...]:
        return (self.peak, self.medium, self.open)


Trade = TypeVar("Trade", _Row, _LoadLabel)


def least_load(problem, cluster, accounting, forbidden=frozenset()) -> float:
    """The least load of a pipeline, in seconds; infinity: there is none."""
    asked = load_problem(ExactRequest(problem, cluster, accounting, forbidden=forbidden))
    path = _LoadSearch(asked, Budget(60.0).start()).best()
    return math.inf if path is None else path[0]


class _LoadSearch:
    def __init__(self, asked: SetProblem, clock: Clock) -> None:
        self.asked, self.clock, self.states = asked, clock, 0
        self.cuts = len(asked.macs_before) - 1
        types = [device.type for device in asked.devices]
        self.counts = [types.count(kind) for kind in sorted(set(types))]
        self.first = [types.index(kind) for kind in sorted(set(types))]
        self.rows: dict[tuple[int, int, tuple[int, ...], int], list[_Row]] = {}

    def best(self) -> tuple[float, tuple[LoadStage, ...]] | None:
        """The least period with its stages. Labels are kept by (devices used by type, cut, last leader)."""
        sets = list(itertools.product(*(range(count + 1) for count in self.counts)))
        table: dict[tuple[tuple[int, ...], int, int], list[_LoadLabel]] = {}
        table[(0,) * len(self.counts), 0, -1] = [_LoadLabel(0.0, 0.0, 0.0, ())]
        for used in sorted(sets, key=sum):
            for cut in range(self.cuts):
                for head in range(-1, len(self.asked.devices)):
                    for label in table.get((used, cut, head), []):
                        for target, path in self.following(used, cut, head, label, sets):
                            _insert(table.setdefault(target, []), path)
        ends = [label for (_, cut, _), labels in table.items() if cut == self.cuts for label in labels]
        if not ends:
            return None
        end = min(ends, key=self.period)
        return self.period(end), end.stages

    def period(self, label: _LoadLabel) -> float:
        return max(label.peak, label.medium, label.open)

    def following(
        self, used: tuple[int, ...], cut: int, head: int, label: _LoadLabel, sets: Iterable[tuple[int, ...]]
    ) -> Iterator[tuple[tuple[tuple[int, ...], int, int], _LoadLabel]]:
        for extra in sets:
            if not any(extra) or any(a + b > c for a, b, c in zip(used, extra, self.counts, strict=True)):
                continue
            members = tuple(self.first[kind] + used[kind] + k for kind in range(len(extra)) for k in range(extra[kind]))
            after = tuple(a + b for a, b in zip(used, extra, strict=True))
            for stop in range(cut + 1, self.cuts + 1):
                if any((cut, stop, device) in self.asked.forbidden for device in members):
                    continue
                for leader in members:
                    for row in self.divided(cut, stop, members, leader):
                        stage = (leader, cut, stop, list(members), list(row.bounds))
                        yield (after, stop, leader), self.joined(label, head, cut, stop, row, stage)

    def joined(self, label: _LoadLabel, head: int, cut: int, stop: int, row: _Row, stage: LoadStage) -> _LoadLabel:
        """The pipeline with one more stage. The transfer of the stage's input is added to both leaders."""
        asked, leader = self.asked, stage[0]
        hand = self.hand(cut, head, leader) if cut else 0.0
        sends, receives = self.ends(cut, stop, leader, leader)
        peak, medium, inside = max(row.peak, label.peak), label.medium, row.sends + row.receives
        if not (asked.overlap and asked.shared):
            peak = max(peak, label.open + hand)
        if asked.shared:
            medium += inside + hand + self.ends_on_medium(cut, stop, leader)
        if asked.overlap:
            peak = max(peak, row.computes)
        if not asked.overlap:
            opened = row.computes + inside + sends + receives + hand
        elif asked.shared:
            opened = 0.0
        elif asked.devices[leader].full:
            peak = max(peak, row.receives + receives + hand)
            opened = row.sends + sends
        else:
            opened = inside + sends + receives + hand
        return _LoadLabel(peak, medium, opened, (*label.stages, stage))

    def hand(self, cut: int, source: int, target: int) -> float:
        nbytes = self.asked.crossing_bytes[cut]
        return self.message(source, target, nbytes)

    def message(self, source: int, target: int, nbytes: float) -> float:
        if source == target or not nbytes:
            return 0.0
        return nbytes * self.asked.per_byte[source][target] + self.asked.latency[source][target]

    def ends(self, start: int, stop: int, device: int, leader: int) -> tuple[float, float]:
        """Seconds that a device sends and receives as the source, the sink, or the leader in addition. In a stage that
        is neither the first nor the last they are lower bounds, because the leaders there are not known."""
        asked, sends, receives = self.asked, 0.0, 0.0
        others = [other for other in range(len(asked.devices)) if other != device]
        opens, closes, leads = start == 0, stop == self.cuts, device == leader
        if device == asked.source and not (leads and opens):
            nearest = [self.hand(0, device, other) for other in others]
            sends += self.hand(0, device, leader) if opens else min(nearest, default=0.0)
        if device == asked.sink and not (leads and closes):
            nearest = [self.hand(self.cuts, other, device) for other in others]
            receives += self.hand(self.cuts, leader, device) if closes else min(nearest, default=0.0)
        if leads and opens and asked.source >= 0:
            receives += self.hand(0, asked.source, leader)
        if leads and closes and asked.sink >= 0:
            sends += self.hand(self.cuts, leader, asked.sink)
        return sends, receives

    def ends_on_medium(self, start: int, stop: int, leader: int) -> float:
        asked, seconds = self.asked, 0.0
        if start == 0 and asked.source >= 0:
            seconds += self.hand(0, asked.source, leader)
        if stop == self.cuts and asked.sink >= 0:
            seconds += self.hand(stop, leader, asked.sink)
        return seconds

    def divided(self, start: int, stop: int, members: tuple[int, ...], leader: int) -> list[_Row]:
        """Every division into rows that no other beats."""
        key = (start, stop, members, leader)
        if key not in self.rows:
            rows = self.asked.tables.segments[start, stop].shape[2] - 1
            layers: list[list[_Row]] = [[] for _ in range(rows + 1)]
            layers[0] = [_Row(0.0, 0.0, 0.0, 0.0, (0,))]
            for device in members:
                extended: list[list[_Row]] = [[] for _ in range(rows + 1)]
                for low in range(rows + 1):
                    for high in range(low, rows + 1) if layers[low] else ():
                        self.states += 1
                        if self.clock.late():
                            raise TimeoutError
                        for row in layers[low]:
                            _insert(extended[high], self.extended(row, start, stop, device, leader, low, high))
                layers = extended
            self.rows[key] = layers[rows]
        return self.rows[key]

    def extended(self, row: _Row, start: int, stop: int, device: int, leader: int, low: int, high: int) -> _Row:
        asked, tables = self.asked, self.asked.tables
        described = asked.devices[device]
        seconds = tables.cost(start, stop, 3 + described.work_class, low, high) / described.speed
        bounds = (*row.bounds, high)
        if device == leader:
            return row._replace(computes=seconds, bounds=bounds)
        gets = self.message(leader, device, tables.cost(start, stop, 1, low, high))
        gives = self.message(device, leader, tables.cost(start, stop, 2, low, high))
        sends, receives = self.ends(start, stop, device, leader)
        apart = [seconds, gets + gives + sends + receives]
        if not asked.overlap:
            apart = [sum(apart)]
        elif asked.shared:
            apart = [seconds]
        elif described.full:
            apart = [seconds, gets + receives, gives + sends]
        return _Row(max(row.peak, *apart), row.sends + gets, row.receives + gives, row.computes, bounds)


def _insert(trades: list[Trade], trade: Trade) -> None:
    """Insert a trade; keep those that no other beats in all numbers."""
    if any(_beats(other, trade) for other in trades):
        return
    trades[:] = [other for other in trades if not _beats(trade, other)]
    trades.append(trade)


def _beats(one: Trade, two: Trade) -> bool:
    return all(a <= b for a, b in zip(one.numbers(), two.numbers(), strict=True))
