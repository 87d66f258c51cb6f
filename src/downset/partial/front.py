"""Sequences of segments in strips that no other sequence beats in peak, arithmetic and persistent bytes together.

Source: ours. Fusion as a path through a graph of cuts is msf-CNN's (NeurIPS 2025); there rows are always recomputed.
Names: an *option* is a segment between two positions of the network's order, in strips, with its price.
Complexity: a round for each peak on the front. Each round finds shortest paths over cuts, whose labels are the parts of
    the work: MACs, persistent bytes, and a third number (`_work`).
Deviations: operators outside the options run without strips. The peak of a sequence is the largest peak of its parts,
    and all other figures are sums, so that of each segment only the front of its options is needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from operator import le
from typing import NamedTuple, TypeVar

from downset.budget import Clock
from downset.partial.price import Price
from downset.partial.rewrite import InStrips
from downset.partial.segments import Segment

__all__ = ["Option", "Options", "PartialPlan", "Useful", "compose", "front_of", "front_of_plans", "useful"]


@dataclass(frozen=True, slots=True)
class Option:
    """A segment in strips, with its price."""

    part: InStrips
    price: Price


@dataclass(frozen=True, slots=True)
class PartialPlan:
    """Segments in strips, in their sequence, and the price of the whole network with them. `price.peak_bytes` is the
    peak of the rewritten network in the order of its operators."""

    segments: tuple[InStrips, ...]
    price: Price

    @property
    def cost(self) -> tuple[int, int, int, int]:
        """The key by which plans that fit are compared: extra MACs, then persistent bytes, copied bytes, operators."""
        price = self.price
        return price.extra_macs, price.persistent_bytes, price.copied_bytes, price.extra_operators


T = TypeVar("T")


def undominated(
    items: Iterable[T], price_of: Callable[[T], Price], values: Callable[[Price], tuple[int, int, int, int]]
) -> list[T]:
    """The items to which no other is equal or better in all `values` of their prices, ascending by these values. Of
    items with equal values, the one with the fewest copied bytes, then operators, then bytes of peak."""

    def order(item: T) -> tuple[int, ...]:
        price = price_of(item)
        return *values(price), price.copied_bytes, price.extra_operators, price.peak_bytes

    kept_plans: list[T] = []
    kept: list[tuple[int, int, int]] = []
    for item in sorted(items, key=order):
        _, one, two, three = values(price_of(item))  # the first value is at least that of all items before
        for other_one, other_two, other_three in reversed(kept):
            if other_one <= one and other_two <= two and other_three <= three:
                break
        else:
            kept_plans.append(item)
            kept.append((one, two, three))
    return kept_plans


def _work(price: Price) -> tuple[int, int, int]:
    """(extra MACs, persistent bytes, persistent bytes with narrow pointers). Where the last is zero, because a runtime
    keeps nothing for operators, copied bytes take its place."""
    return price.extra_macs, price.persistent_bytes, price.narrow_bytes or price.copied_bytes


def front_of(options: Iterable[Option]) -> list[Option]:
    """The options to which no other is equal or better in peak and work (`_work`), the lowest peak first."""
    return undominated(options, lambda option: option.price, lambda price: (price.peak_bytes, *_work(price)))


def front_of_plans(plans: Iterable[PartialPlan]) -> list[PartialPlan]:
    """The plans to which no other is equal or better in work (`_work`) and peak, the least work first."""
    return undominated(plans, lambda plan: plan.price, lambda price: (*_work(price), price.peak_bytes))


def compose(whole: Sequence[int], options: Iterable[Useful], clock: Clock | None = None) -> list[PartialPlan]:
    """The front of sequences of options, the least work first. The first is the network without strips, unless strips
    need less work because they leave rows out.

    `whole[i]`: the transient of operator i without strips. When the time of the `clock` is up, plans of lower
    peaks are left out; the first plan is always found.
    """
    limit = max(whole, default=0)
    ends = {0, len(whole)}
    ending: dict[int, list[Useful]] = {}
    for one in options:
        part, price = one.option.part, one.option.price
        ends.update((part.first, part.stop))
        ending.setdefault(part.stop, []).append(one)
        if price.extra_macs < 0 or price.persistent_bytes < 0:  # may be on the front at a higher peak
            limit = max(limit, price.peak_bytes)
    cuts = sorted(ends)
    between = [(stop, max(whole[first:stop])) for first, stop in pairwise(cuts)]
    front: list[PartialPlan] = []
    while limit >= 0 and (plans := _paths(between, ending, limit, clock)):
        front += plans
        limit = max(plan.price.peak_bytes for plan in plans) - 1
    return front_of_plans(front)


class Useful(NamedTuple):
    """An option, the peak that it needs, and the limit from which on another way to compute its segment is as good in
    everything but the peak."""

    option: Option
    needed_bytes: int
    replaced_from: float


def useful(options: Iterable[Option], as_it_is: int) -> Iterator[Useful]:
    """Those options of one segment that are of use at some limit. `as_it_is`: its peak without strips."""
    options = front_of(options)
    ways = [(as_it_is, (0,) * 5), *((option.price.peak_bytes, _adding(option.price)) for option in options)]
    ascending = sorted(ways)
    for option, (needed, mine) in zip(options, ways[1:], strict=True):
        better = (peak for peak, other in ascending if other != mine and all(map(le, other, mine)))
        replaced_from = next(better, inf)
        if needed < replaced_from:
            yield Useful(option, needed, replaced_from)


def _adding(price: Price) -> tuple[int, ...]:
    """The figures of a price that are summed along a sequence."""
    return price.extra_macs, price.persistent_bytes, price.narrow_bytes, price.copied_bytes, price.extra_operators


class Options:
    """The options found so far, by segment. `whole`: the transients of the operators without strips."""

    def __init__(self, whole: Sequence[int]) -> None:
        self.whole = whole
        self._listed: dict[Segment, list[Option]] = {}
        self._useful: dict[Segment, list[Useful]] = {}
        """Those of the segments that got no option since they were found."""

    def add(self, segment: Segment, option: Option) -> None:
        listed = self._listed.setdefault(segment, [])
        listed.append(option)
        self._useful.pop(segment, None)
        if len(listed) >= 64 and len(listed).bit_count() == 1:  # at powers of two, so that this happens seldom
            listed[:] = front_of(listed)

    def of(self, segment: Segment) -> Sequence[Option]:
        return self._listed.get(segment, ())

    def useful(self) -> list[Useful]:
        for segment, listed in self._listed.items():
            if segment not in self._useful:
                as_it_is = max(self.whole[segment.first : segment.stop])
                self._useful[segment] = [*useful(listed, as_it_is)]
        return [one for segment in self._listed for one in self._useful[segment]]


class _Path(NamedTuple):
    """A way to run the operators up to a cut. Paths are sorted by work, then copied bytes, operators, peak, number."""

    macs: int
    persistent: int
    third: int
    """The last of `_work`."""
    copied: int
    operators: int
    peak: int
    number: int
    narrow: int
    apart: int
    before: _Path | None
    option: Option | None

    def plan(self) -> PartialPlan:
        parts: list[InStrips] = []
        path: _Path | None = self
        while path is not None:
            parts += [] if path.option is None else [path.option.part]
            path = path.before
        price = Price(self.peak, self.macs, self.copied, self.operators, self.persistent, self.narrow, self.apart)
        return PartialPlan(tuple(parts[::-1]), price)


def _paths(
    between: Sequence[tuple[int, int]], ending: Mapping[int, Sequence[Useful]], limit: int, clock: Clock | None
) -> list[PartialPlan]:
    """The cheapest ways to run all operators within `limit` bytes; none when the time is over, except for the network
    without strips. `between`: the cuts where options end, each with the peak without strips since the one before."""
    within = {
        stop: [one.option for one in several if one.needed_bytes <= limit < one.replaced_from]
        for stop, several in ending.items()
    }
    leads_on = {between[-1][0] if between else 0}  # the cuts from which all later operators can run within the limit
    for (stop, nbytes), first in zip(reversed(between), (*(stop for stop, _ in between[-2::-1]), 0), strict=True):
        if stop in leads_on:
            if nbytes <= limit:
                leads_on.add(first)
            leads_on.update(option.part.first for option in within.get(stop, ()))
    last = [_Path(0, 0, 0, 0, 0, 0, 0, 0, 0, None, None)]
    paths_of = {0: last}
    for stop, nbytes in between:
        reached: list[_Path] = []
        if stop in leads_on:
            if nbytes <= limit:
                reached = [
                    path._replace(peak=max(path.peak, nbytes), number=number) for number, path in enumerate(last)
                ]
            for option in () if clock is not None and clock.left_s() == 0 else within.get(stop, ()):
                _extend(reached, paths_of[option.part.first], option)
        last = paths_of[stop] = _cheapest(reached)
    return [path.plan() for path in last]


def _extend(reached: list[_Path], paths: Sequence[_Path], option: Option) -> None:
    price = option.price
    peak, macs, copied, operators = price.peak_bytes, price.extra_macs, price.copied_bytes, price.extra_operators
    persistent, narrow, apart = price.persistent_bytes, price.narrow_bytes, price.apart_bytes
    for path in paths:
        less, moved = path.narrow + narrow, path.copied + copied
        reached.append(
            _Path(
                path.macs + macs,
                path.persistent + persistent,
                less or moved,
                moved,
                path.operators + operators,
                max(path.peak, peak),
                len(reached),
                less,
                max(path.apart, apart),
                path,
                option,
            )
        )


def _cheapest(paths: list[_Path]) -> list[_Path]:
    """The paths to which no other is equal or better in work, ascending. O(n log n) and the time of the inserts."""
    if len(paths) < 2:
        return paths
    cheapest: list[_Path] = []
    kept: list[tuple[int, int]] = []
    """(persistent bytes, third part of the work) of the paths so far; the first ascends and the second descends."""
    for path in sorted(paths):
        mine = path.persistent, path.third
        place = bisect_right(kept, (path.persistent, inf))
        if place and kept[place - 1][1] <= path.third:
            continue
        cheapest.append(path)
        stop = place = bisect_left(kept, (path.persistent, -inf))
        while stop < len(kept) and kept[stop][1] >= path.third:
            stop += 1
        kept[place:stop] = [mine]
    return cheapest
