"""Executing operators one by one: the incremental form of `liveness`, which every order planner in Python uses.

`liveness.live_bytes` and `transient_bytes` define these numbers in O(storages). Here a step costs O(storages that the
operator touches). Property tests check that both agree.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset.lattice import bits, masks, successor_lists
from downset.memory.liveness import OrderProblem, Storage

__all__ = ["SearchSpace"]


class SearchSpace:
    """A problem with its storages indexed by the operators that touch them. Sets of operators are masks; all of them
    together take O(V²) bits.

    With `backward` the orders are read from their ends. Operator v gets the number count-1-v. A storage is allocated by
    the first operator that reads it and freed by the last that produces it. A downset here is the complement of one of
    the problem, with the same live bytes, and each operator has the same transient between the same two sets. So the
    least peaks are equal, and each order is the reverse of one of the problem.
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
        # By operator, for each storage that it produces (consumes): bytes, and the mask of all producers (consumers).
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
        """(transient, live bytes after it) of a ready operator that runs after `downset`, where `live` bytes are live.
        O(storages that the operator touches)."""
        bit = 1 << operator
        allocated = sum(nbytes for nbytes, producers in self._produced[operator] if not producers & downset)
        reused = 0
        for candidate, nbytes in self.problem.candidates(operator):
            # `operator` must read it last: all other readers ran before it, or none of them where `backward`
            others = self._readers[candidate] & ~bit
            if (others & downset if self.backward else others & ~downset) == 0:
                reused = max(reused, nbytes)
        transient = live + allocated - reused
        after = downset | bit
        freed = sum(nbytes for nbytes, consumers in self._consumed[operator] if not consumers & ~after)
        return transient, live + allocated - freed

    def open(self, downset: int, ready: int, operator: int) -> int:
        """The mask of ready operators after `operator` ran; `downset` includes it, `ready` is the mask before."""
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
        """An order of this space as an order of the given problem: reversed and renumbered where `backward`."""
        return tuple(self.count - 1 - v for v in reversed(steps)) if self.backward else tuple(steps)


def _turned(operators: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(count - 1 - v for v in reversed(operators))


def _reversed(problem: OrderProblem) -> OrderProblem:
    """The backward problem. It cannot state when an operator may run in place; `step` decides that."""
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
        predecessors,
        storages,
        tuple(reversed(problem.in_place)),
        problem.floor_bytes,
        tuple(reversed(problem.in_place_bytes)),
    )
