"""PyTorch inductor's memory ordering: the best of the file's order and three heuristics.

Source: the pass `reorder_for_peak_memory` of PyTorch's inductor, whose `lpmf` is the rule of "Buffer memory
    optimization for video codec application modeled in Simulink" (DAC 2006).
Names: a scheduler node is an operator, a buffer a storage, mem1 the transient, mem2 the live bytes after an operator.
Complexity: `lpmf` O(V · ready · storages touched), `bfs` O(E log V), `dfs_by_size` O(E log V).
Deviations: sizes are those of the memory model, so an operator that runs in place or writes where another began needs
    what the model says; where neither occurs each order is inductor's own (tests hold it to that). Inductor's rule for
    large buffers, off by default, is left out. Past the time limit `lpmf` goes on in the file's order.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable

from downset.lattice import bits, successor_lists
from downset.memory.liveness import OrderProblem
from downset.orders.search_space import SearchSpace
from downset.plans import Found

__all__ = ["HEURISTICS", "bfs", "dfs_by_size", "inductor", "lpmf"]


def inductor(problem: OrderProblem, *, time_limit_s: float = 10.0) -> Found:
    """The order of least peak of the file's and the three; the earlier one where they tie, as inductor does."""
    deadline = time.perf_counter() + time_limit_s
    space = SearchSpace(problem)
    tried = (heuristic(problem, deadline=deadline) for heuristic in HEURISTICS.values())
    return Found(min((tuple(range(space.count)), *tried), key=space.peak), problem.floor_bytes)


def lpmf(problem: OrderProblem, *, deadline: float = float("inf")) -> tuple[int, ...]:
    """Least peak memory first: while some ready operator fits below the largest transient so far, the one of those that
    leaves the least live; else the one that needs the least. The lowest index among equals."""
    space = SearchSpace(problem)
    live, ready, downset = space.start_bytes, space.start_ready, 0
    largest = max(live, sum(storage.nbytes for storage in problem.storages if storage.kept))
    steps: list[int] = []
    while ready:
        if time.perf_counter() > deadline:
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


def bfs(problem: OrderProblem, *, deadline: float = float("inf")) -> tuple[int, ...]:
    """First in, first out: the ready operator whose predecessors ran earliest, compared as sorted lists of steps."""
    del deadline
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


def dfs_by_size(problem: OrderProblem, *, deadline: float = float("inf")) -> tuple[int, ...]:
    """Depth first from operators to what they wait for; who reads and writes the fewest bytes is visited first."""
    del deadline
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
        if operator < 0:  # all that ~operator waits for has been visited
            steps.append(~operator)
        elif not seen[operator]:
            seen[operator] = True
            stack.append(~operator)
            stack += sorted(problem.predecessors[operator], key=rank, reverse=True)
    return tuple(steps)


HEURISTICS: dict[str, Callable[..., tuple[int, ...]]] = {"lpmf": lpmf, "bfs": bfs, "dfs": dfs_by_size}
