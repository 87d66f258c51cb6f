"""Rows as integers: intervals, which input rows an output row reads, and a graph reduced to them.

Intervals are half-open `(start, stop)` along one spatial axis. An `AxisMap` is exact integer arithmetic, and every kind
with a halo uses it: output row r reads the input rows from floor((scale · r + low) / per) to
floor((scale · r + high) / per), both included, as far as they exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

__all__ = ["SAME", "AxisMap", "Interval", "RowForm", "RowInput", "RowOp", "equal_strips", "hull", "needed"]

Interval = tuple[int, int]


class AxisMap(NamedTuple):
    """Output row r reads input rows floor((scale · r + low) / per) … floor((scale · r + high) / per). `scale` and `per`
    are positive, so the first and last row read never move back as r grows."""

    scale: int
    per: int
    low: int
    high: int

    def __call__(self, wanted: Interval, rows: int) -> Interval:
        """The rows read to make the interval `wanted`, clipped to an input of `rows` rows.

        Empty for an empty interval. Otherwise at least one row: where only padding would be read, the nearest row,
        since an operator cannot run without any.
        """
        if wanted[0] >= wanted[1]:
            return (0, 0)
        start = (self.scale * wanted[0] + self.low) // self.per
        stop = (self.scale * (wanted[1] - 1) + self.high) // self.per + 1
        start = min(max(start, 0), rows - 1)
        return (start, max(min(stop, rows), start + 1))

    @property
    def has_no_gaps(self) -> bool:
        """Whether the input rows that an interval reads are always an interval, however many rows there are."""
        return self.scale + self.low - self.high <= self.per


SAME = AxisMap(1, 1, 0, 0)


def equal_strips(rows: int, count: int) -> tuple[Interval, ...]:
    """`count` strips, cut at floor(i · rows / count). They differ by one row at most; some may be empty."""
    cuts = [index * rows // count for index in range(count + 1)]
    return tuple(pairwise(cuts))


def hull(first: Interval, second: Interval) -> Interval:
    """The least interval that holds both; an empty interval does not count."""
    if first[0] >= first[1]:
        return second
    return first if second[0] >= second[1] else (min(first[0], second[0]), max(first[1], second[1]))


@dataclass(frozen=True, slots=True)
class RowInput:
    """An activation that an operator reads; `map` is None where it is read whole."""

    tensor: int
    map: AxisMap | None


@dataclass(frozen=True, slots=True)
class RowOp:
    """An operator as planners read it. `rows`: of its first output. `whole`: it makes all its rows or none."""

    inputs: tuple[RowInput, ...]
    outputs: tuple[int, ...]
    rows: int
    macs_per_row: int
    whole: bool = False

    @property
    def macs(self) -> int:
        return self.rows * self.macs_per_row


@dataclass(frozen=True, slots=True)
class RowForm:
    """A graph reduced to integers along one axis: what planners of strips and the native searches read.

    Indices are the graph's. `rows` and `bytes_per_row` are by tensor; only activations have bytes here.
    """

    ops: tuple[RowOp, ...]
    rows: tuple[int, ...]
    bytes_per_row: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    axis: int = 0
    """1 where the rows of this form are the graph's columns, else 0."""


def needed(form: RowForm, ops: Iterable[int], wanted: Mapping[int, Interval]) -> dict[int, Interval]:
    """By tensor: the rows that the operators `ops` touch when they compute the rows `wanted`.

    For a tensor that `ops` make these are the rows computed; for another, the rows that must exist before. A tensor of
    which no row is needed is left out. O(n log n + edges) for n operators.
    """
    rows_of = {tensor: rows for tensor, rows in wanted.items() if rows[0] < rows[1]}
    for index in sorted(ops, reverse=True):
        op = form.ops[index]
        output_rows: Interval = (0, 0)
        for tensor in op.outputs:
            output_rows = hull(output_rows, rows_of.get(tensor, (0, 0)))
        if output_rows[0] >= output_rows[1]:
            continue
        if op.whole:
            output_rows = (0, op.rows)
        for tensor in op.outputs:
            rows_of[tensor] = (0, form.rows[tensor]) if op.whole else output_rows
        for item in op.inputs:
            rows = form.rows[item.tensor]
            read = (0, rows) if item.map is None else item.map(output_rows, rows)
            rows_of[item.tensor] = hull(rows_of.get(item.tensor, (0, 0)), read)
    return rows_of
