"""The nine cells of SERENITY's figures with fast memory of several sizes, as problems that can be executed.

An operator finds each operand in fast memory or accesses it once in slow memory, at its size. Inputs begin in fast
memory, as in the paper; results are handed over where they are made, at no cost. Tensors are those of the network
without rewriting, under memory model `live`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from downset import Graph, MemoriesPlan
from downset.budget import Budget
from downset.memories.of_graph import MemoriesForm, Request, memories_form
from downset.memories.plan import plan_memories_problem
from downset.memories.problem import Whereabouts
from downset.memory.models import memory_model
from experiments.serenity.subjects import available

__all__ = ["SIZES_BYTES", "STATES", "cells", "form_of", "plan_of"]

SIZES_BYTES = tuple(kilobytes * 1024 for kilobytes in (32, 64, 128, 256))
STATES = 600_000
"""The work limit of a plan: tries, and states of its searches."""


@cache
def cells() -> dict[str, Graph]:
    return available()


def form_of(graph: Graph, fast_bytes: int) -> MemoriesForm:
    form = memories_form(graph, Request(fast_bytes, memory_model("live"), direct="size", inputs="fast"))
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
