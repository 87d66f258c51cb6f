"""Endings: the stages that may come last in a downset. This is the specification of `native/stages/lattice.hpp`.

A subset S' of a downset S is an ending if no edge leads from S' to S − S'. Its groups are its connected components.
IOS's published code enumerates fewer endings than its paper defines: only those in which every group is one operator
with all its successors inside S (`single_root`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from downset import clock, native
from downset.errors import UsageError
from downset.lattice import descendants, downsets, successors
from downset.methods import EngineName, check_choice, check_engine
from downset.stages.problem import groups_of

if TYPE_CHECKING:
    from downset import _native

    Lattice: TypeAlias = "StageLattice | _native.StageLattice"

__all__ = ["ENDINGS", "PAIR_LIMIT", "EndingsName", "StageLattice", "stage_lattice"]

EndingsName = Literal["all", "ios"]
ENDINGS: tuple[EndingsName, ...] = get_args(EndingsName)
PAIR_LIMIT = 6_000_000
"""The most (downset, ending) pairs, about twenty bytes each. The largest block of the paper's networks has 3.6
million."""


def stage_lattice(
    predecessors: Sequence[int],
    *,
    max_ops: int = 64,
    max_groups: int = 64,
    endings: EndingsName = "all",
    time_limit_s: float = 60.0,
    engine: EngineName = "native",
) -> Lattice:
    """All downsets and endings of at most 64 units, enumerated by compiled code or (engine="python") by `StageLattice`.

    `predecessors[u]`: mask of the units that unit u waits for. `max_ops`, `max_groups`: the most units in a group and
    groups in an ending. `complete()` of the result is false if `time_limit_s` or PAIR_LIMIT ended the enumeration.
    Raises UsageError for more than 64 units, a limit below one, or an unknown choice of endings or engine.
    """
    if max_ops < 1 or max_groups < 1:
        raise UsageError(
            f"max_ops and max_groups (--max-ops, --max-groups) must be at least 1; given {max_ops} and {max_groups}"
        )
    check_choice("endings", endings, ENDINGS)
    check_engine(engine)
    if len(predecessors) > 64:
        raise UsageError(f"{len(predecessors)} units in one block; at most 64 can be searched: split it")
    make = native.compiled.StageLattice if engine == "native" else StageLattice
    seconds, pairs = clock.compiled_limits(time_limit_s, PAIR_LIMIT)
    lattice = make(predecessors, min(max_ops, 64), min(max_groups, 64), endings == "ios", seconds, pairs)
    clock.spent(lattice.pairs())
    return lattice


class StageLattice:
    """Downsets, their endings, and the cheapest chain of endings; the readable twin of the compiled class. Memory:
    O(pairs)."""

    def __init__(
        self,
        predecessors: Sequence[int],
        max_ops: int,
        max_groups: int,
        single_root: bool,
        seconds: float,
        pair_limit: int,
    ) -> None:
        self._predecessors = tuple(predecessors)
        self._after = successors(self._predecessors)
        self._below = descendants(self._predecessors)
        self._limits = max_ops, max_groups, single_root
        self._complete = True
        self._downsets = list(downsets(self._predecessors))
        self._pairs: dict[int, list[tuple[int, int]]] = {}  # downset -> (stage by index, downset before it)
        self._index: dict[int, int] = {}
        deadline = time.monotonic() + seconds
        count = 0
        for downset in self._downsets:
            pairs = self._pairs.setdefault(downset, [])
            for ending in self._endings(downset):
                pairs.append((self._index.setdefault(ending, len(self._index)), downset & ~ending))
                count += 1
            if count > pair_limit or time.monotonic() > deadline:
                self._complete = False
                return

    def _endings(self, downset: int) -> Iterator[int]:
        max_ops, max_groups, single_root = self._limits
        stack = [(0, downset)]
        while stack:
            taken, undecided = stack.pop()
            if not undecided:
                if taken and len(groups_of(self._predecessors, taken)) <= max_groups:
                    groups = groups_of(self._predecessors, taken)
                    if not single_root or all(self._rooted(group) for group in groups):
                        yield taken
                continue
            unit = undecided.bit_length() - 1
            above = self._above(unit)
            stack.append((taken, undecided & ~above))
            larger = taken | 1 << unit
            if all(len(group) <= max_ops for group in groups_of(self._predecessors, larger)):
                stack.append((larger, undecided & ~(1 << unit)))

    def _above(self, unit: int) -> int:
        return sum(1 << other for other in range(unit) if self._below[other] >> unit & 1) | 1 << unit

    def _rooted(self, group: tuple[int, ...]) -> bool:
        return all(unit == group[0] or self._below[group[0]] >> unit & 1 for unit in group)

    def complete(self) -> bool:
        return self._complete

    def states(self) -> int:
        """The number of downsets, with the empty one."""
        return len(self._downsets)

    def pairs(self) -> int:
        """The number of pairs (S, S') in which S' is an ending of S and not empty."""
        return sum(map(len, self._pairs.values()))

    def stages(self) -> list[int]:
        """The different endings, as masks, in the order they were found."""
        return list(self._index)

    def weigh(self, costs: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Three lists with a value for each stage: the cost of its most expensive group, the sum of the costs of its
        groups, and the number of its groups. `costs` holds a cost for each unit."""
        weights: tuple[list[int], list[int], list[int]] = ([], [], [])
        for stage in self._index:
            sums = [sum(costs[unit] for unit in group) for group in groups_of(self._predecessors, stage)]
            for values, value in zip(weights, (max(sums), sum(sums), len(sums)), strict=True):
                values.append(value)
        return weights

    def schedules(self) -> tuple[int, int]:
        """The number of chains of stages, at most 2¹²⁸ − 1, as (high, low) words of 64 bits."""
        ways = {0: 1}
        for downset in self._downsets[1:]:
            ways[downset] = sum(ways[before] for _, before in self._pairs[downset])
        return divmod(min(ways[self._downsets[-1]], (1 << 128) - 1), 1 << 64)

    def solve(self, prices: Sequence[int]) -> tuple[list[int], int]:
        """The cheapest chain, as indices of stages from first to last, and its price. A price below zero forbids a
        stage. Returns ([], -1) if the prices allow no chain."""
        best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
        for downset in self._downsets[1:]:
            for stage, before in self._pairs[downset]:
                if prices[stage] >= 0 and before in best:
                    cost = best[before][0] + prices[stage]
                    if downset not in best or cost < best[downset][0]:
                        best[downset] = (cost, [*best[before][1], stage])
        cost, chain = best.get(self._downsets[-1], (-1, []))
        return chain, cost
