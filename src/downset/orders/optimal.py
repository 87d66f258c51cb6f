"""The least peak over all orders, proven: best-first search on the max-join over downsets.

Source: docs/tour (why the optimum is fast); it replaces the soft budget of "Ordering Chaos", section 3.2: taking the
    downset of least peak first never expands one above the optimum, so no budget has to be guessed.
Names: a *state* is a downset with the least peak of any way found to it; to *commit* is to run a ready operator now.
Complexity: O(states · ready) heap steps; states are the downsets below the optimum that no commit skips.
Deviations: an operator that fits under the state's own peak and does not raise live bytes runs without branching. Live
    bytes are submodular, so in any way on from here it can be moved to the front without raising any transient.
    Greedy orders come first and a beam when the search is long; whatever ends it, the best order known is returned, and
    the bound is the peak of the best state still open. States start at the bound of `bound.py`, which lets more of them
    commit; the Python engine starts without it. Operators comparable with all others split the search: states smaller
    than such a downset are dropped once it is reached.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import replace

from downset.errors import UsageError
from downset.lattice import ancestors, bits, descendants
from downset.liveness import OrderProblem
from downset.native import native_module
from downset.orders.beam import beam
from downset.orders.bound import closure_bound
from downset.orders.dfs import dfs
from downset.orders.greedy import greedy
from downset.orders.kahn import kahn
from downset.orders.native_form import flat
from downset.orders.search_space import SearchSpace
from downset.plans import Found

__all__ = ["best_first", "optimal"]

_QUICK = 20_000
"""States after which a search counts as long: networks take hundreds or thousands."""
_STATES = 1_000_000_000
_BYTES = 2**29
"""The native search holds half a GiB of states, and as much again while its tables grow."""


def optimal(
    problem: OrderProblem, *, time_limit_s: float = 10.0, engine: str = "native", state_limit: int = _STATES
) -> Found:
    """An order of least peak, with proof if the search ends within its limits; else the best known and a bound.

    Never above the file's order, Kahn's, depth-first, greedy and beam. `engine`: "native", or "python", its twin.
    Raises UnsupportedError where the native module is not built.
    """
    if engine not in ("native", "python"):
        raise UsageError(f"unknown engine {engine!r}; choose native or python")
    deadline = time.perf_counter() + time_limit_s
    space = SearchSpace(problem)
    count = len(problem.predecessors)
    fast = greedy(problem, time_limit_s=0.2 * time_limit_s)
    incumbents = [tuple(range(count)), kahn(problem).solution, dfs(problem).solution, fast.solution]
    best = min(incumbents, key=space.peak)

    def left_s() -> float:
        return max(deadline - time.perf_counter(), 0.001)

    def search(bound: int, states: int) -> tuple[tuple[int, ...] | None, int, int]:
        if engine == "python":
            return best_first(space, bound, space.peak(best), deadline, states)
        found, proven, expanded = native_module().best_first(
            *flat(replace(problem, floor_bytes=bound)), space.peak(best), left_s(), states, _BYTES
        )
        return tuple(found) or None, proven, expanded

    bound = problem.floor_bytes
    if engine == "native":
        bound = closure_bound(problem, time_limit_s=0.2 * left_s())
    steps, bound, states = search(bound, min(_QUICK, state_limit))
    if steps is None and bound < space.peak(best) and states < state_limit:
        # Beam search costs more than most searches in whole, so it waits until one proves long; then it pays twice:
        # as an answer, and because nothing above it needs to be kept.
        found = beam(problem, time_limit_s=0.3 * left_s(), engine=engine)
        best = min(best, found.solution, key=space.peak)
        steps, bound, more = search(bound, state_limit - states)
        states += more
    best = best if steps is None else steps
    value = space.peak(best)
    bound = max(min(bound, value), problem.floor_bytes)
    return Found(best, bound, bound == value, states)


def best_first(
    space: SearchSpace, bound: int, incumbent: int, deadline: float, state_limit: int
) -> tuple[tuple[int, ...] | None, int, int]:
    """(an order better than `incumbent` bytes, or None; a bound on every order; states expanded).

    `bound` is one that is known already: the higher it is, the more operators are committed. The specification of the
    native search of the same name: no order below the incumbent exists if it ends with bound == incumbent.
    """
    floor = max(space.start_bytes, bound)
    start = (floor, 0, 0, space.start_bytes, space.start_ready)
    heap = [start]
    came_from: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    reached = {0: floor}
    closed: set[int] = set()
    narrow, passed = _narrow_sizes(space), 0
    while heap:
        peak, _, downset, live, ready = heapq.heappop(heap)
        if downset in closed or downset.bit_count() < passed:
            continue
        if downset.bit_count() in narrow:
            passed = downset.bit_count()
        if peak >= incumbent:
            return None, incumbent, len(closed)
        if len(closed) >= state_limit or (len(closed) % 64 == 0 and time.perf_counter() > deadline):
            return None, peak, len(closed)
        closed.add(downset)
        if downset == space.full:
            return _way(came_from, downset), peak, len(closed)
        origin, committed = downset, []
        while True:
            choice = _commit(space, downset, live, ready, peak)
            if choice is None:
                break
            operator, live = choice
            downset |= 1 << operator
            ready = space.open(downset, ready, operator)
            committed.append(operator)
        if committed:
            if reached.get(downset, peak + 1) > peak:
                reached[downset] = peak
                came_from[downset] = (origin, tuple(committed))
                heapq.heappush(heap, (peak, -downset.bit_count(), downset, live, ready))
            continue
        for operator in bits(ready):
            transient, left = space.step(downset, live, operator)
            larger, larger_peak = downset | 1 << operator, max(peak, transient)
            if larger_peak < incumbent and reached.get(larger, larger_peak + 1) > larger_peak:
                reached[larger] = larger_peak
                came_from[larger] = (downset, (operator,))
                opened = space.open(larger, ready, operator)
                heapq.heappush(heap, (larger_peak, -larger.bit_count(), larger, left, opened))
    return None, incumbent, len(closed)


def _narrow_sizes(space: SearchSpace) -> set[int]:
    """Sizes at which there is one downset only, because an operator is comparable with all others: every order passes
    through it, and once it is reached at least cost nothing smaller matters."""
    above, below = ancestors(space.predecessors), descendants(space.predecessors)
    found = set()
    for before, after in zip(above, below, strict=True):
        if before.bit_count() + after.bit_count() == space.count - 1:
            found |= {before.bit_count(), before.bit_count() + 1}
    return found


def _commit(space: SearchSpace, downset: int, live: int, ready: int, peak: int) -> tuple[int, int] | None:
    """The first ready operator that may run at once, and the live bytes after it."""
    for operator in bits(ready):
        transient, left = space.step(downset, live, operator)
        if transient <= peak and left <= live:
            return operator, left
    return None


def _way(came_from: dict[int, tuple[int, tuple[int, ...]]], downset: int) -> tuple[int, ...]:
    steps: list[int] = []
    while downset:
        downset, ran = came_from[downset]
        steps += reversed(ran)
    return tuple(reversed(steps))
