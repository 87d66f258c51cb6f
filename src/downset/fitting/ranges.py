"""Sizes that are given as ranges: planned for the largest of each, and tried at others within."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from downset.errors import UsageError
from downset.formats.open_sizes import ALL_OTHERS
from downset.formats.reading import known_sizes, open_sizes
from downset.messages import Setting
from downset.results.sizes import PlannedSize, place_name

__all__ = ["SizeRanges", "split_ranges"]

FilePath = str | os.PathLike[str]
Shapes = Mapping[str, tuple[int, ...]]

_STEPS = 4
"""Steps between the sizes of a range at which bytes are measured."""


@dataclass(frozen=True, slots=True)
class SizeRanges:
    """The ranges of a job. `shapes` and `largest`: the shapes of inputs and the open sizes that are planned. `ranges`:
    by the name of an open size, from the least size to the largest."""

    model: FilePath
    shapes: Shapes | None
    largest: Mapping[str, int]
    ranges: Mapping[str, range]

    def shapes_at(self, sizes: Mapping[str, int]) -> Shapes:
        """The shapes of the inputs with these sizes, others as planned; sizes that follow from these do so."""
        return known_sizes(self.model, shapes=self.shapes, dims={**self.largest, **sizes}).shapes

    def planned(self) -> list[PlannedSize]:
        """The axes that have each range."""
        sizes = open_sizes(self.model, shapes=self.shapes, dims=self.largest).sizes
        places = {name: one.places for one in sizes for name in (one.name, *(place_name(*each) for each in one.places))}
        return [PlannedSize(name, sizes[0], sizes[-1], tuple(places[name])) for name, sizes in self.ranges.items()]

    def between(self) -> list[Mapping[str, int]]:
        """The least sizes of all ranges together, and those in the middle."""
        least = {name: sizes[0] for name, sizes in self.ranges.items()}
        middle = {name: sizes[len(sizes) // 2] for name, sizes in self.ranges.items()}
        largest = {name: sizes[-1] for name, sizes in self.ranges.items()}
        return [least] if middle in (least, largest) else [least, middle]

    def curve(self, name: str) -> list[int]:
        """The sizes of a range at which bytes are measured, the largest left out."""
        sizes = self.ranges[name]
        return sorted({sizes[(len(sizes) - 1) * step // _STEPS] for step in range(_STEPS)} - {sizes[-1]})


def split_ranges(model: FilePath, shapes: Shapes | None, dims: Mapping[str, int | range]) -> SizeRanges | None:
    """The ranges among the sizes that `dims` gives; None where there are none. Raises UsageError for a range that does
    not go from a size to a larger one."""
    ranges = {name: size for name, size in dims.items() if isinstance(size, range)}
    for name, sizes in ranges.items():
        if len(sizes) < 2 or sizes.step != 1 or sizes[0] < 1:
            raise UsageError(Setting("dims", {name: sizes}), ": a range goes from a size above 0 to a larger one")
        if name == ALL_OTHERS:
            raise UsageError(Setting("dims", {name: sizes}), ": a range is that of one size: give its name")
    if not ranges:
        return None
    largest = {name: size[-1] if isinstance(size, range) else size for name, size in dims.items()}
    return SizeRanges(model, shapes, largest, ranges)
