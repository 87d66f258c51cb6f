"""Aliases and in-place results: records that must, or may, lie at the same offset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from math import lcm

from downset.arenas.gaps import height
from downset.arenas.planners import ARENAS, CONTRACT
from downset.budget import Budget
from downset.errors import UsageError
from downset.memory.bounds import offsets_bound
from downset.memory.records import Record, check_records
from downset.methods import Method, choose
from downset.results.plans import Found

__all__ = ["merge_aliases", "plan_aliases"]

_MOST_SUBSETS = 10
"""The most optional pairs of which every subset is tried."""


def merge_aliases(records: Sequence[Record], groups: Sequence[Sequence[int]]) -> tuple[tuple[Record, ...], list[int]]:
    """One record for every group of aliases, as large as the largest and active whenever one of them is; and for every
    old record the index of the new one. Groups that share a member are one group."""
    owner = list(range(len(records)))

    def root(index: int) -> int:
        while owner[index] != index:
            index = owner[index]
        return index

    for group in groups:
        for member in group:
            low, high = sorted((root(group[0]), root(member)))
            owner[high] = low
    members: dict[int, list[int]] = {}
    for index in range(len(records)):
        members.setdefault(root(index), []).append(index)
    place = {first: position for position, first in enumerate(members)}
    merged = tuple(_union([records[i] for i in group]) for group in members.values())
    return merged, [place[root(index)] for index in range(len(records))]


def _union(group: Sequence[Record]) -> Record:
    pins = {record.offset for record in group if record.offset is not None}
    if len(pins) > 1:
        raise UsageError(
            f"aliases {', '.join(repr(r.id) for r in group)} are pinned at different offsets {sorted(pins)}"
        )
    pieces = sorted(piece for record in group for piece in record.active())
    stop, gaps = pieces[0][1], []
    for low, high in pieces[1:]:
        if low > stop:
            gaps.append((stop, low))
        stop = max(stop, high)
    return Record(
        "+".join(record.id for record in group),
        pieces[0][0],
        stop,
        max(record.nbytes for record in group),
        lcm(*(record.alignment for record in group)),
        pins.pop() if pins else None,
        tuple(gaps),
    )


def plan_aliases(
    records: Sequence[Record],
    *,
    must: Sequence[Sequence[int]] = (),
    may: Sequence[tuple[int, int]] = (),
    method: str | Method | Callable[..., Found] = "best",
    time_limit_s: float = 10.0,
) -> Found:
    """Offsets in which the records of each group of `must` lie at one offset, and those of a pair of `may` do where it
    helps: an operator that may write its result over its input.

    A pair of `may` is (input, result): the input's last step is the result's first, and the result is no larger. A set
    of pairs is lawful where no other two records come to lie at one offset while both live: so no input is written over
    twice, nor while an alias of it is needed. Every lawful subset of up to 10 pairs is tried; of more: all that are
    lawful, none, and what is left when single pairs that do not help are dropped. The bound holds for every subset.
    """
    planner = choose(method, ARENAS, CONTRACT)
    check_records(records)
    outside = next((i for group in (*must, *may) for i in group if not 0 <= i < len(records)), None)
    if outside is not None:
        raise UsageError(f"there is no record {outside}: there are {len(records)}")
    for source, result in may:
        first, second = records[source], records[result]
        if source == result or first.stop - 1 != second.start or second.nbytes > first.nbytes:
            raise UsageError(
                f"{second.id!r} cannot be written over {first.id!r}: it takes a result that starts at the last step of "
                "its input and is no larger"
            )

    def attempt(pairs: Sequence[tuple[int, int]]) -> tuple[int, int, tuple[int, ...]]:
        merged, place = merge_aliases(records, [*must, *pairs])
        result: Found = planner(merged, clock=Budget(time_limit_s).start())
        return height(merged, result.solution), result.bound, tuple(result.solution[block] for block in place)

    if len(may) <= _MOST_SUBSETS:
        subsets = (pairs for count in range(len(may), -1, -1) for pairs in combinations(may, count))
        tried = [attempt(pairs) for pairs in subsets if _lawful(records, must, pairs) == list(pairs)]
        value, _, offsets = min(tried, key=lambda item: item[0])
        bound = min(bound for _, bound, _ in tried)
        return Found(offsets, min(bound, value), bound >= value)
    kept = _lawful(records, must, may)
    value, _, offsets = min(attempt(kept), attempt([]), key=lambda item: item[0])
    for pair in may:
        fewer = [other for other in kept if other != pair]
        trial = attempt(fewer)
        if trial[0] < value:
            kept, (value, _, offsets) = fewer, trial
    # Whatever is merged, a result takes its bytes at every step but its first.
    results = {result for _, result in may}
    shorter = [
        replace(record, start=record.start + (index in results))
        for index, record in enumerate(records)
        if index not in results or record.stop > record.start + 1
    ]
    # Groups that must be merged would need their own records here; without them the bound is the shortened records'.
    bound = 0 if must else offsets_bound(shorter)
    return Found(offsets, min(bound, value), bound >= value)


def _lawful(
    records: Sequence[Record], must: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The first pairs that may all be merged: of the records that then lie at one offset, two that live at one step are
    a pair, or aliases that `must` are."""
    _, alias = merge_aliases(records, must)
    lawful: list[tuple[int, int]] = []
    for pair in pairs:
        _, place = merge_aliases(records, [*must, *lawful, pair])
        allowed = {frozenset(one) for one in (*lawful, pair)}
        if pair not in lawful and all(
            place[one] != place[other]
            or alias[one] == alias[other]
            or frozenset((one, other)) in allowed
            or not _meet(records[one], records[other])
            for one, other in combinations(range(len(records)), 2)
        ):
            lawful.append(pair)
    return lawful


def _meet(one: Record, other: Record) -> bool:
    return any(low < stop and start < high for low, high in one.active() for start, stop in other.active())
