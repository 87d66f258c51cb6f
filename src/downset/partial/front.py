"""Sequences of segments in strips that no other beats in bytes, arithmetic and persistent bytes together.

Source: ours. Fusion as a path through a graph of cuts is msf-CNN's (NeurIPS 2025); there rows are always recomputed.
Names: an *option* is a segment between two positions of the network's order, in strips, with its price.
Complexity: each round is a shortest path over cuts whose labels are pairs (multiply-adds, persistent bytes); there is
    a round for each peak on the front.
Deviations: between options the network is computed as it is. The peak of a sequence is the largest of its parts', all
    else adds up, so that a front of options a segment is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import le
from typing import TypeVar

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

    def and_then(self, price: Price, *part: InStrips) -> PartialPlan:
        """This plan with what runs next."""
        return PartialPlan((*self.segments, *part), self.price.beside(price))


T = TypeVar("T")
Values = Callable[[Price], tuple[int, ...]]


def undominated(items: Iterable[T], price_of: Callable[[T], Price], values: Values) -> list[T]:
    """Those that no other is as good as in all `values` of their prices, ascending by these; among equals the one with
    fewest copies, operators and bytes."""

    def order(item: T) -> tuple[int, ...]:
        price = price_of(item)
        return *values(price), price.copied_bytes, price.extra_operators, price.peak_bytes

    found: list[T] = []
    kept: list[tuple[int, ...]] = []
    for item in sorted(items, key=order):
        mine = values(price_of(item))
        if not any(all(map(le, one, mine)) for one in reversed(kept)):
            found.append(item)
            kept.append(mine)
    return found


def _work(price: Price) -> tuple[int, ...]:
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
    ending: dict[int, list[Option]] = {}
    limit = max(whole, default=0)
    for option in options:
        ending.setdefault(option.part.stop, []).append(option)
        if option.price.extra_macs < 0 or option.price.persistent_bytes < 0:  # worth more bytes than the network needs
            limit = max(limit, option.price.peak_bytes)
    found: list[PartialPlan] = []
    while limit >= 0 and (plans := _paths(whole, ending, limit)):
        found += plans
        limit = max(plan.price.peak_bytes for plan in plans) - 1
    return front_of_plans(found)


def _paths(whole: Sequence[int], ending: Mapping[int, Sequence[Option]], limit: int) -> list[PartialPlan]:
    """The cheapest ways to run all operators within `limit` bytes."""
    at = [[PartialPlan((), Price(0))]]
    for stop, nbytes in enumerate(whole, start=1):
        reached = [plan.and_then(Price(nbytes)) for plan in at[-1]] if nbytes <= limit else []
        for option in ending.get(stop, ()):
            if option.price.peak_bytes <= limit:
                reached += [plan.and_then(option.price, option.part) for plan in at[option.part.first]]
        at.append(undominated(reached, lambda plan: plan.price, _work))
    return at[-1]
