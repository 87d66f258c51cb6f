"""Which pairs of devices exchange messages side by side, and how long a message takes where each follows another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["Group", "rounds_of_pairs", "seconds_a_message"]

Group = Sequence[tuple[int, int]]
"""Pairs of devices; a pair stands there as often as messages of it are under way at once."""
_FOLLOWING = 16
"""The least messages of a group that follow its first ones."""


def rounds_of_pairs(count: int) -> Iterator[list[tuple[int, int]]]:
    """All pairs of `count` devices, in rounds whose pairs share no device, as in a tournament."""
    seats: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    half = len(seats) // 2
    for _ in range(len(seats) - 1):
        games = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in games if a is not None and b is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def seconds_a_message(
    groups: Sequence[Group],
    *,
    send: Callable[[tuple[int, int]], Any],
    first_of: Callable[[Sequence[Any]], Sequence[Any]],
    arrived: Callable[[Any, tuple[int, int]], None],
) -> list[float]:
    """Seconds from one arrival to the next, for each group. Each message that arrives is followed by the next one of
    its pair. All groups send at the same time.

    `send` returns a handle to wait for, `first_of` returns those handles that have arrived, and `arrived` may raise for
    one."""
    under_way: dict[Any, tuple[int, tuple[int, int]]] = {}
    left = [max(_FOLLOWING, len(pairs)) for pairs in groups]
    arrivals: list[list[float]] = [[] for _ in groups]
    for group, pairs in enumerate(groups):
        under_way.update({send(pair): (group, pair) for pair in pairs})
    while under_way:
        for reference in first_of([*under_way]):
            group, pair = under_way.pop(reference)
            arrived(reference, pair)
            arrivals[group].append(time.monotonic())
            if left[group]:
                left[group] -= 1
                under_way[send(pair)] = (group, pair)
    # At the end fewer messages are under way, so the last arrivals do not count.
    whole = [times[: len(times) - len(pairs) + 1] for times, pairs in zip(arrivals, groups, strict=True)]
    return [max((own[-1] - own[0]) / (len(own) - 1), 1e-9) for own in whole]
