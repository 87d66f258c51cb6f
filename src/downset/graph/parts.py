"""Parts: which elements of the original file's tensors the tensors of a rewrite hold. They are the certificate of a
rewritten file.

A rewrite states the part of each tensor that it makes, and `equivalence.parts` proves these statements, operator by
operator, from the two files alone. Every rewrite uses the same form: for a piece of an image, for rows that are kept
for the next strip, and for a sum of some products. The result of a merged operator has several pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ChannelPiece", "Part", "along", "part_of_part", "summed"]


@dataclass(frozen=True, slots=True)
class Part:
    """A box of the tensor named `of` in the original file. Each entry (axis, start, stop) is a half-open interval in
    that tensor's coordinates; an axis without an entry is whole.

    With `terms` = (start, stop) the elements are unfinished: sums of the products with these input channels only of the
    operator that makes the tensor, before a fused activation."""

    of: str
    box: tuple[tuple[int, int, int], ...] = ()
    terms: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ChannelPiece:
    """Some of the channels (axis 1) of a tensor that a merged operator makes: all those of the tensor named `of` in the
    original file.

    With `before_pool`, which is for the result of a 1x1 convolution behind an average pool, they hold what this
    convolution makes of the pool's input instead, with its bias or without."""

    of: str
    before_pool: bool = False


def part_of_part(whole: Part | None, part: Part) -> Part:
    """The part of the original tensor, where `part` is a part of a tensor that is itself the part `whole`. With `whole`
    None, `part` is already a part of an original tensor."""
    if whole is None:
        return part
    starts = {axis: start for axis, start, _ in whole.box}
    moved = {axis: (axis, starts.get(axis, 0) + low, starts.get(axis, 0) + high) for axis, low, high in part.box}
    box = {entry[0]: entry for entry in whole.box} | moved
    return Part(whole.of, tuple(box[axis] for axis in sorted(box)), part.terms or whole.terms)


def along(of: str, axis: int, start: int, stop: int) -> Part:
    """The box [start, stop) along one axis."""
    return Part(of, ((axis, start, stop),))


def summed(of: str, start: int, stop: int) -> Part:
    """A sum of the products with the input channels [start, stop)."""
    return Part(of, (), (start, stop))
