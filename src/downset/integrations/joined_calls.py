"""Models kernels of loops that Inductor's code for processors joins into one call, and finds orders in which calls hold
less.

Between two calls of a library all kernels of loops are one C++ function. Their results are allocated before it is
called, and nothing that they read is freed before it returns. So an order with a lower peak kernel by kernel may hold
more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter

from downset.memory.liveness import OrderProblem, peak_bytes

__all__ = ["called_bytes", "gathered", "largest_calls"]

_MOVES, _WORK = 200, 60_000
"""The most orders that are tried, and the most operators of all of them together."""


def called_bytes(problem: OrderProblem, steps: Sequence[int], loops: Sequence[bool]) -> list[int]:
    """The bytes that the call of each step holds. `loops[i]`: whether operator i is joined with its neighbours.
    O(steps + storages touched)."""
    return _CallProfile(problem, loops).call_bytes(steps)


def largest_calls(problem: OrderProblem, steps: Sequence[int], loops: Sequence[bool]) -> list[int]:
    """The bytes of `called_bytes` in falling order. Of two orders, the one with the lower list is better."""
    return _ranked(called_bytes(problem, steps, loops))


def gathered(
    problem: OrderProblem,
    steps: Sequence[int],
    loops: Sequence[bool],
    *,
    every_call: bool = False,
    plain: OrderProblem | None = None,
) -> tuple[tuple[int, ...], int]:
    """A better order, and the most bytes that one of its calls holds.

    Kernels of loops move out of the call that holds the most, to an earlier or a later place. With `every_call` they
    move out of other calls too, in falling order, because the real peak may be lower than the problem's. Neither the
    most bytes of a call nor the peak kernel by kernel rises above that of the given order. `plain`: the problem by
    which that peak is counted, if it is another.
    """
    calls, best = _CallProfile(problem, loops), tuple(steps)
    call_bytes = calls.call_bytes(best)
    peak, plain = peak_bytes(problem, best), plain or problem
    limit = peak_bytes(plain, best)
    left = min(_MOVES, _WORK // max(len(best), 1))
    while left > 0 and (every_call or max(call_bytes, default=0) > peak):
        better = None
        rank = _ranked(call_bytes)
        for order in calls.without_largest(best, call_bytes, every_call=every_call):
            left -= 1
            tried = calls.call_bytes(order)
            if _ranked(tried) < rank and peak_bytes(plain, order) <= limit:
                better = order, tried
            if better or left <= 0:
                break
        if better is None:
            break
        best, call_bytes = better
    return best, max(call_bytes, default=0)


class _CallProfile:
    """A problem, read once for many orders."""

    def __init__(self, problem: OrderProblem, loops: Sequence[bool]) -> None:
        self.problem, self.loops = problem, loops
        count = len(problem.predecessors)
        self.made: list[list[int]] = [[] for _ in range(count)]
        self.read: list[list[int]] = [[] for _ in range(count)]
        self.after: list[list[int]] = [[] for _ in range(count)]
        for index, storage in enumerate(problem.storages):
            for operator in storage.producers:
                self.made[operator].append(index)
            for operator in storage.consumers:
                self.read[operator].append(index)
        for operator, before in enumerate(problem.predecessors):
            for earlier in before:
                self.after[earlier].append(operator)
        self.overs = [
            sorted(
                (taken for taken in problem.candidates(operator) if taken[0] in self.read[operator]),
                key=itemgetter(1),
                reverse=True,
            )
            for operator in range(count)
        ]
        """By operator: what it may take over, and how many bytes of it, the most first."""
        self.nbytes = [storage.nbytes for storage in problem.storages]
        self.freed = [0 if storage.kept else storage.nbytes for storage in problem.storages]
        self.begun = [not storage.producers for storage in problem.storages]
        self.readers = [len(storage.consumers) for storage in problem.storages]
        self.start = sum(storage.nbytes for storage in problem.storages if not storage.producers)

    def call_bytes(self, steps: Sequence[int], loops: Sequence[bool] | None = None) -> list[int]:
        """The bytes that the call of each step holds; of each step alone where no operator `loops`."""
        loops = self.loops if loops is None else loops
        results_of, read, overs, nbytes, freed_of = self.made, self.read, self.overs, self.nbytes, self.freed
        begun, waiting = self.begun[:], self.readers[:]
        live, freed, first, last = self.start, 0, 0, len(steps) - 1
        call_bytes: list[int] = []
        for step, operator in enumerate(steps):
            for index in results_of[operator]:
                if not begun[index]:
                    begun[index] = True
                    live += nbytes[index]
            for index, over in overs[operator]:
                if waiting[index] == 1:
                    live -= over
                    freed -= over
                    break
            for index in read[operator]:
                waiting[index] -= 1
                if not waiting[index]:
                    freed += freed_of[index]
            if step == last or not (loops[operator] and loops[steps[step + 1]]):
                call_bytes += [live] * (step + 1 - first)
                live, freed, first = live - freed, 0, step + 1
        return call_bytes

    def without_largest(
        self, steps: Sequence[int], call_bytes: Sequence[int], *, every_call: bool
    ) -> Iterator[tuple[int, ...]]:
        """Orders in which one operator of a call moves ahead of the call or behind it. The call must hold more than
        each of its kernels would alone: the call that holds the most, or with `every_call` all such calls, the largest
        first."""
        alone = self.call_bytes(steps, [False] * len(self.loops))
        runs = [run for run in _runs(steps, self.loops) if call_bytes[run.start] > max(alone[run.start : run.stop])]
        runs.sort(key=lambda run: (-call_bytes[run.start], run.start))
        step_of = {operator: step for step, operator in enumerate(steps)}
        for run in runs if every_call else [run for run in runs if call_bytes[run.start] == max(call_bytes)]:
            for place in run:
                operator = steps[place]
                earliest = max((step_of[other] + 1 for other in self.problem.predecessors[operator]), default=0)
                latest = min((step_of[other] - 1 for other in self.after[operator]), default=len(steps) - 1)
                if earliest < run.start:
                    yield (*steps[:earliest], operator, *steps[earliest:place], *steps[place + 1 :])
                if latest >= run.stop:
                    yield (*steps[:place], *steps[place + 1 : latest + 1], operator, *steps[latest + 1 :])


def _ranked(call_bytes: Sequence[int]) -> list[int]:
    return sorted(call_bytes, reverse=True)


def _runs(steps: Sequence[int], loops: Sequence[bool]) -> list[range]:
    """The steps of each call."""
    starts = [step for step, v in enumerate(steps) if not (step and loops[v] and loops[steps[step - 1]])]
    return [range(start, stop) for start, stop in pairwise([*starts, len(steps)])]
