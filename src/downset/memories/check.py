"""The laws of a plan for two memories, checked by running it: what lies where, which copy is valid. Imports no
planner."""

from __future__ import annotations

from downset.arenas.check_records import check_placement
from downset.errors import InvalidPlan
from downset.memories.problem import MemoriesProblem, Whereabouts
from downset.memory.records import Record
from downset.orders.check import verify_steps
from downset.results.memories import MemoriesPlan, Move, Residence

__all__ = ["check_memories"]


def check_memories(problem: MemoriesProblem, plan: MemoriesPlan, *, scale: int = 1) -> None:
    """Raise InvalidPlan unless the plan runs: operators in a lawful order, every operand where the plan says it is and
    valid there, residences within the capacity and apart, and the bytes and the cost that it states. `scale`: units of
    the problem's costs in one of the plan's. O(positions · residences)."""
    verify_steps(problem.predecessors, plan.order)
    machine = _Machine(problem, plan)
    for position in range(len(plan.order)):
        machine.move(position)
        machine.run(position)
    machine.move(len(plan.order))
    machine.finish()
    stated = (plan.moved_bytes, plan.direct_bytes, plan.evidence.value)
    counted = (machine.moved_bytes, machine.direct_bytes, machine.cost / scale)
    if stated != counted:
        raise InvalidPlan(f"the plan states {stated} (moved, direct, cost), and running it takes {counted}")
    if plan.evidence.bound > plan.evidence.value:
        raise InvalidPlan(f"the plan states the bound {plan.evidence.bound} above its cost {plan.evidence.value}")
    _check_fast(problem, plan)
    _check_slow(problem, plan, machine)


class _Machine:
    """Both memories while the plan runs. `slow` holds the storages with a valid copy in slow memory, `fast` those with
    a valid value in fast memory."""

    def __init__(self, problem: MemoriesProblem, plan: MemoriesPlan) -> None:
        self.problem, self.plan = problem, plan
        self.fast: set[int] = set()
        self.slow: set[int] = set()
        self.in_slow: dict[int, list[int]] = {}
        self.moved_bytes = self.direct_bytes = self.cost = 0
        self.moves_at: dict[int, list[Move]] = {}
        for move in plan.moves:
            self.moves_at.setdefault(move.position, []).append(move)
        self.at: dict[int, list[Residence]] = {}
        for residence in plan.residences:
            if not 0 <= residence.start < residence.stop <= len(plan.order):
                raise InvalidPlan(f"{residence} does not lie within {len(plan.order)} positions")
            self.at.setdefault(residence.storage, []).append(residence)
        for index, storage in enumerate(problem.storages):
            begins = any(one.start == 0 for one in self.at.get(index, ()))
            if storage.begins == Whereabouts.FAST or (storage.begins == Whereabouts.EITHER and begins):
                self.fast.add(index)
            elif storage.begins != Whereabouts.NOWHERE:
                self.slow.add(index)

    def resident(self, storage: int, position: int) -> bool:
        return any(one.start <= position < one.stop for one in self.at.get(storage, ()))

    def move(self, position: int) -> None:
        """The moves before the operator at `position`; then what no residence covers any more is gone."""
        loaded = False
        for move in self.moves_at.get(position, ()):
            storage = self.problem.storages[move.storage]
            if move.nbytes != storage.nbytes or (loaded and not move.into_fast):
                raise InvalidPlan(f"{move} copies other bytes than the storage has, or stores after a load")
            loaded = move.into_fast
            source, target = (self.slow, self.fast) if move.into_fast else (self.fast, self.slow)
            if move.storage not in source:
                raise InvalidPlan(f"{move} copies a value that is not there")
            if move.into_fast and not (self.resident(move.storage, position) or position == len(self.plan.order)):
                raise InvalidPlan(f"{move} loads into no residence")
            target.add(move.storage)
            self.in_slow.setdefault(move.storage, []).append(position)
            self.moved_bytes += move.nbytes
            self.cost += storage.load_cost if move.into_fast else storage.store_cost
        if position < len(self.plan.order):
            self.fast = {storage for storage in self.fast if self.resident(storage, position)}

    def run(self, position: int) -> None:
        problem, operator = self.problem, self.plan.order[position]
        for access in problem.accesses[operator]:
            index = access.storage
            here, other = (self.fast, self.slow) if self.resident(index, position) else (self.slow, self.fast)
            fresh = access.writes and index not in self.fast and index not in self.slow
            if index not in here and not fresh:
                raise InvalidPlan(f"operator {operator} at position {position} finds no valid value of storage {index}")
            if here is self.slow:
                if access.direct_cost is None:
                    raise InvalidPlan(f"operator {operator} may not access storage {index} in slow memory")
                self.direct_bytes += access.direct_bytes
                self.cost += access.direct_cost
                self.in_slow.setdefault(index, []).append(position)
            if access.writes:
                here.add(index)
                other.discard(index)

    def finish(self) -> None:
        count = len(self.plan.order)
        touched = {access.storage for accesses in self.problem.accesses for access in accesses}
        for index, storage in enumerate(self.problem.storages):
            held = index in self.fast
            there = {
                Whereabouts.NOWHERE: True,
                Whereabouts.SLOW: index in self.slow,
                Whereabouts.EITHER: index in self.slow or held,
                Whereabouts.FAST: held,
            }[storage.ends]
            if index in touched and not there:
                raise InvalidPlan(f"storage {index} is not where it has to be after position {count}")


def _check_fast(problem: MemoriesProblem, plan: MemoriesPlan) -> None:
    used = list(map(problem.workspace.__getitem__, plan.order))
    for one in plan.residences:
        for position in range(one.start, one.stop):
            used[position] += problem.storages[one.storage].room_bytes
    for position, nbytes in enumerate(used):
        if nbytes > problem.fast_bytes:
            raise InvalidPlan(f"position {position} takes {nbytes} bytes of fast memory, of {problem.fast_bytes}")
    if any(one.offset is None for one in plan.residences):
        return
    records = [
        Record(str(index), one.start, one.stop, problem.storages[one.storage].room_bytes)
        for index, one in enumerate(plan.residences)
    ]
    offsets = [one.offset or 0 for one in plan.residences]
    check_placement(records, offsets, capacity=problem.fast_bytes)
    top = max((offset + record.nbytes for record, offset in zip(records, offsets, strict=True)), default=0)
    if top != plan.fast_bytes:
        raise InvalidPlan(f"the plan states {plan.fast_bytes} bytes of fast memory, its residences end at {top}")


def _check_slow(problem: MemoriesProblem, plan: MemoriesPlan, machine: _Machine) -> None:
    offsets = dict(plan.slow_offsets)
    if set(offsets) != set(machine.in_slow):
        raise InvalidPlan(
            f"storages {sorted(set(offsets) ^ set(machine.in_slow))} have an offset in slow memory or not"
        )
    records = []
    for index in sorted(offsets):
        storage, positions = problem.storages[index], machine.in_slow[index]
        start = 0 if storage.begins != Whereabouts.NOWHERE else min(positions)
        keeps = storage.ends in (Whereabouts.SLOW, Whereabouts.EITHER)
        stop = len(plan.order) if keeps else max(positions)
        records.append(Record(str(index), start, stop + 1, storage.room_bytes))
    check_placement(records, [offsets[index] for index in sorted(offsets)], capacity=plan.slow_bytes)
