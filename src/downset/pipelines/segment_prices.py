"""Prices of every strip between two cuts of a chain.

The rows of an earlier tensor that a strip [lo, hi) of the frame at cut j needs start at a row that depends on lo alone
and stop at a row that depends on hi alone (halos are intervals, and so are hulls of intervals). So the MACs and bytes
of every strip are A[hi] - B[lo] with two tables for each segment, and one backward sweep for each cut makes all tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from downset.pipelines.problem import Ints, SplitOp, SplitProblem, SplitTensor

__all__ = ["Mask", "SegmentPrices", "either", "price", "quantities", "read_rows", "rows_of", "sweeps"]

Mask = npt.NDArray[np.bool_]


def read_rows(first: Ints, last: Ints, outputs: Ints, rows: int) -> Mask:
    """A mask of the input rows, of `rows` in all, that an operator with these tables reads to make the output rows
    `outputs`."""
    begun = np.bincount(first[outputs], minlength=rows + 1) - np.bincount(last[outputs + 1], minlength=rows + 1)
    read: Mask = np.cumsum(begun)[:rows] > 0
    return read


def either(masks: Sequence[Mask]) -> Mask:
    """The union of these masks, of equal length. It is one of the masks itself if that contains all others."""
    first = masks[0]
    for mask in masks[1:]:
        if mask is first or first.all():
            continue
        first = mask if mask.all() or not first.any() else first | mask
    return first


@dataclass(frozen=True, slots=True)
class SegmentPrices:
    """Prices of strips of units [i, j): quantity(lo, hi) = upper[q, hi] - lower[q, lo] for hi < rows, and final[q, lo]
    for hi = rows, because the last strip also makes what cannot be cut. q: 0 MACs, 1 bytes in, 2 bytes out, 3 bytes
    that operators without MACs read and write."""

    rows: int
    upper: Ints
    lower: Ints
    final: Ints


def price(segment: SegmentPrices, lo: int, hi: int) -> tuple[int, int, int]:
    """(MACs, bytes in, bytes out) of the strip [lo, hi); zeros for an empty strip."""
    macs, in_bytes, out_bytes, _ = quantities(segment, lo, hi)
    return (macs, in_bytes, out_bytes)


def quantities(segment: SegmentPrices, lo: int, hi: int) -> tuple[int, int, int, int]:
    """(MACs, bytes in, bytes out, moved bytes) of the strip [lo, hi); zeros for an empty strip."""
    if hi <= lo:
        return (0, 0, 0, 0)
    column = segment.final[:, lo] if hi == segment.rows else segment.upper[:, hi] - segment.lower[:, lo]
    macs, in_bytes, out_bytes, moved_bytes = column.tolist()
    return (macs, in_bytes, out_bytes, moved_bytes)


def sweeps(problem: SplitProblem, stop: int) -> Iterator[tuple[int, Sweep]]:
    """(start, rows needed of every tensor) of each segment that ends at cut `stop`, backwards. Each sweep is valid
    until the next is asked for."""
    read_later = {t for unit in problem.units[stop:] for op in unit for t in problem.ops[op].inputs} | problem.kept
    read_inside: set[int] = set()
    sinks: list[int] = []
    sweep: Sweep | None = None
    for start in range(stop - 1, -1, -1):
        ops = problem.units[start]
        read_inside |= {tensor for op in ops for tensor in problem.ops[op].inputs}
        outputs = [tensor for op in ops for tensor in problem.ops[op].outputs]
        fresh = [tensor for tensor in outputs if tensor in read_later or tensor not in read_inside]
        sinks += fresh
        if sweep is None or fresh:  # other sinks or another frame: begin at the cut again
            sweep = Sweep(problem, sinks)
            for unit in range(stop - 1, start, -1):
                sweep.add(problem.units[unit])
        sweep.add(ops)
        yield start, sweep


class Sweep:
    """The rows needed of every tensor, by the first and the last row of a strip, extended backwards from the sinks."""

    def __init__(self, problem: SplitProblem, sinks: Sequence[int]) -> None:
        self.problem = problem
        tensors = problem.tensors
        self.rows = rows = min((tensors[sink].rows for sink in sinks if tensors[sink].rows > 1), default=1)
        frame = np.arange(rows + 1, dtype=np.int64)
        self.need: dict[int, tuple[Ints, Ints]] = {}
        self.whole: dict[int, Ints] = {}  # the first row needed by a strip that reaches the end
        self.ends: dict[int, int] = {}  # the row behind the last that such a strip needs
        self.made: set[int] = set()
        self.macs, self.out, self.moved = (np.zeros((3, rows + 1), np.int64) for _ in range(3))
        for sink in sinks:
            extent, row_bytes = tensors[sink].rows, tensors[sink].row_bytes
            self.ends[sink] = extent
            if extent == 1:
                self.whole[sink] = np.zeros(rows + 1, np.int64)
                self.out[2] += row_bytes
                continue
            row = frame * extent // rows
            self.need[sink], self.whole[sink] = (row, row), row
            self.out += np.stack([row, row, extent - row]) * row_bytes

    def add(self, ops: Sequence[int]) -> None:
        for op in reversed(ops):
            described = self.problem.ops[op]
            self.made.update(described.outputs)
            outputs = [tensor for tensor in described.outputs if tensor in self.whole]
            if not outputs:
                continue
            extent = self.problem.tensors[described.outputs[0]].rows
            first, end = self.whole[outputs[0]], max(self.ends[tensor] for tensor in outputs)
            for tensor in outputs[1:]:
                first = np.minimum(first, self.whole[tensor])
            strips = [self.need[tensor] for tensor in outputs if tensor in self.need]
            low, high = strips[0] if strips else (None, None)
            if len(strips) > 1:
                low = np.minimum.reduce([pair[0] for pair in strips])
                high = np.maximum.reduce([pair[1] for pair in strips])
            if described.whole:
                first, end = np.zeros_like(first), extent
                if low is not None and high is not None:
                    low, high = np.zeros_like(low), np.full_like(high, extent)
            if described.macs_per_row:
                self.macs[2] += (end - first) * described.macs_per_row
                if low is not None and high is not None:
                    self.macs[0] += high * described.macs_per_row
                    self.macs[1] += low * described.macs_per_row
            else:
                self._write(described, first, end, low, high)
            for position, tensor in enumerate(described.inputs):
                if not described.macs_per_row:
                    starts, stops = described.first[position], described.last[position]
                    rows = (starts[low], stops[high]) if low is not None and high is not None else (None, None)
                    self._move(self.problem.tensors[tensor].row_bytes, starts[first], int(stops[end]), *rows)
                self.ends[tensor] = max(self.ends.get(tensor, 0), int(described.last[position][end]))
                self._read(tensor, described.first[position], described.last[position], first, low, high)

    def _write(self, described: SplitOp, first: Ints, end: int, low: Ints | None, high: Ints | None) -> None:
        """Count the rows that an operator writes. All its outputs have the rows of the first, unless it is computed
        whole: then each has its own."""
        for tensor in (self.problem.tensors[output] for output in described.outputs):
            if described.whole:
                end, high = tensor.rows, None if high is None else np.full_like(high, tensor.rows)
            self._move(tensor.row_bytes, first, end, low, high)

    def _move(self, row_bytes: int, first: Ints, end: int, low: Ints | None, high: Ints | None) -> None:
        """Count the bytes of rows `low` to `high` (in a last strip `first` to `end`) that are read or written without a
        MAC."""
        self.moved[2] += (end - first) * row_bytes
        if low is not None and high is not None:
            self.moved[0] += high * row_bytes
            self.moved[1] += low * row_bytes

    def _read(self, tensor: int, starts: Ints, stops: Ints, first: Ints, low: Ints | None, high: Ints | None) -> None:
        # Row `rows` starts no strip and row 0 ends none, so these entries of the tables are never read.
        begins = starts[first]
        self.whole[tensor] = np.minimum(self.whole[tensor], begins) if tensor in self.whole else begins
        if low is None or high is None:
            return
        pair = (starts[low], stops[high])
        if tensor in self.need:
            pair = (np.minimum(self.need[tensor][0], pair[0]), np.maximum(self.need[tensor][1], pair[1]))
        self.need[tensor] = pair

    def segment(self) -> SegmentPrices:
        tables = np.zeros((3, 4, self.rows + 1), np.int64)
        tables[:, 0], tables[:, 2], tables[:, 3] = self.macs, self.out, self.moved
        tables[:, 1] = self.read_bytes(tensor for tensor in self.whole if tensor not in self.made)
        return SegmentPrices(self.rows, tables[0], tables[1], tables[2])

    def read_bytes(self, tensors: Iterable[int]) -> Ints:
        """Tables (upper, lower, final) of the bytes of these tensors that strips read."""
        tables = np.zeros((3, self.rows + 1), np.int64)
        for tensor in tensors:
            begins, row_bytes = self.whole[tensor], self.problem.tensors[tensor].row_bytes
            tables[2] += (self.ends[tensor] - begins) * row_bytes
            if tensor in self.need:
                tables[1] += self.need[tensor][0] * row_bytes
                tables[0] += self.need[tensor][1] * row_bytes
        return tables


def rows_of(tensor: SplitTensor, lo: int, hi: int, rows: int) -> tuple[int, int]:
    return (lo * tensor.rows // rows, hi * tensor.rows // rows)
