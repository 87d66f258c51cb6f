"""Offsets in both memories. Where residences find no offsets within fast memory, the residency is planned again with a
little less of it, or a residence is given up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from downset.arenas.best import best
from downset.arenas.constrained.spread import spill
from downset.arenas.exact import exact
from downset.arenas.gaps import height
from downset.budget import Clock
from downset.errors import InfeasibleError
from downset.memories.moves import Implied, implied, slow_lifetimes
from downset.memories.problem import MemoriesProblem
from downset.memories.residency import exact_residency
from downset.memory.records import MOST, Record
from downset.results.memories import Residence

__all__ = ["PlacedResidency", "place", "slow_offsets"]

_STEPS = 12
"""Capacities below the whole for which the residency is planned again."""
_NODES = 20_000


@dataclass(frozen=True, slots=True)
class PlacedResidency:
    """Residences with offsets, and the moves and direct accesses that they imply."""

    order: tuple[int, ...]
    residences: tuple[Residence, ...]
    implied: Implied

    @property
    def cost(self) -> int:
        return self.implied.cost


def place(
    problem: MemoriesProblem,
    order: tuple[int, ...],
    residences: Sequence[Residence],
    *,
    alignment: int,
    clock: Clock,
) -> PlacedResidency:
    """The cheapest residency found for this order that has offsets, from a given one. Always finds one: in the end
    with residences of one operator each."""
    offered: list[PlacedResidency] = []
    for candidate, cost in _candidates(problem, order, residences, clock):
        if offered and cost >= min(one.cost for one in offered):
            continue
        offsets = _offsets(problem, order, candidate, alignment, clock)
        if offsets is not None:
            return _chosen(offered, _placed(problem, order, candidate, offsets))
        kept = _first_fit(problem, order, candidate, alignment)
        if kept is not None:
            offered.append(kept)
    if not offered:
        single = _single(problem, order)
        offsets = _offsets(problem, order, single, alignment, clock)
        if offsets is None:
            raise InfeasibleError(
                f"no offsets were found within {problem.fast_bytes:,} bytes of fast memory, aligned to {alignment}; "
                "give more of it"
            )
        offered.append(_placed(problem, order, single, offsets))
    return _chosen(offered)


def _chosen(offered: Sequence[PlacedResidency], *others: PlacedResidency) -> PlacedResidency:
    return min((*offered, *others), key=lambda one: one.cost)


def _candidates(
    problem: MemoriesProblem, order: tuple[int, ...], residences: Sequence[Residence], clock: Clock
) -> Iterator[tuple[tuple[Residence, ...], int]]:
    """The residency, then those of smaller capacities."""
    yield tuple(residences), implied(problem, order, residences).cost
    least = max((problem.need_bytes(operator) for operator in order), default=0)
    seen = {tuple(residences)}
    for step in range(1, _STEPS + 1):
        capacity = max(least, problem.fast_bytes - problem.fast_bytes * step * step // (4 * _STEPS * _STEPS))
        smaller = problem.within(capacity)
        residency = exact_residency(smaller, order, clock=clock.timed(), most_width=256)
        if residency.residences not in seen:
            seen.add(residency.residences)
            yield residency.residences, residency.cost


def records_of(
    problem: MemoriesProblem, order: Sequence[int], residences: Sequence[Residence], alignment: int
) -> list[Record]:
    """A record for each residence, then one for the workspace of each operator that has any."""
    records = [
        Record(str(index), one.start, one.stop, problem.storages[one.storage].room_bytes, alignment)
        for index, one in enumerate(residences)
    ]
    for position, operator in enumerate(order):
        if problem.workspace[operator]:
            records.append(
                Record(f"workspace {position}", position, position + 1, problem.workspace[operator], alignment)
            )
    return records


def _offsets(
    problem: MemoriesProblem,
    order: Sequence[int],
    residences: Sequence[Residence],
    alignment: int,
    clock: Clock,
) -> list[int] | None:
    records = records_of(problem, order, residences, alignment)
    result = best(records, clock=clock.timed())
    if height(records, result.solution) > problem.fast_bytes:
        if result.bound > problem.fast_bytes:
            return None
        part = clock.timed().part(seconds=max(0.1 * clock.left_s(), 0.2), states=_NODES)
        try:
            result = exact(records, clock=part, capacity=problem.fast_bytes)
        except InfeasibleError:
            return None
        if height(records, result.solution) > problem.fast_bytes:
            return None
    return list(result.solution[: len(residences)])


def _first_fit(
    problem: MemoriesProblem, order: tuple[int, ...], residences: Sequence[Residence], alignment: int
) -> PlacedResidency | None:
    """Residences by decreasing size times length in the lowest gap, first those that an operator cannot do without;
    others without room are given up. None where one of the first finds none."""
    records = records_of(problem, order, residences, alignment)
    needed = [_is_needed(problem, order, one) for one in residences] + [True] * (len(records) - len(residences))
    sequence = sorted(
        range(len(records)),
        key=lambda i: (not needed[i], -records[i].nbytes * (records[i].stop - records[i].start), records[i].start),
    )
    choices = [[_FAST] if one else [_FAST, _GIVEN_UP] for one in needed]
    spilled = spill(records, sequence, [problem.fast_bytes, MOST], choices=choices)
    if spilled is None:
        return None
    places = zip(residences, spilled[0], spilled[1], strict=False)  # the records of workspaces come last
    chosen = [(one, offset) for one, arena, offset in places if arena == _FAST]
    chosen.sort(key=lambda item: (item[0].start, item[0].storage))
    return _placed(problem, order, [one for one, _ in chosen], [offset for _, offset in chosen])


_FAST, _GIVEN_UP = 0, 1
"""Fast memory, and an arena without an end for the residences that find no room there."""


def _is_needed(problem: MemoriesProblem, order: Sequence[int], one: Residence) -> bool:
    """Whether an operator cannot do without the residence: it may not access the storage in slow memory."""
    return any(
        access.storage == one.storage and access.direct_cost is None
        for position in range(one.start, one.stop)
        for access in problem.accesses[order[position]]
    )


def _single(problem: MemoriesProblem, order: Sequence[int]) -> tuple[Residence, ...]:
    """A residence for each access that slow memory does not allow, while its operator runs."""
    return tuple(
        Residence(access.storage, position, position + 1, None)
        for position, operator in enumerate(order)
        for access in sorted(problem.accesses[operator], key=lambda one: one.storage)
        if access.direct_cost is None
    )


def _placed(
    problem: MemoriesProblem, order: tuple[int, ...], residences: Sequence[Residence], offsets: Sequence[int]
) -> PlacedResidency:
    placed = tuple(replace(one, offset=offset) for one, offset in zip(residences, offsets, strict=True))
    return PlacedResidency(order, placed, implied(problem, order, placed))


def slow_offsets(
    problem: MemoriesProblem, order: Sequence[int], motion: Implied, *, alignment: int, clock: Clock
) -> tuple[tuple[tuple[int, int], ...], int]:
    """((storage, offset) of every storage that ever lies in slow memory, the bytes that they take)."""
    spans = slow_lifetimes(problem, order, motion)
    records = [
        Record(str(index), start, stop, problem.storages[index].room_bytes, alignment)
        for index, (start, stop) in spans.items()
    ]
    result = best(records, clock=clock.timed())
    pairs = tuple((index, int(offset)) for index, offset in zip(spans, result.solution, strict=True))
    return pairs, height(records, result.solution)
