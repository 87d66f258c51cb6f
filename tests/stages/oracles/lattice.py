"""The oracle of native/stages/lattice.hpp, in dictionaries of masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from downset.lattice import descendants, downsets, successors
from downset.stages.endings import EndingsName
from downset.stages.problem import groups_of

__all__ = ["StageLattice"]


class StageLattice:
    """Downsets, their endings, and the cheapest chain of endings. O(pairs) memory."""

    def __init__(self, predecessors: Sequence[int], *, max_ops: int, max_groups: int, endings: EndingsName) -> None:
        self._predecessors = tuple(predecessors)
        self._after = successors(self._predecessors)
        self._below = descendants(self._predecessors)
        self._limits = max_ops, max_groups, endings == "ios"
        self._downsets = list(downsets(self._predecessors))
        self._pairs: dict[int, list[tuple[int, int]]] = {}  # downset -> (stage by index, downset before it)
        self._index: dict[int, int] = {}
        for downset in self._downsets:
            pairs = self._pairs.setdefault(downset, [])
            for ending in self._endings(downset):
                pairs.append((self._index.setdefault(ending, len(self._index)), downset & ~ending))

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
