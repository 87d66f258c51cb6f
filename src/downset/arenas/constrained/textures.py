"""Shared objects of more than one dimension: GPU textures, which keep the size that they were made with.

Source: the shared-objects form of "Efficient Memory Management for Deep Neural Net Inference" (section 4 finds it "most
    suitable for GPU textures"), with the strategies that LiteRT offers for sizes of two and three dimensions (textures)
    and of four (tensors): naive, equality, greedy in order.
Names: an *extent* is a texture's size in every dimension.
Complexity: O(n k) for k textures.
Deviations: greedy in order reuses only textures that cover the new extent in every dimension, the one with fewest
    elements to spare. Ties go to the lowest number; under equality, four-dimensional sizes take what was freed last.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from downset.errors import UsageError

__all__ = [
    "TEXTURES",
    "Texture",
]


@dataclass(frozen=True, slots=True)
class Texture:
    """A buffer of some extent that must keep its contents from step `start` up to, not including, step `stop`."""

    id: str
    start: int
    stop: int
    extent: tuple[int, ...]


def naive_textures(textures: Sequence[Texture]) -> tuple[int, ...]:
    """Give every texture a buffer of its own."""
    _check(textures)
    return tuple(range(len(textures)))


def equality_textures(textures: Sequence[Texture]) -> tuple[int, ...]:
    """Reuse a free buffer only where its extent is exactly the same."""

    def choose(wanted: Texture, free: Sequence[int], extents: Sequence[tuple[int, ...]]) -> int:
        equal = [number for number in free if extents[number] == wanted.extent]
        if len(wanted.extent) == 4:
            return equal[-1] if equal else -1
        return min(equal, default=-1)

    return _assign(textures, choose)


def textures_in_order(textures: Sequence[Texture]) -> tuple[int, ...]:
    """Reuse the free buffer whose extent covers the new one with the fewest elements to spare."""

    def choose(wanted: Texture, free: Sequence[int], extents: Sequence[tuple[int, ...]]) -> int:
        covering = [
            (prod(extents[number]), number)
            for number in free
            if all(new <= old for new, old in zip(wanted.extent, extents[number], strict=True))
        ]
        return min(covering, default=(0, -1))[1]

    return _assign(textures, choose)


def _check(textures: Sequence[Texture]) -> None:
    """Raise UsageError naming the first texture that cannot be planned, and why."""
    for texture in textures:
        if texture.start >= texture.stop:
            raise UsageError(
                f"the lifetime [{texture.start}, {texture.stop}) of texture {texture.id!r} is empty or reversed"
            )
        if not texture.extent or min(texture.extent) <= 0:
            raise UsageError(f"the extent {texture.extent} of texture {texture.id!r} is not positive")
        if len(texture.extent) != len(textures[0].extent):
            raise UsageError(
                f"texture {texture.id!r} has {len(texture.extent)} dimensions, {textures[0].id!r} has "
                f"{len(textures[0].extent)}: plan them separately"
            )


def _assign(
    textures: Sequence[Texture], choose: Callable[[Texture, Sequence[int], Sequence[tuple[int, ...]]], int]
) -> tuple[int, ...]:
    _check(textures)
    texture_of = [-1] * len(textures)
    in_use: list[tuple[int, int]] = []
    free: list[int] = []  # in the order they were freed
    extents: list[tuple[int, ...]] = []
    for index in sorted(range(len(textures)), key=lambda i: (textures[i].start, i)):
        wanted = textures[index]
        while in_use and in_use[0][0] <= wanted.start:
            free.append(heapq.heappop(in_use)[1])
        chosen = choose(wanted, free, extents)
        if chosen < 0:
            chosen = len(extents)
            extents.append(wanted.extent)
        else:
            free.remove(chosen)
        texture_of[index] = chosen
        heapq.heappush(in_use, (wanted.stop, chosen))
    return tuple(texture_of)


TEXTURES: dict[str, Callable[[Sequence[Texture]], tuple[int, ...]]] = {
    "naive": naive_textures,
    "equality": equality_textures,
    "greedy_in_order": textures_in_order,
}
