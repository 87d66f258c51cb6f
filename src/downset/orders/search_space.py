"""Executing operators one by one: the incremental form of `liveness`, shared by every order planner in Python.

`liveness.live_bytes` and `transient_bytes` define these numbers in O(storages); here a step costs only the storages the
operator touches. Property tests hold the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset.lattice import bits, masks, successor_lists
from downset.memory.liveness import OrderProblem, Storage

__all__ = ["SearchSpace"]


class SearchSpace:
    """A problem with its storages indexed by the operators that touch them. Downsets are masks: O(V²) bits.

    `backward`: the same orders read from their ends. Operator v is called count-1-v, a storage is allocated by the
    first of those that read it and freed by the last that produces it. Every downset's complement has the same bytes
    live, and executing v needs the same between the same two sets; so least peaks are equal and orders are each other's
    reverse.
    """

    def __init__(self, problem: OrderProblem, *, backward: bool = False) -> None:
        count = len(problem.predecessors)
        self.backward = backward
        readers = [storage.consumers for storage in problem.storages]
        if backward:
            problem = _reversed(problem)
            readers = [_turned(listed, count) for listed in readers]
        self._readers = masks(readers)
        self.problem = problem
        self.count = count
        self.full = (1 << count) - 1
        self.predecessors = masks(problem.predecessors)
        self.successors = masks(successor_lists(problem.predecessors))
        # By operator: (bytes, the mask of all that produce the storage), or of all that consume it.
        self._produced: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self._consumed: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        for storage in problem.storages:
            touching = [(self._produced, storage.producers)]
            touching += [] if storage.kept else [(self._consumed, storage.consumers)]
            for lists, operators in touching:
                (mask,) = masks([operators])
                for operator in operators:
                    lists[operator].append((storage.nbytes, mask))
        self.start_bytes = sum(storage.nbytes for storage in problem.storages if not storage.producers)
        self.start_ready = sum(1 << v for v in range(count) if not problem.predecessors[v])

    def step(self, downset: int, live: int, operator: int) -> tuple[int, int]:
        """(transient, live bytes after) of executing a ready operator where `live` bytes are live."""
        bit = 1 << operator
        allocated = sum(nbytes for nbytes, producers in self._produced[operator] if not producers & downset)
        transient = live + allocated
        for candidate, nbytes in self.problem.candidates(operator):
            # `operator` reads it last: all others ran before it, or none of them did where time runs backwards
            others = self._readers[candidate] & ~bit
            if (others & downset if self.backward else others & ~downset) == 0:
                transient -= nbytes
                break
        after = downset | bit
        freed = sum(nbytes for nbytes, consumers in self._consumed[operator] if not consumers & ~after)
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

    def given_order(self, steps: Sequence[int]) -> tuple[int, ...]:
        """An order of this space as one of the problem it was made from."""
        return tuple(self.count - 1 - v for v in reversed(steps)) if self.backward else tuple(steps)


def _turned(operators: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(count - 1 - v for v in reversed(operators))


def _reversed(problem: OrderProblem) -> OrderProblem:
    """All of the backward problem but when an operator may run in place, which a problem cannot say."""
    count = len(problem.predecessors)
    storages = tuple(
        Storage(
            storage.nbytes,
            () if storage.kept else _turned(storage.consumers, count),
            _turned(storage.producers, count),
            kept=not storage.producers,
        )
        for storage in problem.storages
    )
    predecessors = tuple(_turned(after, count) for after in reversed(successor_lists(problem.predecessors)))
    return OrderProblem(
        predecessors, storages, tuple(reversed(problem.in_place)), problem.floor_bytes,
        tuple(reversed(problem.in_place_bytes)),
    )  # fmt: skip
