"""The sizes that the inputs of a file leave open."""

from __future__ import annotations

from dataclasses import dataclass

from downset.text import brief, printable

__all__ = ["OpenSize", "OpenTensor", "PlannedSize", "place_name", "quoted"]


@dataclass(frozen=True, slots=True)
class OpenSize:
    """A size that a file leaves open. `name`: what `dims` calls it, which is its name in the file or, without a usable
    one, the place of its axis: `x[2]`. `places`: its axes, as (input, axis). `size`: None where it is not known.
    `assumed`: nobody gave the size, and it is 1 because the axis is a batch. `derived`: it follows from others."""

    name: str
    places: tuple[tuple[str, int], ...]
    size: int | None = None
    assumed: bool = False
    derived: bool = False

    @property
    def shown(self) -> str:
        """Its axes, with its name where that says more."""
        axes = ", ".join(f"axis {axis} of {quoted(name)}" for name, axis in self.places)
        return axes if self.name == place_name(*self.places[0]) else f"{brief(printable(self.name), 40)} ({axes})"


@dataclass(frozen=True, slots=True)
class PlannedSize:
    """A size for which a file was planned from the least to the most, and its axes, as (input, axis)."""

    name: str
    least: int
    most: int
    places: tuple[tuple[str, int], ...]

    @property
    def shown(self) -> str:
        return f"{printable(self.name)} is from {self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class OpenTensor:
    """An input or output of a file, with the names of its open sizes ("?" where the file gives none). `shape`: None
    where the file does not state the number of axes."""

    name: str
    shape: tuple[int | str, ...] | None


def place_name(name: str, axis: int) -> str:
    """The place of an axis as `dims` takes it."""
    return f"{name}[{axis}]"


def quoted(name: str) -> str:
    return repr(brief(printable(name), 60))
