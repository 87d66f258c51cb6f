"""Axes of charts: their units, round values on them, and how these are written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from downset.text import format_size

__all__ = ["Axis", "Unit", "tick_text", "ticks"]

Unit = Literal["bytes", "steps", "s", "µs", "lanes", "share", "count"]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `start` to `stop` in data units. `names`: names of lanes, for the unit "lanes"."""

    start: float
    stop: float
    label: str
    unit: Unit
    names: tuple[str, ...] = ()

    @property
    def extent(self) -> float:
        return max(self.stop - self.start, 1e-12)


def ticks(axis: Axis) -> list[float]:
    """About six round values inside the axis: multiples of 1, 2 or 5 times a power of ten. Bytes are multiples in the
    largest unit of 1024 that the axis reaches, or of its half, quarter or eighth."""
    scale = 1024.0 ** max(0, int(math.log(max(axis.extent, 1), 1024))) if axis.unit == "bytes" else 1.0
    rough = axis.extent / scale / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough) * scale
    if scale > 1 and rough < 1:
        step = 2.0 ** math.ceil(math.log2(rough)) * scale
    if axis.unit in ("steps", "count"):
        step = max(1.0, step)
    first = math.ceil(axis.start / step - 1e-9)
    last = math.floor((axis.start + axis.extent) / step + 1e-9)
    return [place * step for place in range(first, last + 1)]


def tick_text(value: float, axis: Axis) -> str:
    """A tick with its unit."""
    if axis.unit == "bytes":
        return format_size(value)
    if axis.unit in ("s", "µs"):
        of_second = 1.0 if axis.unit == "s" else 1e-6
        extent_s = axis.extent * of_second
        factor, unit = (1, "s") if extent_s >= 1 else (1e3, "ms") if extent_s >= 1e-3 else (1e6, "µs")
        return f"{value * of_second * factor:.6g} {unit}"
    if axis.unit == "share":
        return f"{100 * value:.4g}%"
    return f"{value:,.6g}"
