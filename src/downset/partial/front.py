"""Sequences of segments in strips that no other beats in bytes, arithmetic and persistent bytes together.

Source: ours. Fusion as a path through a graph of cuts is msf-CNN's (NeurIPS 2025); there rows are always recomputed.
Names: an *option* is a segment between two positions of the network's order, in strips, with its price.
Complexity: each round is a shortest path over cuts whose labels are pairs (multiply-adds, persistent bytes); there is
    a round for each peak on the front.
Deviations: between options the network is computed as it is. The peak of a sequence is the largest of its parts', all
    else adds up, so that a front of options a segment is enough.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import le
from typing import NamedTuple, TypeVar

from downset.partial.price import Price
from downset.partial.rewrite import InStrips

__all__ = ["Option", "PartialPlan", "compose", "front_of", "front_of_plans"]


@dataclass(frozen=True, slots=True)
class Option:
    part: InStrips
    price: Price


@dataclass(frozen=True, slots=True)
class PartialPlan:
    """Segments in strips, in their sequence, and what the whole network costs with them. `price.peak_bytes` is that of
    the operators in the rewritten network's own order."""

    segments: tuple[InStrips, ...]
    price: Price

    @property
    def cost(self) -> tuple[int, int, int, int]:
        """The order of plans where memory is enough: arithmetic, then persistent bytes, copies and operators."""
        price = self.price
        return price.extra_macs, price.persistent_bytes, price.copied_bytes, price.extra_operators


T = TypeVar("T")


def undominated(
    items: Iterable[T], price_of: Callable[[T], Price], values: Callable[[Price], tuple[int, int, int, int]]
) -> list[T]:
    """Those that no other is as good as in all `values` of their prices, ascending by these; among equals the one with
    fewest copies, operators and bytes."""

    def order(item: T) -> tuple[int, ...]:
        price = price_of(item)
        return *values(price), price.copied_bytes, price.extra_operators, price.peak_bytes

    kept_plans: list[T] = []
    kept: list[tuple[int, int, int]] = []
    for item in sorted(items, key=order):
        _, one, two, three = values(price_of(item))  # the first is no less than that of those before
        for other_one, other_two, other_three in reversed(kept):
            if other_one <= one and other_two <= two and other_three <= three:
                break
        else:
            kept_plans.append(item)
            kept.append((one, two, three))
    return kept_plans


def _work(price: Price) -> tuple[int, int, int]:
    """Where a runtime keeps nothing for an operator, copied bytes count in the place of that."""
    return price.extra_macs, price.persistent_bytes, price.narrow_bytes or price.copied_bytes


def front_of(options: Iterable[Option]) -> list[Option]:
    """Options that no other is as good as in peak, multiply-adds and persistent bytes, the lowest peak first."""
    return undominated(options, lambda option: option.price, lambda price: (price.peak_bytes, *_work(price)))


def front_of_plans(plans: Iterable[PartialPlan]) -> list[PartialPlan]:
    """The same of plans, the least work first."""
    return undominated(plans, lambda plan: plan.price, lambda price: (*_work(price), price.peak_bytes))


def compose(whole: Sequence[int], options: Iterable[Option]) -> list[PartialPlan]:
    """The front of sequences, the least work first: the network as it is, unless strips leave something out.

    `whole[i]`: bytes live while operator i runs as it is.
    """
    alike: dict[tuple[int, int], list[Option]] = {}
    limit = max(whole, default=0)
    for option in options:
        alike.setdefault((option.part.first, option.part.stop), []).append(option)
        if option.price.extra_macs < 0 or option.price.persistent_bytes < 0:  # worth more bytes than the network needs
            limit = max(limit, option.price.peak_bytes)
    ending: dict[int, list[_Useful]] = {}
    for (first, stop), several in alike.items():
        ending.setdefault(stop, []).extend(_useful(several, max(whole[first:stop])))
    front: list[PartialPlan] = []
    while limit >= 0 and (plans := _paths(whole, ending, limit)):
        front += plans
        limit = max(plan.price.peak_bytes for plan in plans) - 1
    return front_of_plans(front)


class _Useful(NamedTuple):
    """An option, and from which limit on another way through its segment is as good in everything but the peak."""

    option: Option
    needed_bytes: int
    replaced_from: float


def _useful(options: Sequence[Option], as_it_is: int) -> Iterator[_Useful]:
    """`options`: of one segment. `as_it_is`: its peak without strips."""
    adding = [_adding(option.price) for option in options]
    nothing = (0,) * 5
    for option, mine in zip(options, adding, strict=True):
        others = zip((as_it_is, *(other.price.peak_bytes for other in options)), (nothing, *adding), strict=True)
        better = (peak for peak, other in others if other != mine and all(map(le, other, mine)))
        yield _Useful(option, option.price.peak_bytes, min(better, default=inf))


def _adding(price: Price) -> tuple[int, ...]:
    """All of a price that adds up along a sequence."""
    return price.extra_macs, price.persistent_bytes, price.narrow_bytes, price.copied_bytes, price.extra_operators


class _Path(NamedTuple):
    """A way to run the operators up to a cut. Paths sort by their work, then by copies, operators, bytes and number."""

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
        price = Price(
            self.peak, self.macs, self.copied, self.operators, self.persistent, self.narrow, self.apart
        )  # fmt: skip
        return PartialPlan(tuple(parts[::-1]), price)


def _paths(whole: Sequence[int], ending: Mapping[int, Sequence[_Useful]], limit: int) -> list[PartialPlan]:
    """The cheapest ways to run all operators within `limit` bytes."""
    within = {
        stop: [one.option for one in several if one.needed_bytes <= limit < one.replaced_from]
        for stop, several in ending.items()
    }
    leads_on = [False] * len(whole) + [True]  # by cut: whether the rest runs within the limit
    for stop in range(len(whole), 0, -1):
        if leads_on[stop]:
            leads_on[stop - 1] |= whole[stop - 1] <= limit
            for option in within.get(stop, ()):
                leads_on[option.part.first] = True
    paths_of = [[_Path(0, 0, 0, 0, 0, 0, 0, 0, 0, None, None)]]
    for stop, nbytes in enumerate(whole, start=1):
        reached: list[_Path] = []
        if leads_on[stop]:
            if nbytes <= limit:
                reached = [
                    path._replace(peak=max(path.peak, nbytes), number=number)
                    for number, path in enumerate(paths_of[-1])
                ]
            for option in within.get(stop, ()):
                _extend(reached, paths_of[option.part.first], option)
        paths_of.append(_cheapest(reached))
    return [path.plan() for path in paths_of[-1]]


def _extend(reached: list[_Path], paths: Sequence[_Path], option: Option) -> None:
    price = option.price
    peak, macs, copied, operators = price.peak_bytes, price.extra_macs, price.copied_bytes, price.extra_operators
    persistent, narrow, apart = price.persistent_bytes, price.narrow_bytes, price.apart_bytes
    for path in paths:
        less, moved = path.narrow + narrow, path.copied + copied
        reached.append(
            _Path(
                path.macs + macs, path.persistent + persistent, less or moved, moved, path.operators + operators,
                max(path.peak, peak), len(reached), less, max(path.apart, apart), path, option,
            )
        )  # fmt: skip


def _cheapest(paths: list[_Path]) -> list[_Path]:
    """Those that no other is as good as in work, ascending. O(n log n) but for the inserts."""
    if len(paths) < 2:
        return paths
    cheapest: list[_Path] = []
    kept: list[tuple[int, int]] = []
    """Persistent bytes and the third of work, of paths before; the first ascends and the second descends."""
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
