"""Sequences of segments in strips that no other beats in bytes, arithmetic and persistent bytes together.

Source: ours. Fusion as a path through a graph of cuts is msf-CNN's (NeurIPS 2025); there rows are always recomputed.
Names: an *option* is a segment between two positions of the network's order, in strips, with its price.
Complexity: each round is a shortest path over cuts whose labels are pairs (multiply-adds, persistent bytes); there is
    a round for each peak on the front.
Deviations: between options the network is computed as it is. The peak of a sequence is the largest of its parts', all
    else adds up, so that a front of options a segment is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from downset.partial.price import Price
from downset.partial.rewrite import InStrips

__all__ = ["Option", "PartialPlan", "compose", "front_of", "undominated"]


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


@dataclass(frozen=True, slots=True)
class _Label:
    macs: int
    persistent: int
    copied: int
    operators: int
    peak: int
    options: tuple[Option, ...] = ()

    def by(self, option: Option) -> _Label:
        price = option.price
        return _Label(
            self.macs + price.extra_macs,
            self.persistent + price.persistent_bytes,
            self.copied + price.copied_bytes,
            self.operators + price.extra_operators,
            max(self.peak, price.peak_bytes),
            (*self.options, option),
        )

    @property
    def key(self) -> tuple[int, int, int, int, int]:
        return self.macs, self.persistent, self.copied, self.operators, self.peak


def front_of(options: Iterable[Option]) -> list[Option]:
    """Those that no other is as good as in peak, multiply-adds and persistent bytes, the lowest peak first."""

    def cost(option: Option) -> tuple[int, ...]:
        price = option.price
        return price.peak_bytes, price.extra_macs, price.persistent_bytes, price.copied_bytes, price.extra_operators

    found: list[Option] = []
    for option in sorted(options, key=cost):
        price = option.price
        if not any(
            one.price.extra_macs <= price.extra_macs and one.price.persistent_bytes <= price.persistent_bytes
            for one in found
        ):
            found.append(option)
    return found


def compose(whole: Sequence[int], options: Iterable[Option], *, most_macs: int | None = None) -> list[PartialPlan]:
    """The front of sequences, the least work first: the network as it is, unless strips leave something out.

    `most_macs`: at most so many are added, with no option taken that alone adds more. `whole[i]`: bytes live while
    operator i runs as it is.
    """
    ending: dict[int, list[Option]] = {}
    limit = max(whole, default=0)
    for option in options:
        ending.setdefault(option.part.stop, []).append(option)
        if option.price.extra_macs < 0 or option.price.persistent_bytes < 0:  # worth more bytes than the network needs
            limit = max(limit, option.price.peak_bytes)
    found: dict[tuple[int, int, int], PartialPlan] = {}
    while True:
        labels = _paths(whole, ending, limit, most_macs)
        if not labels:
            break
        for label in labels:
            price = Price(label.peak, label.macs, label.copied, label.operators, label.persistent)
            plan = PartialPlan(tuple(option.part for option in label.options), price)
            found.setdefault((label.peak, label.macs, label.persistent), plan)
        limit = max(label.peak for label in labels) - 1
    return undominated(found.values())


def _paths(
    whole: Sequence[int], ending: Mapping[int, Sequence[Option]], limit: int, most_macs: int | None
) -> list[_Label]:
    """The cheapest ways to run all operators within `limit` bytes."""
    at: list[list[_Label]] = [[_Label(0, 0, 0, 0, 0)]]
    for stop in range(1, len(whole) + 1):
        reached: list[_Label] = []
        if whole[stop - 1] <= limit:
            reached = [
                _Label(one.macs, one.persistent, one.copied, one.operators, max(one.peak, whole[stop - 1]), one.options)
                for one in at[stop - 1]
            ]
        for option in ending.get(stop, ()):
            if option.price.peak_bytes <= limit:
                reached += [label.by(option) for label in at[option.part.first]]
        at.append(_cheapest(reached))
    return [label for label in at[-1] if most_macs is None or label.macs <= most_macs]


def _cheapest(labels: Sequence[_Label]) -> list[_Label]:
    """Those that no other is as good as in multiply-adds and persistent bytes."""
    found: list[_Label] = []
    for label in sorted(labels, key=lambda label: label.key):
        if not found or label.persistent < found[-1].persistent:
            found.append(label)
    return found


def undominated(plans: Iterable[PartialPlan]) -> list[PartialPlan]:
    """The plans that no other is as good as, the cheapest first."""
    found: list[PartialPlan] = []
    for plan in sorted(plans, key=lambda plan: (*plan.cost, plan.price.peak_bytes)):
        price = plan.price
        if not any(
            one.price.peak_bytes <= price.peak_bytes and one.price.persistent_bytes <= price.persistent_bytes
            for one in found
        ):
            found.append(plan)
    return found
