"""Parts: which elements of the file's tensors the tensors of a rewrite hold. They are the certificate that a rewritten
network carries.

A rewrite states it for each tensor as it makes it, and `equivalence.parts` proves it, operator by operator, from the
two files alone. It is said of tensors, not of the kind of rewrite: a piece of an image, rows that are kept for the next
strip and a sum of some products are all said in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Part", "along", "part_of_part", "summed"]


@dataclass(frozen=True, slots=True)
class Part:
    """A box of a tensor, in its coordinates: (axis, start, stop), half-open; axes that are not named are whole.

    `of`: the name of a tensor of the original. `terms`: the box holds no finished values, but sums of the products with
    these input channels [start, stop) of the operator that makes it, before a fused activation."""

    of: str
    box: tuple[tuple[int, int, int], ...] = ()
    terms: tuple[int, int] | None = None


def part_of_part(whole: Part | None, part: Part) -> Part:
    """A part of what is itself a part `whole` of a tensor of the original (None: of one of its own tensors)."""
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
