"""Executing operators one by one: the incremental form of `liveness`, shared by every order planner in Python.

`liveness.live_bytes` and `transient_bytes` define these numbers in O(storages); here a step costs only the storages the
operator touches. Property tests hold the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset.lattice import bits, successors
from downset.liveness import OrderProblem, Storage

__all__ = ["SearchSpace"]


class SearchSpace:
    """A problem with its storages indexed by the operators that touch them. Downsets are masks."""

    def __init__(self, problem: OrderProblem) -> None:
        count = len(problem.predecessors)
        self.problem = problem
        self.count = count
        self.full = (1 << count) - 1
        self.predecessors = problem.predecessors
        self.successors = successors(problem.predecessors)
        self._produced: list[list[Storage]] = [[] for _ in range(count)]
        self._consumed: list[list[Storage]] = [[] for _ in range(count)]
        for storage in problem.storages:
            for operator in bits(storage.producers):
                self._produced[operator].append(storage)
            if not storage.kept:
                for operator in bits(storage.consumers):
                    self._consumed[operator].append(storage)
        self.start_bytes = sum(storage.nbytes for storage in problem.storages if storage.producers == 0)
        self.start_ready = sum(1 << v for v in range(count) if problem.predecessors[v] == 0)

    def step(self, downset: int, live: int, operator: int) -> tuple[int, int]:
        """(transient, live bytes after) of executing a ready operator where `live` bytes are live."""
        bit = 1 << operator
        allocated = sum(s.nbytes for s in self._produced[operator] if not s.producers & downset)
        transient = live + allocated
        for candidate in self.problem.candidates(operator):
            storage = self.problem.storages[candidate]
            if storage.consumers & ~downset == bit:
                transient -= storage.nbytes
                break
        after = downset | bit
        freed = sum(s.nbytes for s in self._consumed[operator] if not s.consumers & ~after)
        return transient, live + allocated - freed

    def open(self, downset: int, ready: int, operator: int) -> int:
        """The ready mask after `operator`, which completes `downset`, ran."""
        ready &= ~(1 << operator)
        for later in bits(self.successors[operator]):
            if not self.predecessors[later] & ~downset:
                ready |= 1 << later
        return ready

    def peak(self, steps: Sequence[int]) -> int:
        """The largest transient of an order; O(steps + storages touched)."""
        downset, live, peak = 0, self.start_bytes, self.problem.floor_bytes
        for operator in steps:
            transient, live = self.step(downset, live, operator)
            peak = max(peak, transient)
            downset |= 1 << operator
        return peak
