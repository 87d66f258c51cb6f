"""The steps of `optimal` and `beam` in both engines: compiled, and in the Python that specifies it. Each step works
forward or backward (search_space.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from downset import native
from downset.memory.liveness import OrderProblem
from downset.methods import EngineName, check_engine
from downset.orders.best_first import BestFirst, Outcome
from downset.orders.greedy import greedy_steps
from downset.orders.native_form import native_problem
from downset.orders.python_beam import python_beam
from downset.orders.search_space import SearchSpace

if TYPE_CHECKING:
    from downset import _native

__all__ = ["MANY", "OrderEngine", "OrderSearch", "engine_of"]

MANY = 1 << 62
"""A limit of states that no search reaches."""
_BYTES = 5 * 2**26
"""Bytes of states that one native search may hold, about a third of a GiB; two searches run at a time."""


class OrderSearch(Protocol):
    """See best_first.BestFirst."""

    @property
    def bound(self) -> int: ...
    @property
    def expanded(self) -> int: ...
    @property
    def steps(self) -> Sequence[int]: ...
    def advance(self, bound: int, incumbent: int, seconds: float, states: int, /) -> Outcome: ...


class OrderEngine(Protocol):
    """The steps of a search. Each returns None for an order where a limit came before it was complete. The limits
    `moves`, `states` and `members` count work: ready operators compared, states expanded, operators in a flow."""

    def peak(self, steps: Sequence[int]) -> int: ...
    def greedy(self, *, backward: bool, seconds: float, moves: int = MANY) -> tuple[int, ...] | None: ...
    def beam(
        self, width: int, bound: int, incumbent: int, *, backward: bool, seconds: float, states: int = MANY
    ) -> tuple[tuple[int, ...] | None, int]: ...
    def bound(self, order: Sequence[int], seconds: float, members: int = MANY) -> int: ...
    def pair_bound(self, order: Sequence[int], bound: int, seconds: float, members: int = MANY) -> int: ...
    def search(self, *, backward: bool) -> OrderSearch: ...


class _Native:
    def __init__(self, problem: OrderProblem) -> None:
        self._module = native.compiled
        self._given = native_problem(problem)
        self._forward, self._members, self._all_fixed = self._module.decompose(self._given, relaxed=False)
        self._backward = self._forward.reversed()
        self._parts_of: dict[tuple[int, ...], tuple[int, ...]] = {}

    def _space(self, backward: bool) -> _native.OrderProblem:
        return self._backward if backward else self._forward

    def _operators(self, parts: Sequence[int]) -> tuple[int, ...]:
        """The order of operators of an order of segments."""
        steps = tuple(operator for part in parts for operator in self._members[part])
        self._parts_of[steps] = tuple(parts)
        return steps

    def _parts(self, steps: Sequence[int]) -> Sequence[int]:
        """The order of segments that gave this order of operators, or any."""
        return self._parts_of.get(tuple(steps), range(len(self._members)))

    def peak(self, steps: Sequence[int]) -> int:
        return self._module.order_peak(self._given, steps)

    def merge(self, *, seconds: float, moves: int = MANY) -> tuple[int, ...] | None:
        parts, members = self._forward, self._members
        if not self._all_fixed:
            parts, members, _ = self._module.decompose(self._given, relaxed=True)
        chosen = self._module.greedy(parts, seconds, moves)
        return tuple(operator for part in chosen for operator in members[part]) or None

    def greedy(self, *, backward: bool, seconds: float, moves: int = MANY) -> tuple[int, ...] | None:
        return self._operators(self._module.greedy(self._space(backward), seconds, moves)) or None

    def beam(
        self, width: int, bound: int, incumbent: int, *, backward: bool, seconds: float, states: int = MANY
    ) -> tuple[tuple[int, ...] | None, int]:
        steps, expanded = self._module.beam(self._space(backward), width, bound, incumbent, seconds, states)
        return self._operators(steps) or None, expanded

    def bound(self, order: Sequence[int], seconds: float, members: int = MANY) -> int:
        return self._module.closure_bound(self._forward, self._parts(order), seconds, members)

    def pair_bound(self, order: Sequence[int], bound: int, seconds: float, members: int = MANY) -> int:
        return self._module.pair_bound(self._forward, self._parts(order), bound, seconds, members)

    def search(self, *, backward: bool) -> OrderSearch:
        search = self._module.BestFirst(self._space(backward), _BYTES)
        return _NativeSearch(search, self._operators)


class _NativeSearch:
    def __init__(self, search: _native.BestFirst, operators: Callable[[Sequence[int]], tuple[int, ...]]) -> None:
        self._search, self._operators = search, operators

    @property
    def bound(self) -> int:
        return self._search.bound

    @property
    def expanded(self) -> int:
        return self._search.expanded

    @property
    def steps(self) -> Sequence[int]:
        return self._operators(self._search.steps)

    def advance(self, bound: int, incumbent: int, seconds: float, states: int, /) -> Outcome:
        return Outcome[self._search.advance(bound, incumbent, seconds, states).name]


class _Python:
    def __init__(self, problem: OrderProblem) -> None:
        self._forward, self._backward = SearchSpace(problem), SearchSpace(problem, backward=True)

    def peak(self, steps: Sequence[int]) -> int:
        return self._forward.peak(steps)

    def greedy(self, *, backward: bool, seconds: float, moves: int = MANY) -> tuple[int, ...] | None:
        space = self._backward if backward else self._forward
        steps = greedy_steps(space, time.perf_counter() + seconds, moves)
        return space.given_order(steps) if len(steps) == space.count else None

    def beam(
        self, width: int, bound: int, incumbent: int, *, backward: bool, seconds: float, states: int = MANY
    ) -> tuple[tuple[int, ...] | None, int]:
        deadline = time.perf_counter() + seconds
        return python_beam(self._backward if backward else self._forward, width, bound, incumbent, deadline, states)

    def bound(self, order: Sequence[int], seconds: float, members: int = MANY) -> int:
        del order, seconds, members  # bound.py enumerates downsets: too slow at the start of every search
        return self._forward.problem.floor_bytes

    def pair_bound(self, order: Sequence[int], bound: int, seconds: float, members: int = MANY) -> int:
        del order, seconds, members  # bound.py is too slow for this, too
        return bound

    def search(self, *, backward: bool) -> OrderSearch:
        return BestFirst(self._backward if backward else self._forward)


def engine_of(problem: OrderProblem, engine: EngineName) -> OrderEngine:
    """The engine of that name for a problem. Raises UnsupportedError where the native module is not built, UsageError
    for an unknown engine."""
    check_engine(engine)
    return _Native(problem) if engine == "native" else _Python(problem)
