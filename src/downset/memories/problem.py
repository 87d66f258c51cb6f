"""The problem of fast memory with slow memory behind it: what each operator accesses, and what moves and accesses cost.

An operator finds each of its operands in fast memory, or accesses it directly in slow memory. A *storage* that stays in
fast memory from one access to the next takes its room at every position from the one to the other, both included. It
comes from slow memory by a load, and goes there by a store unless a valid copy lies there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

from downset import native
from downset.errors import InfeasibleError, UsageError

if TYPE_CHECKING:
    from downset import _native

__all__ = ["Access", "MemoriesProblem", "MemoryStorage", "Whereabouts", "check_problem", "native_problem"]


class Whereabouts(IntEnum):
    """Where a storage is before the first operator, or has to be after the last."""

    NOWHERE = 0
    """An operator makes it; no operator needs it any more."""
    SLOW = 1
    EITHER = 2
    """Where the plan says, at no cost."""
    FAST = 3


@dataclass(frozen=True, slots=True)
class Access:
    """An operator's access to a storage. `direct_cost`: what an access in slow memory costs; None: none is allowed.
    `direct_bytes`: what the kernel then reads or writes."""

    storage: int
    writes: bool
    direct_cost: int | None
    direct_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemoryStorage:
    """`room_bytes`: what it takes in fast memory; `nbytes`: what a move copies."""

    nbytes: int
    room_bytes: int
    load_cost: int
    store_cost: int
    begins: Whereabouts = Whereabouts.NOWHERE
    ends: Whereabouts = Whereabouts.NOWHERE


@dataclass(frozen=True)
class MemoriesProblem:
    """The input of a planner. `predecessors[v]`: the operators that v waits for, ascending, all before v.
    `accesses[v]`: each storage once, what v reads before what it writes. `workspace[v]`: bytes of fast memory that v
    takes in addition to its operands. `fast_bytes`: the capacity. Costs are whole numbers."""

    predecessors: tuple[tuple[int, ...], ...]
    storages: tuple[MemoryStorage, ...]
    accesses: tuple[tuple[Access, ...], ...]
    workspace: tuple[int, ...]
    fast_bytes: int

    def __repr__(self) -> str:
        return (
            f"<MemoriesProblem: {len(self.predecessors)} operators, {len(self.storages)} storages, {self.fast_bytes} B>"
        )

    def need_bytes(self, operator: int) -> int:
        """The bytes of fast memory that the operator needs in any case: workspace, and operands that it may not
        access in slow memory."""
        bound = (self.storages[one.storage].room_bytes for one in self.accesses[operator] if one.direct_cost is None)
        return self.workspace[operator] + sum(bound)

    def within(self, fast_bytes: int) -> MemoriesProblem:
        """The same with another capacity."""
        return replace(self, fast_bytes=fast_bytes)

    @cached_property
    def compiled(self) -> _native.MemoriesProblem:
        """The native module's copy."""
        return native_problem(self)


def native_problem(problem: MemoriesProblem) -> _native.MemoriesProblem:
    """The problem as the native module takes it; a direct access that is not allowed costs -1 there."""
    return native.compiled.MemoriesProblem(
        [list(before) for before in problem.predecessors],
        list(problem.workspace),
        [[one.room_bytes, one.load_cost, one.store_cost, int(one.begins), int(one.ends)] for one in problem.storages],
        [
            [(one.storage, one.writes, -1 if one.direct_cost is None else one.direct_cost) for one in accesses]
            for accesses in problem.accesses
        ],
        problem.fast_bytes,
    )


MOST = 1 << 48
"""Costs and bytes add up to less."""


def check_problem(problem: MemoriesProblem, names: Sequence[str] = ()) -> None:
    """Raise InfeasibleError where an operator needs more fast memory than there is, which no order changes;
    UsageError for sizes and costs whose sum no search counts. `names`: of the operators, for messages."""
    total = sum(one.room_bytes + one.load_cost + one.store_cost for one in problem.storages)
    for accesses in problem.accesses:
        total += sum((one.direct_cost or 0) for one in accesses)
        total += sum(problem.storages[one.storage].load_cost for one in accesses)
        total += sum(problem.storages[one.storage].store_cost for one in accesses)
    if total >= MOST or problem.fast_bytes >= MOST:
        raise UsageError(f"sizes times prices add up to {total:,}; at most {MOST:,} are counted: give smaller prices")
    needs = [problem.need_bytes(operator) for operator in range(len(problem.predecessors))]
    worst = max(range(len(needs)), key=lambda operator: (needs[operator], -operator), default=None)
    if worst is not None and needs[worst] > problem.fast_bytes:
        name = names[worst] if names else f"operator {worst}"
        raise InfeasibleError(
            f"{name} needs {needs[worst]:,} bytes of fast memory for its operands and workspace, and "
            f"{problem.fast_bytes:,} are given; {needs[worst]:,} bytes are enough",
            figures={"limit_bytes": problem.fast_bytes, "least_bytes": needs[worst]},
        )
