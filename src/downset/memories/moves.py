"""The moves and direct accesses that residences imply, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from downset.memories.problem import Access, MemoriesProblem, Whereabouts
from downset.results.memories import Move, Residence

__all__ = ["Implied", "implied", "slow_lifetimes"]


@dataclass(frozen=True, slots=True)
class Implied:
    """Moves by position, stores before loads; (position, storage, bytes) of direct accesses; the cost of both."""

    moves: tuple[Move, ...]
    direct: tuple[tuple[int, int, int], ...]
    cost: int

    @property
    def moved_bytes(self) -> int:
        return sum(move.nbytes for move in self.moves)

    @property
    def direct_bytes(self) -> int:
        return sum(nbytes for _, _, nbytes in self.direct)


def implied(problem: MemoriesProblem, order: Sequence[int], residences: Sequence[Residence]) -> Implied:
    """The stores and loads where these residences begin and end, and the accesses in slow memory between them. A
    residence that ends with a changed storage is stored if the storage is needed later."""
    accessed: list[list[tuple[int, Access]]] = [[] for _ in problem.storages]
    for position, operator in enumerate(order):
        for access in problem.accesses[operator]:
            accessed[access.storage].append((position, access))
    resident: list[list[Residence]] = [[] for _ in problem.storages]
    for residence in sorted(residences, key=lambda one: one.start):
        resident[residence.storage].append(residence)
    moves: list[Move] = []
    direct: list[tuple[int, int, int]] = []
    cost = 0
    for index, storage in enumerate(problem.storages):
        for event in _events(problem, index, len(order), accessed[index], resident[index]):
            if isinstance(event, Move):
                moves.append(event)
                cost += storage.load_cost if event.into_fast else storage.store_cost
            else:
                position, access = event
                direct.append((position, index, access.direct_bytes))
                cost += access.direct_cost or 0
    moves.sort(key=lambda move: (move.position, move.into_fast, move.storage))
    return Implied(tuple(moves), tuple(sorted(direct)), cost)


def _events(
    problem: MemoriesProblem,
    index: int,
    count: int,
    accessed: Sequence[tuple[int, Access]],
    resident: Sequence[Residence],
) -> Iterator[Move | tuple[int, Access]]:
    """The moves and direct accesses of one storage, by position."""
    storage = problem.storages[index]
    if not accessed:
        return
    begins_fast = storage.begins == Whereabouts.FAST
    free_start = storage.begins in (Whereabouts.EITHER, Whereabouts.FAST)
    exists = storage.begins != Whereabouts.NOWHERE
    if begins_fast and not (resident and resident[0].start == 0):
        yield Move(index, 0, False, storage.nbytes)
    last, upcoming = accessed[-1][0], 0
    for residence in resident:
        while upcoming < len(accessed) and accessed[upcoming][0] < residence.start:
            exists = True
            yield accessed[upcoming]
            upcoming += 1
        in_place = residence.start == 0 and free_start
        if exists and not in_place:
            yield Move(index, residence.start, True, storage.nbytes)
        changed = not exists or in_place
        while upcoming < len(accessed) and accessed[upcoming][0] < residence.stop:
            changed = changed or accessed[upcoming][1].writes
            upcoming += 1
        exists = True
        kept_to_end = residence.stop == count and storage.ends != Whereabouts.SLOW
        needed = last >= residence.stop or (storage.ends != Whereabouts.NOWHERE and not kept_to_end)
        if changed and needed:
            yield Move(index, residence.stop, False, storage.nbytes)
    yield from accessed[upcoming:]
    if storage.ends == Whereabouts.FAST and not (resident and resident[-1].stop == count):
        yield Move(index, count, True, storage.nbytes)


def slow_lifetimes(problem: MemoriesProblem, order: Sequence[int], motion: Implied) -> dict[int, tuple[int, int]]:
    """By storage that ever lies in slow memory: the positions [start, stop) in which it takes room there, counting
    from the first store or direct access to the last load or direct access."""
    touched: dict[int, list[int]] = {}
    for move in motion.moves:
        touched.setdefault(move.storage, []).append(move.position)
    for position, index, _ in motion.direct:
        touched.setdefault(index, []).append(position)
    spans = {}
    for index, positions in sorted(touched.items()):
        storage = problem.storages[index]
        from_start = storage.begins != Whereabouts.NOWHERE
        to_end = storage.ends in (Whereabouts.SLOW, Whereabouts.EITHER)
        spans[index] = (0 if from_start else min(positions), (len(order) if to_end else max(positions)) + 1)
    return spans
