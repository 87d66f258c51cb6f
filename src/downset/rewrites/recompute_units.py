"""Finds operators that repeat each other in the blocks of a network, so that a search decides once for all of them.

Source: colour refinement of graphs (Weisfeiler and Leman, 1968), stopped after a few rounds.
Names: a *unit* is a set of operators that look alike: the same bytes, cost and permission, and, some edges around
    them, the same operators that they read and that read them.
Complexity: O(rounds * edges * log edges).
Deviations: refinement to its end would tell apart blocks by their distance from the ends of the network. Stopped early,
    it may also unite operators that differ farther away; a unit is only proposed, and the caller prices what it makes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

__all__ = ["units_of"]

_ROUNDS = 3
"""Edges around an operator that count: most operators of one block of a network then differ."""


def units_of(reads: Sequence[Collection[int]], facts: Sequence[Hashable]) -> list[tuple[int, ...]]:
    """By operator: the operators of its unit, ascending. `facts`: what else must be equal, by operator."""
    readers: list[list[int]] = [[] for _ in reads]
    for operator, sources in enumerate(reads):
        for source in sources:
            readers[source].append(operator)
    colours = _numbered(facts)
    for _ in range(_ROUNDS):
        colours = _numbered(
            [
                (colours[v], tuple(sorted(colours[s] for s in reads[v])), tuple(sorted(colours[r] for r in readers[v])))
                for v in range(len(reads))
            ]
        )
    members: dict[int, list[int]] = {}
    for operator, colour in enumerate(colours):
        members.setdefault(colour, []).append(operator)
    units = {colour: tuple(of) for colour, of in members.items()}
    return [units[colour] for colour in colours]


def _numbered(facts: Sequence[Hashable]) -> list[int]:
    """A number for each different fact, in the order in which they come."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(fact, len(numbers)) for fact in facts]
