"""PyTorch inductor's memory ordering: the best of the file's order and three heuristics.

Source: the pass `reorder_for_peak_memory` of PyTorch's inductor, whose `lpmf` is the rule of "Buffer memory
    optimization for video codec application modeled in Simulink" (DAC 2006).
Names: a scheduler node is an operator, a buffer a storage, mem1 the transient, mem2 the live bytes after an operator.
Complexity: `lpmf` O(V · ready · storages touched), `bfs` O(E log V), `dfs_by_size` O(E log V).
Deviations: bytes are counted by the memory model, also for operators that run in place or add to a storage that another
    operator began. Where a graph has neither, each order equals inductor's (tests compare them). Inductor's rule for
    large buffers, which is off by default, is left out. Past the time limit `lpmf` goes on in the file's order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from downset.budget import Clock
from downset.lattice import bits, successor_lists
from downset.memory.liveness import OrderProblem
from downset.orders.search_space import SearchSpace
from downset.results.plans import Found

__all__ = ["HEURISTICS", "bfs", "inductor", "lpmf"]


def inductor(problem: OrderProblem, *, clock: Clock) -> Found:
    """The order of least peak of four: the file's and those of the three heuristics. Of equals the first, as in
    inductor."""
    space = SearchSpace(problem)
    tried = (lpmf(problem, clock), bfs(problem), dfs_by_size(problem))
    return Found(min((tuple(range(space.count)), *tried), key=space.peak), problem.floor_bytes)


def lpmf(problem: OrderProblem, clock: Clock | None = None) -> tuple[int, ...]:
    """Least peak memory first. Of the ready operators that do not exceed the largest transient so far, run the one
    after which the fewest bytes are live; if all exceed it, the one with the smallest transient. Of equals, the lowest
    index."""
    space = SearchSpace(problem)
    live, ready, downset = space.start_bytes, space.start_ready, 0
    largest = max(live, sum(storage.nbytes for storage in problem.storages if storage.kept))
    steps: list[int] = []
    while ready:
        if clock is not None and clock.left_s() == 0:
            return (*steps, *bits(space.full & ~downset))
        ranked = []
        for operator in bits(ready):
            transient, left = space.step(downset, live, operator)
            ranked.append((transient if transient > largest else 0, left, operator, transient))
        _, live, chosen, transient = min(ranked)
        largest = max(largest, transient)
        downset |= 1 << chosen
        ready = space.open(downset, ready, chosen)
        steps.append(chosen)
    return tuple(steps)


def bfs(problem: OrderProblem) -> tuple[int, ...]:
    """Breadth first: run the ready operator whose predecessors ran earliest, compared as sorted lists of steps."""
    after = successor_lists(problem.predecessors)
    missing = [len(before) for before in problem.predecessors]
    ran_at = [0] * len(missing)
    queue: list[tuple[list[int], int]] = [([], operator) for operator, count in enumerate(missing) if count == 0]
    steps: list[int] = []
    while queue:
        _, operator = heapq.heappop(queue)
        ran_at[operator] = len(steps)
        steps.append(operator)
        for later in after[operator]:
            missing[later] -= 1
            if missing[later] == 0:
                waited_for = sorted(ran_at[earlier] for earlier in problem.predecessors[later])
                heapq.heappush(queue, (waited_for, later))
    return tuple(steps)


def dfs_by_size(problem: OrderProblem) -> tuple[int, ...]:
    """Depth first from operators to their predecessors; those that read and write the fewest bytes come first."""
    count = len(problem.predecessors)
    touched_bytes = [0] * count
    for storage in problem.storages:
        for operator in {*storage.producers, *storage.consumers}:
            touched_bytes[operator] += storage.nbytes

    def rank(operator: int) -> tuple[int, int]:
        return touched_bytes[operator], operator

    seen = [False] * count
    steps: list[int] = []
    stack = sorted(range(count), key=rank, reverse=True)
    while stack:
        operator = stack.pop()
        if operator < 0:  # all predecessors of ~operator have been visited
            steps.append(~operator)
        elif not seen[operator]:
            seen[operator] = True
            stack.append(~operator)
            stack += sorted(problem.predecessors[operator], key=rank, reverse=True)
    return tuple(steps)


HEURISTICS: dict[str, Callable[..., tuple[int, ...]]] = {"lpmf": lpmf, "bfs": bfs, "dfs": dfs_by_size}
