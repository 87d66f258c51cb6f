"""The width of a graph: the most operators of which none needs another's result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from downset.lattice import successor_lists

__all__ = ["width"]

Lists = Sequence[Sequence[int]]


def width(predecessors: Lists) -> int:
    """The most operators of which none needs another's result. Operators must be in a topological order.

    By Dilworth's theorem this is the fewest paths that cover all operators, where paths may share operators. Such a
    cover is a flow of at least one through every operator. A greedy cover is reduced along shortest augmenting paths, a
    level graph at a time (Dinic). O(V + E) memory. The time is at least O((V + E) · phases): seconds for 100,000
    operators.
    """
    cover = _Cover(predecessors)
    while cover.reduce():
        pass
    return cover.paths


class _Cover:
    """Paths that cover every operator. Node 2v is the entry of operator v, node 2v + 1 its exit."""

    def __init__(self, predecessors: Lists) -> None:
        count = len(predecessors)
        self._after = successor_lists(predecessors)
        self._before = predecessors
        self._through = [1] * count
        self._along: list[dict[int, int]] = [{} for _ in range(count)]  # by operator: paths from each predecessor
        self._ends, self._starts = [0] * count, [0] * count
        self.paths = 0
        for operator, before in enumerate(predecessors):
            open_end = next((earlier for earlier in before if self._ends[earlier]), None)
            if open_end is None:
                self._starts[operator] = 1
                self.paths += 1
            else:
                self._ends[open_end] -= 1
                self._along[operator][open_end] = 1
            self._ends[operator] = 1

    def _nodes_after(self, node: int) -> Iterator[int]:
        """The nodes to which an augmenting path may go: forward along any edge, backward where flow can be removed."""
        operator = node // 2
        if node % 2:
            if self._through[operator] > 1:
                yield 2 * operator
            for later in self._after[operator]:
                yield 2 * later
        else:
            yield 2 * operator + 1
            for earlier, flow in list(self._along[operator].items()):
                if flow:
                    yield 2 * earlier + 1

    def _levels(self) -> list[int]:
        """By node: steps from the nearest end of a path; -1 where the search stopped before it."""
        level = [-1] * (2 * len(self._before))
        front = [2 * operator + 1 for operator, ends in enumerate(self._ends) if ends]
        for node in front:
            level[node] = 0
        depth, arrived = 0, False
        while front and not arrived:
            depth += 1
            following = []
            for node in front:
                for other in self._nodes_after(node):
                    if level[other] < 0:
                        level[other] = depth
                        following.append(other)
                        arrived = arrived or bool(other % 2 == 0 and self._starts[other // 2])
            front = following
        return level

    def reduce(self) -> bool:
        """Join ends of paths to starts along shortest augmenting paths. Returns whether there are fewer paths now."""
        level, before = self._levels(), self.paths
        ways: dict[int, Iterator[int]] = {}
        for operator, ends in enumerate(self._ends):
            for _ in range(ends):
                self._join(2 * operator + 1, level, ways)
        return self.paths < before

    def _join(self, end: int, level: list[int], ways: dict[int, Iterator[int]]) -> None:
        stack = [end]
        while stack:
            node = stack[-1]
            if node % 2 == 0 and self._starts[node // 2]:
                break
            if node not in ways:
                ways[node] = self._nodes_after(node)
            other = next((other for other in ways[node] if level[other] == level[node] + 1), None)
            if other is None:
                stack.pop()
            elif self._passable(node, other):
                stack.append(other)
        if not stack:
            return
        for node, other in pairwise(stack):
            self._pass(node, other)
            ways[node] = chain((other,), ways[node])  # another augmenting path may use this edge again
        self._starts[stack[-1] // 2] -= 1
        self._ends[end // 2] -= 1
        self.paths -= 1

    def _passable(self, node: int, other: int) -> bool:
        """Whether the edge is forward, or backward with flow that can be removed."""
        one, two = node // 2, other // 2
        if one == two:
            return node % 2 == 0 or self._through[one] > 1
        return node % 2 == 1 or self._along[one].get(two, 0) > 0

    def _pass(self, node: int, other: int) -> None:
        one, two = node // 2, other // 2
        if one == two:
            self._through[one] += 1 if node % 2 == 0 else -1
        elif node % 2:
            self._along[two][one] = self._along[two].get(one, 0) + 1
        else:
            self._along[one][two] -= 1
