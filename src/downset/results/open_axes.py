"""Axes of inputs whose sizes a file leaves open, and how a session's memory grows with each."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AxisGrowth", "OpenAxis"]


@dataclass(frozen=True, slots=True)
class OpenAxis:
    """An open size. `name`: its symbol in the file, or `x[2]` for axis 2 of input x. `places`: (input, axis) of each
    axis that has this size. `size`: the size for which is planned."""

    name: str
    places: tuple[tuple[str, int], ...]
    size: int


@dataclass(frozen=True, slots=True)
class AxisGrowth:
    """The most bytes in use in the arena of the shipped file's session, at the planned size of one open axis and at
    another size of it, the other axes as planned. `curve`: (size, bytes) at sizes of an axis that was given as a range,
    of which the largest is planned; empty for another axis."""

    name: str
    size: int
    in_use_bytes: int
    other_size: int
    other_bytes: int
    curve: tuple[tuple[int, int], ...] = ()

    @property
    def bytes_each(self) -> float:
        """Bytes for each step of the axis between the two sizes."""
        return (self.other_bytes - self.in_use_bytes) / (self.other_size - self.size)
