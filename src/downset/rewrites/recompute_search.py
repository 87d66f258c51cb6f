"""The search for operators to run twice: sets of operators that run again behind a split, judged one after the other.

Source: ours. Activation checkpointing (Chen et al., arXiv 1604.06174) keeps the tensors that cross the borders of
    segments and recomputes the others. Here each such set is only a proposal; the caller prices it by its best order.
Names: `late` operators run behind the split. `again` is a set of earlier operators that run a second time; late
    operators read the results of these copies. Late operators need every copy, directly or through other copies.
Complexity: one call of the caller's `judge` for each set, at most about `most` calls. If there are no more sets than
    `most`, all are tried; else those of the caller, then sets from segments by a dynamic program, changes of what lives
    at the least peak, the least set without a part, segments of about equal bytes, then the front likewise, and a
    descent. Changes and parts first take together what repeats itself in the blocks of a network (recompute_units.py):
    their number does not grow with the blocks.
Deviations: the sets proposed do not depend on the limit of bytes, and each set depends only on those before it. So a
    larger limit never costs more, and a larger `most` never finds a worse set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, combinations
from typing import Any, Generic, Protocol, TypeVar

from downset.rewrites.recompute_segments import divisions
from downset.rewrites.recompute_units import units_of

__all__ = ["REFUSED", "Choice", "StepGraph", "front", "needed", "search"]

REFUSED = 2**62
"""The peak of a set that a judge refuses without the work of finding it."""
_REFUSALS = 5
"""The most sets that are tried, refused ones included, by how many are to be tried."""

_BREADTH = 6
"""The most operators that are tried at each step of the descent."""
_SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_KEPT_SHARES = (0.0, 0.3, 0.6)
"""Shares of the bytes that are kept: those of the operators that cost most to run again, for each byte."""
_FIRST = 9
"""The most divisions that are tried before changes of the best of them."""
_DIVISIONS = 8
"""The smallest part that is taken out of a set is one of this many."""


class JudgedChoice(Protocol):
    """The caller's judgement of a set of operators."""

    @property
    def cost(self) -> float: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def proven(self) -> bool:
        """Whether no order of the same operators has a lower peak."""

    @property
    def at_peak(self) -> Collection[int]:
        """The operators before the split whose results, or those of their copies, live at the peak, largest first."""


J = TypeVar("J", bound=JudgedChoice)


@dataclass(frozen=True, slots=True)
class StepGraph:
    """The input of the search. Operators are numbered in an order in which they can run; `costs` are those of running
    each once more."""

    reads: Sequence[Collection[int]]
    """By operator: the operators whose outputs it reads."""
    nbytes: Sequence[int]
    """By operator: bytes of its outputs."""
    costs: Sequence[float]
    may: Sequence[bool]
    """By operator: whether it may run twice."""
    moved: Collection[int] = frozenset()
    """Operators whose second run reads nothing: it is a copy of the first one's result, kept elsewhere."""

    def read_again(self, operator: int) -> Collection[int]:
        """The operators whose outputs its second run reads."""
        return () if operator in self.moved else self.reads[operator]


@dataclass(frozen=True, slots=True)
class Choice(Generic[J]):
    """A set of operators that run again for the operators `late`, with its judgement."""

    again: tuple[int, ...]
    late: frozenset[int]
    judged: J

    def rank(self) -> tuple[float, int, int, tuple[int, ...]]:
        return self.judged.cost, self.judged.peak_bytes, -len(self.late), self.again


_Units = Sequence[tuple[int, ...]]
"""By operator: those that a move takes together with it."""
_Proposals = Generator[Collection[int], Choice[J], None]


def search(
    step: StepGraph,
    splits: Sequence[frozenset[int]],
    judge: Callable[[tuple[int, ...], frozenset[int]], J],
    *,
    most: int,
    seeds: Sequence[Collection[int]] = (),
) -> tuple[list[Choice[J]], bool]:
    """(every set tried, the empty one first; whether these are all sets).

    `splits`: the late operators of each split, the most promising split first. `seeds`: sets to try first, with the
    first split. `most`: how many sets to try, without refused ones (`REFUSED`), of which there may be four times as
    many.
    """
    tried: dict[tuple[tuple[int, ...], frozenset[int]], Choice[J]] = {}

    def judged(again: Collection[int], late: frozenset[int]) -> Choice[J]:
        key = needed(step, again, late), late
        if key not in tried:
            tried[key] = Choice(*key, judge(*key))
        return tried[key]

    def accepted() -> int:
        return sum(choice.judged.peak_bytes < REFUSED for choice in tried.values())

    judged((), splits[0] if splits else frozenset())
    every = _all_sets(step, splits, most)
    if every is not None:
        for late, again in every:
            judged(again, late)
        return list(tried.values()), True
    units = units_of(step.reads, list(zip(step.nbytes, step.costs, step.may, strict=True)))
    for late in splits:
        proposals = _proposals(step, units, late, seeds, [judged((), late)])
        seeds = ()
        proposed = next(proposals, None)
        while proposed is not None and accepted() < most and len(tried) < _REFUSALS * most:
            try:
                proposed = proposals.send(judged(proposed, late))
            except StopIteration:
                proposed = None
    return list(tried.values()), False


def front(tried: Iterable[Choice[J]]) -> list[Choice[J]]:
    """The choices that no other beats in both cost and peak, the cheapest first."""
    choices: list[Choice[J]] = []
    for choice in sorted(tried, key=Choice.rank):
        if not choices or choice.judged.peak_bytes < choices[-1].judged.peak_bytes:
            choices.append(choice)
    return choices


def needed(step: StepGraph, again: Collection[int], late: Collection[int]) -> tuple[int, ...]:
    """The operators of a set whose copies late operators or other needed copies read, ascending."""
    ahead = [source for operator in late for source in step.reads[operator]]
    operators: set[int] = set()
    while ahead:
        operator = ahead.pop()
        if operator in again and operator not in late and operator not in operators:
            operators.add(operator)
            ahead += step.read_again(operator)
    return tuple(sorted(operators))


def _all_sets(
    step: StepGraph, splits: Sequence[frozenset[int]], most: int
) -> list[tuple[frozenset[int], tuple[int, ...]]] | None:
    """Every set but the empty one, split by split; None where there are too many."""
    sets: list[tuple[frozenset[int], tuple[int, ...]]] = []
    for late in splits:
        early = [operator for operator, may in enumerate(step.may) if may and operator not in late]
        if 2 ** len(early) > 64 * most:
            return None
        for count in range(1, len(early) + 1):
            sets += [(late, again) for again in combinations(early, count) if needed(step, again, late) == again]
        if len(sets) > most:
            return None
    return sets


def _proposals(
    step: StepGraph,
    units: _Units,
    late: frozenset[int],
    seeds: Sequence[Collection[int]],
    choices: list[Choice[J]],
) -> _Proposals[J]:
    alone = [(operator,) for operator in range(len(step.may))]
    everything = needed(step, range(len(step.may)), late)
    crossing = _crossing(step, everything)
    whole, *parts = _segment_sets(step, everything, crossing, seeds) or [[]]
    divided = _divided_sets(step, late, everything, crossing)
    first = divided[:: -(-len(divided) // _FIRST) or 1]
    for again in [*seeds, *first]:
        judged = yield again
        choices.append(judged)
    choices += yield from _at_peak(step, units, min(choices, key=_by_peak))
    choices += yield from _smaller(step, units, min(choices, key=_by_peak))
    for again in [*divided, *whole]:
        judged = yield again
        choices.append(judged)
    choices += yield from _at_peak(step, units, min(choices, key=_by_peak))
    choices += yield from _smaller(step, units, min(choices, key=_by_peak))
    for again in chain.from_iterable(parts):
        judged = yield again
        choices.append(judged)
    choices += yield from _at_peak(step, alone, min(choices, key=_by_peak))
    for choice in reversed(front(choices)):
        choices += yield from _smaller(step, units, choice)
    lowest = min(choices, key=_by_peak)
    for choice in [choices[0], *([lowest] if lowest.again else [])]:
        choices += yield from _descent(step, choice)
    for choice in reversed(front(choices)):
        choices += yield from _smaller(step, alone, choice)


def _by_peak(choice: Choice[J]) -> tuple[Any, ...]:
    return choice.judged.peak_bytes, *choice.rank()


def _divided_sets(
    step: StepGraph, late: frozenset[int], everything: Sequence[int], crossing: Sequence[frozenset[int]]
) -> list[set[int]]:
    """By division of a dynamic program (recompute_segments.py): all operators but those whose results cross a
    border."""
    stored = {source for operator in late for source in step.reads[operator]}
    may = {operator for operator in everything if step.may[operator]}
    borders_of = divisions(step.nbytes, crossing, everything, stored)
    return [may.difference(*(crossing[border] for border in borders)) for borders in reversed(borders_of)]


def _at_peak(step: StepGraph, units: _Units, now: Choice[J]) -> Generator[Collection[int], Choice[J], list[Choice[J]]]:
    """Change what lives at the peak, as long as that lowers it: a result that is kept is computed again, with what it
    needs for that; one that is computed again is kept. What repeats it changes with it."""
    choices: list[Choice[J]] = []
    while True:
        tried = []
        live = [v for v in now.judged.at_peak if step.may[v] and v not in now.late]
        for unit in [*dict.fromkeys((units[v], v in now.again) for v in live)][:_BREADTH]:
            operators, again = unit
            same = [v for v in operators if step.may[v] and v not in now.late and (v in now.again) is again]
            if again:
                judged = yield {*now.again}.difference(same)
            else:
                judged = yield {*now.again}.union(*(_with_sources(step, now, operator) for operator in same))
            tried.append(judged)
        choices += tried
        best = min(tried, key=_by_peak, default=now)
        if best.judged.peak_bytes >= now.judged.peak_bytes:
            return choices
        now = best


def _read_behind(step: StepGraph, now: Choice[J]) -> set[int]:
    """The operators whose results are read behind the split."""
    late = (step.reads[operator] for operator in now.late)
    return set().union(*late, *(step.read_again(operator) for operator in now.again))


def _with_sources(step: StepGraph, now: Choice[J], operator: int) -> set[int]:
    """The operator, and those before it whose results nothing behind the split reads so far."""
    held = _read_behind(step, now)
    operators, ahead = {operator}, [operator]
    while ahead:
        for source in step.read_again(ahead.pop()):
            if step.may[source] and source not in held and source not in operators:
                operators.add(source)
                ahead.append(source)
    return operators


def _segment_sets(
    step: StepGraph,
    everything: Sequence[int],
    crossing: Sequence[frozenset[int]],
    seeds: Sequence[Collection[int]],
) -> list[list[set[int]]]:
    """Sets for several numbers of segments, by share of `_KEPT_SHARES`. Each holds the operators of the first segments,
    in fewer and fewer of them, without those whose results cross a border and without the most expensive (`_dearest`).
    In the other segments it holds those of the first seed."""
    if not everything:
        return []
    may = {operator for operator in everything if step.may[operator]}
    dear = _dearest(step, everything, may)
    rest = set(seeds[0]) if seeds else set()
    segments: list[list[set[int]]] = [[] for _ in dear]
    for count in _SEGMENTS:
        borders = _borders(step, everything, crossing, count)
        if len(borders) < count - 1:
            break
        saved = set().union(*(crossing[border] for border in borders))
        for first in range(len(borders) + 1, 0, -max(1, (len(borders) + 1) // 4)):
            end = everything[borders[first - 1]] if first <= len(borders) else everything[-1] + 1
            for sets, kept in zip(segments, dear, strict=True):
                inside = {operator for operator in may - saved - kept if operator < end}
                sets.append(inside | {operator for operator in rest if operator >= end})
    return segments


def _crossing(step: StepGraph, operators: Sequence[int]) -> list[frozenset[int]]:
    """By position in `operators`: the earlier operators whose results are read at that position or later."""
    position_of = {operator: position for position, operator in enumerate(operators)}
    last: dict[int, int] = {}
    for position, operator in enumerate(operators):
        for source in step.reads[operator]:
            last[source] = position
    alive: set[int] = set()
    pairs = []
    for position, operator in enumerate(operators):
        alive = {source for source in alive if last[source] >= position}
        pairs.append(frozenset(alive))
        if last.get(operator, -1) > position_of[operator]:
            alive.add(operator)
    return pairs


def _borders(step: StepGraph, operators: Sequence[int], crossing: Sequence[Collection[int]], count: int) -> list[int]:
    """Positions that divide the operators into `count` segments of about equal bytes, at places where few bytes
    cross."""
    total = list(accumulate((step.nbytes[operator] for operator in operators), initial=0))
    weights = [sum(step.nbytes[source] for source in crossed) for crossed in crossing]
    borders: list[int] = []
    for part in range(1, count):
        low, high = ((part + side) * total[-1] / count for side in (-0.5, 0.5))
        near = [border for border in range(1, len(operators)) if low <= total[border] <= high]
        if near:
            best = min(near, key=lambda border: (weights[border], abs(total[border] - part * total[-1] / count)))
            borders += [best] if best not in borders else []
    return sorted(borders)


def _dearest(step: StepGraph, operators: Sequence[int], may: Collection[int]) -> list[set[int]]:
    """By share of `_KEPT_SHARES`: the operators that cost most for each byte and hold up to this share of the
    bytes, without duplicates."""
    dear = sorted((v for v in operators if v in may), key=lambda v: (-step.costs[v] / max(step.nbytes[v], 1), v))
    every = sum(step.nbytes[v] for v in dear)
    sets: list[set[int]] = []
    for share in _KEPT_SHARES:
        total, kept = 0, set()
        for operator in dear:
            if total + step.nbytes[operator] > share * every:
                break
            total += step.nbytes[operator]
            kept.add(operator)
        sets += [kept] if kept not in sets else []
    return sets


def _smaller(
    step: StepGraph, units: _Units, choice: Choice[J]
) -> Generator[Collection[int], Choice[J], list[Choice[J]]]:
    """Try the set without parts of it, the most expensive first. A part stays out where neither peak nor cost rises;
    the parts become smaller. Operators that repeat each other stay together."""
    choices: list[Choice[J]] = []
    parts = [*dict.fromkeys(units[v] for v in sorted(choice.again, key=lambda v: (-step.costs[v], v)))]
    size = (len(parts) + 1) // 2
    least = max(1, len(parts) // _DIVISIONS)
    while size >= least and parts:
        start = 0
        while start < len(parts):
            tried = yield set(choice.again).difference(*parts[start : start + size])
            choices.append(tried)
            if tried.judged.peak_bytes <= choice.judged.peak_bytes and tried.judged.cost <= choice.judged.cost:
                choice = tried
                parts = [unit for unit in parts if not {*choice.again}.isdisjoint(unit)]
            else:
                start += size
        size = size // 2
    return choices


def _descent(step: StepGraph, now: Choice[J]) -> Generator[Collection[int], Choice[J], list[Choice[J]]]:
    """Grow the set step by step. Of the operators that it could use next, those with the most bytes for their cost are
    tried; the one that gives the least peak is added."""
    choices: list[Choice[J]] = []
    while True:
        ahead = [v for v in _read_behind(step, now) if step.may[v] and v not in now.late and v not in now.again]
        ahead.sort(key=lambda v: (-step.nbytes[v] / max(step.costs[v], 1e-12), v))
        tried = []
        for operator in ahead[:_BREADTH]:
            judged = yield {*now.again, operator}
            tried.append(judged)
        if not tried:
            return choices
        choices += tried
        now = min(tried, key=_by_peak)
        if now.judged.peak_bytes == REFUSED:
            return choices
