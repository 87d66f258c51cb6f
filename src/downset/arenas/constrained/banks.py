"""Several memories of different speed: fast and small first, the rest spills to the next, at least total cost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from downset.arenas.best import best
from downset.arenas.check_records import check_placement
from downset.arenas.constrained.spread import spill
from downset.arenas.exact import exact
from downset.arenas.gaps import height
from downset.budget import Budget, Clock
from downset.errors import InfeasibleError, InvalidPlan, LimitReached, UsageError
from downset.memory.bounds import breadth_bound
from downset.memory.records import Record, check_records
from downset.results.plans import Evidence

__all__ = ["Bank", "check_banks", "plan_banks"]


_MOST_RECORDS = 500
"""Greedy spilling alone runs for more records: the search nests one call a record, and would prove nothing."""


@dataclass(frozen=True, slots=True)
class Bank:
    """A memory of `bytes`; every byte of a record placed there costs `cost_per_byte`."""

    name: str
    bytes: int
    cost_per_byte: int


@dataclass(frozen=True, slots=True)
class Banked:
    """Record i lies in bank `bank_of[i]` at `offsets[i]`. `evidence.value` is the total cost."""

    bank_of: tuple[int, ...]
    offsets: tuple[int, ...]
    evidence: Evidence


def plan_banks(
    records: Sequence[Record],
    banks: Sequence[Bank],
    *,
    time_limit_s: float = 10.0,
    node_limit: int = 200_000,
    only: Mapping[int, int] | None = None,
) -> Banked:
    """The least total cost of placing every record in some bank, none above its bytes. `only`: by record, the one bank
    that it may lie in.

    Starts from greedy spilling (each record in turn into the cheapest bank that still has room, in several turns), then
    branches over the records by decreasing size, cheapest bank first, and prunes by cost and by the bytes live at once
    in each bank; a full assignment counts once its banks are placed. Proven when the search ends and every placing was
    decided. Raises InfeasibleError where it is proven that the banks cannot hold the records, LimitReached where no
    plan was found in time. Costs are whole numbers.
    """
    if not banks:
        raise UsageError("plan_banks needs at least one bank")
    for bank in banks:
        if bank.bytes < 0 or bank.cost_per_byte < 0:
            raise UsageError(f"bank {bank.name!r} has a negative size or cost: {bank.bytes}, {bank.cost_per_byte}")
    check_records(records)
    pinned = next((record for record in records if record.offset is not None), None)
    if pinned is not None:
        raise UsageError(f"record {pinned.id!r} is pinned: an offset names no place among several banks")
    for index, bank_at in (only or {}).items():
        if not (0 <= index < len(records) and 0 <= bank_at < len(banks)):
            raise UsageError(f"record {index} may only lie in bank {bank_at}: one of the two does not exist")
    begin = time.perf_counter()
    order = sorted(range(len(banks)), key=lambda index: (banks[index].cost_per_byte, index))
    allowed = [order if index not in (only or {}) else [(only or {})[index]] for index in range(len(records))]
    choices = [[order.index(place) for place in places] for places in allowed]
    search = _BankSearch(records, [banks[place] for place in order], choices, Budget(time_limit_s, node_limit).start())
    search.run()
    if search.best is None:
        room = " + ".join(f"{bank.name} {bank.bytes}" for bank in banks)
        if search.decided:
            raise InfeasibleError(f"proven: {len(records)} records do not fit into {room} bytes")
        raise LimitReached(f"no placement of {len(records)} records into {room} bytes was found in time")
    value, bank_of, offsets = search.best
    bound = value if search.decided else min(value, search.root_bound)
    evidence = Evidence("banks", value, bound, bound == value, search.clock.states, time.perf_counter() - begin)
    return Banked(tuple(order[bank] for bank in bank_of), offsets, evidence)


class _BankSearch:
    """Depth-first over assignments; the state of one call of `plan_banks`. `choices[i]`: the banks of record i."""

    def __init__(
        self,
        records: Sequence[Record],
        banks: Sequence[Bank],
        choices: Sequence[Sequence[int]],
        clock: Clock,
    ) -> None:
        self.records, self.banks, self.choices, self.clock = records, banks, choices, clock
        self.turn = sorted(range(len(records)), key=lambda i: (-records[i].nbytes, i))
        cheapest = banks[0].cost_per_byte
        self.rest = [0] * (len(self.turn) + 1)  # the least that the records from a position on can cost
        for position in range(len(self.turn) - 1, -1, -1):
            places = [banks[bank] for bank in choices[self.turn[position]]]
            fits = [bank.cost_per_byte for bank in places if bank.bytes >= records[self.turn[position]].nbytes]
            self.rest[position] = self.rest[position + 1] + records[self.turn[position]].nbytes * min(
                fits, default=cheapest
            )
        self.root_bound = max(self.rest[0], self._spill_bound())
        self.best: tuple[int, tuple[int, ...], tuple[int, ...]] | None = None
        self.decided = True

    def _spill_bound(self) -> int:
        """A lower bound of the cost: at every step the live bytes fill the banks from the cheapest on."""
        total = sum(record.nbytes for record in self.records)
        live, spread, left = breadth_bound(self.records), 0, breadth_bound(self.records)
        for bank in self.banks:
            taken = min(left, bank.bytes)
            spread, left = spread + taken * bank.cost_per_byte, left - taken
        return spread + (total - live) * self.banks[0].cost_per_byte

    def run(self) -> None:
        everything = range(len(self.records))
        for sequence in (
            self.turn,
            sorted(everything, key=lambda i: (self.records[i].start, i)),
            sorted(
                everything, key=lambda i: (self.records[i].stop - self.records[i].start, -self.records[i].nbytes, i)
            ),
        ):
            self._spill(sequence)
        if self.best is None or self.best[0] > self.root_bound:
            if len(self.records) > _MOST_RECORDS:
                self.decided = False
                return
            self._descend(0, 0, [[] for _ in self.banks])

    def _spill(self, sequence: Sequence[int]) -> None:
        spilled = spill(self.records, sequence, [bank.bytes for bank in self.banks], choices=self.choices)
        if spilled is None:
            return
        cost = sum(
            record.nbytes * self.banks[bank].cost_per_byte
            for record, bank in zip(self.records, spilled[0], strict=True)
        )
        if self.best is None or cost < self.best[0]:
            self.best = (cost, *spilled)

    def _descend(self, position: int, cost: int, contents: list[list[int]]) -> None:
        if self.best is not None and cost + self.rest[position] >= self.best[0]:
            return
        if self.clock.over():
            self.decided = False
            return
        self.clock.count(1)
        if position == len(self.turn):
            self._place(cost, contents)
            return
        index = self.turn[position]
        for place in self.choices[index]:
            bank = self.banks[place]
            contents[place].append(index)
            if breadth_bound([self.records[i] for i in contents[place]]) <= bank.bytes:
                self._descend(position + 1, cost + self.records[index].nbytes * bank.cost_per_byte, contents)
            contents[place].pop()

    def _place(self, cost: int, contents: Sequence[Sequence[int]]) -> None:
        bank_of, offsets = [0] * len(self.records), [0] * len(self.records)
        for bank, members in enumerate(contents):
            inside = [self.records[i] for i in members]
            result = best(inside, clock=self.clock)
            if height(inside, result.solution) > self.banks[bank].bytes:
                clock = Budget(max(0.25 * self.clock.left_s(), 0.01)).start()
                try:
                    result = exact(inside, clock=clock, capacity=self.banks[bank].bytes)
                except InfeasibleError:
                    return
                if height(inside, result.solution) > self.banks[bank].bytes:
                    self.decided = False
                    return
            for i, offset in zip(members, result.solution, strict=True):
                bank_of[i], offsets[i] = bank, offset
        self.best = (cost, tuple(bank_of), tuple(offsets))


def check_banks(records: Sequence[Record], banks: Sequence[Bank], plan: Banked) -> None:
    """Raise InvalidPlan if a bank overflows, two records of one collide, or the cost is not what it says. O(n²)."""
    for index, bank in enumerate(banks):
        members = [i for i, place in enumerate(plan.bank_of) if place == index]
        check_placement([records[i] for i in members], [plan.offsets[i] for i in members], capacity=bank.bytes)
    if not all(0 <= place < len(banks) for place in plan.bank_of) or len(plan.bank_of) != len(records):
        raise InvalidPlan(f"{len(records)} records, {len(plan.bank_of)} of them in {len(banks)} banks")
    cost = sum(record.nbytes * banks[place].cost_per_byte for record, place in zip(records, plan.bank_of, strict=True))
    if cost != plan.evidence.value:
        raise InvalidPlan(f"the plan says it costs {plan.evidence.value}, its records cost {cost}")
