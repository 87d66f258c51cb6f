"""The nine cells of SERENITY's figures with fast memory of several sizes, as problems that can be executed.

An operator finds each operand in fast memory or accesses it once in slow memory, at its size. Inputs begin in fast
memory, as in the paper; results are handed over where they are made, at no cost. Tensors are those of the network
without rewriting, under memory model `live`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from downset import Graph, MemoriesPlan, native
from downset.budget import Budget
from downset.memories.of_graph import MemoriesForm, MemoriesRequest, memories_form
from downset.memories.plan import plan_memories_problem
from downset.memories.problem import Access, MemoriesProblem, Whereabouts
from downset.memories.residency import exact_residency
from downset.memory.models import memory_model
from experiments.serenity.subjects import available, rewritten

__all__ = ["SIZES_BYTES", "STATES", "by_access", "cells", "form_of", "network_of", "orders_by_access", "plan_of"]

SIZES_BYTES = tuple(kilobytes * 1024 for kilobytes in (32, 64, 128, 256))
STATES, QUICK_STATES = 9_000_000, 600_000
"""The work limit of a plan in which orders are searched, and of others: tries, and states of their searches."""


@cache
def cells() -> dict[str, Graph]:
    return available()


def form_of(graph: Graph, fast_bytes: int) -> MemoriesForm:
    form = memories_form(graph, MemoriesRequest(fast_bytes, memory_model("live"), direct="size", inputs="fast"))
    results = {index for index, one in enumerate(form.problem.storages) if one.ends != Whereabouts.NOWHERE}
    accesses = tuple(
        tuple(
            replace(access, direct_cost=0, direct_bytes=0) if access.writes and access.storage in results else access
            for access in listed
        )
        for listed in form.problem.accesses
    )
    return replace(form, problem=replace(form.problem, accesses=accesses))


@cache
def plan_of(name: str, fast_bytes: int, method: str, states: int = STATES) -> MemoriesPlan:
    """A plan of a cell; only the work is limited, so that a run repeats."""
    return plan_memories_problem(form_of(cells()[name], fast_bytes), method=method, budget=Budget(3600.0, states))


def by_access(problem: MemoriesProblem) -> tuple[MemoriesProblem, list[list[int]]]:
    """The problem in the paper's convention, with an operator for each access, and these operators by operator. Two
    operands of an operator are accessed one after the other, and need not be in fast memory together."""
    members: list[list[int]] = []
    before: list[tuple[int, ...]] = []
    accesses: list[tuple[Access, ...]] = []
    for waits, listed in zip(problem.predecessors, problem.accesses, strict=True):
        members.append(list(range(len(accesses), len(accesses) + len(listed))))
        for place, access in enumerate(listed):
            before.append((len(accesses) - 1,) if place else tuple(sorted(members[earlier][-1] for earlier in waits)))
            accesses.append((access,))
    none = (0,) * len(accesses)
    return MemoriesProblem(tuple(before), problem.storages, tuple(accesses), none, problem.fast_bytes), members


@cache
def orders_by_access(name: str, fast_bytes: int, split: bool) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """(traffic in the paper's convention, order) of the file's order and of the best orders that a search found for
    this size, each with exact residency, the least first. `split`: of the network with SERENITY's rewriting.

    A search moves operators, and keeps the accesses of one together; it counts the traffic of access after access."""
    problem = form_of(network_of(name, split), fast_bytes).problem
    apart, members = by_access(problem)
    file = list(range(len(problem.predecessors)))
    offered = {tuple(file)}
    for seed in range(_RUNS):
        ranked, _ = native.compiled.memories_orders(apart.compiled, members, file, seed, _ORDERS, 3600.0, TRIES, TRIES)
        offered |= {tuple(order) for _, order in ranked}
        if not ranked[0][0]:
            break
    costs = []
    for order in sorted(offered):
        steps = [access for operator in order for access in members[operator]]
        clock = Budget(3600.0, 400_000).start()
        costs.append((exact_residency(apart, steps, clock=clock, most_width=64).cost, order))
    return tuple(sorted(costs))


@cache
def network_of(name: str, split: bool) -> Graph:
    return rewritten(cells()[name], "live") if split else cells()[name]


TRIES = 600_000
"""Orders that one run of the search in the paper's convention tries."""
_ORDERS, _RUNS = 3, 2
