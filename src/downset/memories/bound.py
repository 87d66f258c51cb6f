"""A lower bound on every order: storages that are alive at an operator in every order, and the least peak.

Source: ours.
Names: a storage is *alive* at an operator in every order if an ancestor made it and a descendant reads it. The *least
    peak* P* is the most room that storages take at once, in the order in which that is least.
Complexity: exponential in the storages, cut by a limit of nodes; each node solves a relaxation.
Deviations: of P* bytes, P* less the capacity are outside fast memory at the peak, and each byte costs a store and a
    load at least. Costs are multiples of their greatest common divisor, and the bound is rounded up to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from downset import native
from downset.budget import Clock
from downset.memories.least_peak import peak_problem
from downset.memories.problem import Access, MemoriesProblem, MemoryStorage, Whereabouts
from downset.orders.optimal import optimal

__all__ = ["order_free_bound"]


def order_free_bound(problem: MemoriesProblem, incumbent: int, *, clock: Clock) -> int:
    """A cost that no order stays below, at most the incumbent."""
    seconds, nodes = clock.native(1 << 40)
    bound: int
    bound, visited = native.compiled.memories_bound(problem.compiled, incumbent, 0.7 * seconds, nodes)
    clock.count(visited)
    if bound < incumbent:
        bound = max(bound, _peak_bound(problem, clock))
    unit = _unit(problem)
    return min(incumbent, -(-bound // unit) * unit)


def _unit(problem: MemoriesProblem) -> int:
    costs = [cost for one in problem.storages for cost in (one.load_cost, one.store_cost)]
    direct = [access.direct_cost or 0 for accesses in problem.accesses for access in accesses]
    return gcd(*costs, *direct) or 1


def _peak_bound(problem: MemoriesProblem, clock: Clock) -> int:
    """The bytes outside fast memory at the least peak, at the least cost of a byte."""
    accessed: list[list[Access]] = [[] for _ in problem.storages]
    for accesses in problem.accesses:
        for access in accesses:
            accessed[access.storage].append(access)
    least = [_leaving_cost(storage, of_it) for storage, of_it in zip(problem.storages, accessed, strict=True)]
    dear = [index for index, cost in enumerate(least) if cost > 0 and problem.storages[index].room_bytes]
    if not dear:
        return 0
    # free ones leave: the least peak of the others
    place = {index: number for number, index in enumerate(dear)}
    reduced = replace(
        problem,
        storages=tuple(problem.storages[index] for index in dear),
        accesses=tuple(
            tuple(replace(access, storage=place[access.storage]) for access in accesses if access.storage in place)
            for accesses in problem.accesses
        ),
    )
    peak = optimal(peak_problem(reduced), clock=clock).bound
    over = peak - problem.fast_bytes
    if over <= 0:
        return 0
    cheapest = min(dear, key=lambda index: least[index] / problem.storages[index].room_bytes)
    return -(-over * least[cheapest] // problem.storages[cheapest].room_bytes)


def _leaving_cost(storage: MemoryStorage, accesses: Sequence[Access]) -> int:
    """The least that it costs if the storage is outside fast memory at some operator while it is alive. `accesses`: all
    of this storage."""
    reads = [access for access in accesses if not access.writes]
    writes = [access for access in accesses if access.writes]
    if storage.begins == Whereabouts.SLOW or len(writes) > 1:
        return 0
    out = 0 if storage.begins == Whereabouts.EITHER else storage.store_cost
    for access in writes:
        out = out if access.direct_cost is None else min(out, access.direct_cost)
    back = storage.load_cost
    for access in reads:
        back = back if access.direct_cost is None else min(back, access.direct_cost)
    if storage.ends in (Whereabouts.SLOW, Whereabouts.EITHER) or not reads:
        back = 0
    return out + back
