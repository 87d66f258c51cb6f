"""Lifetimes as a conflict graph instead of intervals: who must not share bytes with whom, whatever the reason.

Every planner takes such records: each clique of the graph becomes a step of its own at which its members are active, so
that two records meet at a step if and only if they conflict. Plans are then safe in any order that the conflicts allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from downset.errors import InvalidPlan, UsageError
from downset.lattice import ancestors, masks
from downset.memory.liveness import OrderProblem
from downset.memory.records import Record

__all__ = ["any_order_conflicts", "check_conflicts", "records_of_conflicts"]


def records_of_conflicts(
    sizes: Sequence[int], conflicts: Iterable[tuple[int, int]], *, alignment: int = 1, ids: Sequence[str] = ()
) -> tuple[Record, ...]:
    """Records, with gaps, that meet exactly where `conflicts` says so. O(conflicts · clique).

    The steps are a cover of the conflicts by cliques, each grown from the first uncovered pair by lowest index; larger
    cliques give better bounds, any cover gives right plans.
    """
    for index, nbytes in enumerate(sizes):
        if nbytes <= 0:
            raise UsageError(f"the size {nbytes} of record {index} is not positive")
    if ids and len(ids) != len(sizes):
        raise UsageError(f"{len(ids)} ids for {len(sizes)} sizes")
    neighbours: list[set[int]] = [set() for _ in sizes]
    for one, other in conflicts:
        if one == other or not (0 <= one < len(sizes) and 0 <= other < len(sizes)):
            raise UsageError(f"conflict ({one}, {other}) is not a pair of different records below {len(sizes)}")
        neighbours[one].add(other)
        neighbours[other].add(one)
    steps_of: list[list[int]] = [[] for _ in sizes]
    covered: set[tuple[int, int]] = set()
    count = 0
    for one in range(len(sizes)):
        for other in sorted(neighbours[one]):
            if other < one or (one, other) in covered:
                continue
            clique = [one, other]
            common = neighbours[one] & neighbours[other]
            for further in sorted(common):
                if further in common:
                    clique.append(further)
                    common &= neighbours[further]
            clique.sort()
            covered.update((a, b) for index, a in enumerate(clique) for b in clique[index + 1 :])
            for member in clique:
                steps_of[member].append(count)
            count += 1
        if not neighbours[one]:
            steps_of[one].append(count)
            count += 1
    records = []
    for index, (nbytes, steps) in enumerate(zip(sizes, steps_of, strict=True)):
        steps.sort()
        gaps = tuple((low + 1, high) for low, high in pairwise(steps) if high > low + 1)
        name = ids[index] if ids else str(index)
        records.append(Record(name, steps[0], steps[-1] + 1, nbytes, alignment, gaps=gaps))
    return tuple(records)


def any_order_conflicts(problem: OrderProblem) -> tuple[tuple[int, int], ...]:
    """The storages that must not share bytes if operators run in any order the graph allows, or side by side.

    Two storages may share only if one is dead before the other is born in every such run: if all that touch the one are
    ancestors of all that make the other. O(operators² + storages²) mask steps."""
    above = ancestors(masks(problem.predecessors))
    touched = masks([(*storage.producers, *storage.consumers) for storage in problem.storages])

    def always_before(one: int, other: int) -> bool:
        first, second = problem.storages[one], problem.storages[other]
        if first.kept or not second.producers:
            return False
        return all(touched[one] & ~above[operator] == 0 for operator in second.producers)

    count = len(problem.storages)
    return tuple(
        (one, other)
        for one in range(count)
        for other in range(one + 1, count)
        if not always_before(one, other) and not always_before(other, one)
    )


def check_conflicts(sizes: Sequence[int], conflicts: Iterable[tuple[int, int]], offsets: Sequence[int]) -> None:
    """Raise InvalidPlan naming the first two in conflict that overlap."""
    for one, other in conflicts:
        if offsets[one] < offsets[other] + sizes[other] and offsets[other] < offsets[one] + sizes[one]:
            raise InvalidPlan(f"records {one} and {other} conflict and overlap, at {offsets[one]} and {offsets[other]}")
