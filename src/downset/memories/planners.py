"""Planners of two memories. Each is a function of a `MemoriesProblem`. To add one, add a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from downset.memories.belady import belady
from downset.memories.file_order import file_order
from downset.memories.found import MemoriesFound
from downset.memories.joint import joint
from downset.memories.least_peak import least_peak
from downset.memories.moves import implied
from downset.memories.problem import MemoriesProblem
from downset.memories.searched import searched
from downset.methods import Contract, Method

__all__ = ["CONTRACT", "MEMORIES"]


def _cost_and_bound(problem: MemoriesProblem, result: MemoriesFound) -> tuple[int, int]:
    return implied(problem, result.order, result.residences).cost, 0


CONTRACT = Contract(
    "two memories",
    problem=("problem",),
    settings=("clock", "incumbent"),
    returns=MemoriesFound,
    value_and_bound=_cost_and_bound,
)

MEMORIES: Mapping[str, Method] = {
    "file_order": Method(file_order, proves=True),
    "least_peak": Method(least_peak, proves=True),
    "belady": Method(belady),
    "searched": Method(searched, proves=True),
    "joint": Method(joint, proves=True),
}
