"""The file's order under Belady's rule: what is used last leaves fast memory first.

Source: Belady, "A study of replacement algorithms for a virtual-storage computer" (1966); "Ordering Chaos", section
    4.2, counts traffic so.
Names: a *victim* is a storage that leaves fast memory where it overflows.
Complexity: O(accesses · storages held).
Deviations: storages have sizes and costs: the victim is the one whose next use is farthest for what its return costs.
    Victims that turn out to have room stay. An operand whose direct access costs no more than a load is a victim too.
"""

from __future__ import annotations

from downset.memories.found import MemoriesFound
from downset.memories.problem import MemoriesProblem
from downset.memories.residency import quick_residency

__all__ = ["belady"]


def belady(problem: MemoriesProblem) -> MemoriesFound:
    """The file's order with a quick residency."""
    order = tuple(range(len(problem.predecessors)))
    residency = quick_residency(problem, order)
    return MemoriesFound(order, residency.residences, residency.cost)
