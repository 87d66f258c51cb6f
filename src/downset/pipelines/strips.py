"""Divides rows among the devices of a stage: equally, in proportion to speed, or balanced."""

from __future__ import annotations

from collections.abc import Sequence

from downset.pipelines.drafts import Tile
from downset.pipelines.problem import SegmentPrices, price

__all__ = ["balanced_rows", "equal_rows", "proportional_rows", "slowest_strip_s", "tiles"]


def tiles(devices: Sequence[int], bounds: Sequence[int]) -> tuple[Tile, ...]:
    """The devices in order with their rows; devices without rows are left out."""
    return tuple(
        Tile(device, bounds[k], bounds[k + 1]) for k, device in enumerate(devices) if bounds[k] < bounds[k + 1]
    )


def equal_rows(rows: int, count: int) -> list[int]:
    """Boundaries of `count` strips of equal height, up to rounding."""
    return [k * rows // count for k in range(count + 1)]


def proportional_rows(rows: int, speeds: Sequence[float]) -> list[int]:
    """Boundaries of strips in proportion to speed, rounded to the nearest row."""
    total, running, bounds = sum(speeds), 0.0, [0]
    for speed in speeds:
        running += speed
        bounds.append(round(rows * running / total))
    bounds[-1] = rows
    return bounds


def balanced_rows(segment: SegmentPrices, speeds: Sequence[float]) -> list[int]:
    """Boundaries of least maximum computing time, exactly: bisection on the time, filling the strips greedily, until a
    further bisection changes no row. A device may get no row."""
    low, high = 0.0, max(price(segment, 0, segment.rows)[0] / speed for speed in speeds)
    best = _filled(segment, speeds, high)
    assert best is not None
    high = slowest_strip_s(segment, speeds, best)
    while low < high * (1 - 1e-12):
        middle = (low + high) / 2
        rows = _filled(segment, speeds, middle)
        if rows is None:
            low = middle
        else:
            best, high = rows, min(middle, slowest_strip_s(segment, speeds, rows))
    return best


def _filled(segment: SegmentPrices, speeds: Sequence[float], limit_s: float) -> list[int] | None:
    """The boundaries if every device takes as many rows as it can compute within the limit; None if rows are left."""
    bounds, row = [0], 0
    for speed in speeds:
        room = limit_s * speed * (1 + 1e-12) + 1e-6
        if row < segment.rows:
            if int(segment.final[0, row]) <= room:
                row = segment.rows
            else:
                upper = segment.upper[0, row + 1 : segment.rows]
                reach = int(upper.searchsorted(int(segment.lower[0, row]) + int(room), side="right"))
                row += reach
        bounds.append(row)
    return bounds if row == segment.rows else None


def slowest_strip_s(segment: SegmentPrices, speeds: Sequence[float], bounds: Sequence[int]) -> float:
    """Seconds of the device that computes longest."""
    return max(price(segment, bounds[k], bounds[k + 1])[0] / speed for k, speed in enumerate(speeds))
