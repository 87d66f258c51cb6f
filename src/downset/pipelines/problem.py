"""The problem that planners of pipelines solve: a network as a chain of cuts, and the price of any strip between two
cuts.

A unit is a set of operators that are planned together. Cut c lies behind unit c - 1, so units [i, j) lie between cuts i
and j.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from downset.errors import UnsupportedError
from downset.pipelines.segment_prices import (
    Ints,
    Mask,
    SegmentPrices,
    SplitOp,
    SplitTensor,
    either,
    price,
    price_segments,
    quantities,
    read_rows,
)

__all__ = [
    "Ints",
    "SegmentPrices",
    "SplitOp",
    "SplitProblem",
    "SplitTensor",
    "chain_problem",
    "joined",
    "price",
    "quantities",
    "window_tables",
]


@dataclass(frozen=True)
class SplitProblem:
    """A network as a chain of `len(units)` units over `ops`. `segment(i, j)` prices strips of units [i, j)."""

    tensors: tuple[SplitTensor, ...]
    ops: tuple[SplitOp, ...]
    units: tuple[tuple[int, ...], ...]
    """The operators of each unit, in an order in which they can run. All units together hold every operator once."""
    kept: frozenset[int] = frozenset()
    """The tensors that are outputs of the network."""
    across: SplitProblem | None = None
    """The same network along the other axis, for tiles; None if that is not known."""
    source_ops: tuple[tuple[int, ...], ...] = ()
    """The graph's operators that each operator of `ops` stands for; empty: each stands for itself."""
    axis: int = 0
    """The axis along which rows lie: 0, the graph's rows or its length; 1, its columns."""
    _segments: dict[tuple[int, int], SegmentPrices] = field(default_factory=dict, compare=False, repr=False)
    facts: dict[str, tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)
    """Figures of the problem by name, each computed once."""
    _needs: dict[tuple[int, ...], dict[int, tuple[int, int]]] = field(default_factory=dict, compare=False, repr=False)
    _needs_lately: dict[tuple[int, ...], dict[int, tuple[int, int]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    _masks: dict[tuple[int, bool], Mask] = field(default_factory=dict, compare=False, repr=False)
    _counts: dict[int, tuple[Mask, int]] = field(default_factory=dict, compare=False, repr=False)
    _rows_read: dict[tuple[int, int, int, int], tuple[Mask, Mask]] = field(
        default_factory=dict, compare=False, repr=False
    )
    _crossing: dict[int, tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)
    _covered: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)
    _weights: dict[tuple[int, int], int] = field(default_factory=dict, compare=False, repr=False)
    _sinks: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def cuts(self) -> int:
        """The number of units; cuts are 0 … cuts."""
        return len(self.units)

    def segment(self, start: int, stop: int) -> SegmentPrices:
        if (start, stop) not in self._segments:
            price_segments(self, stop, self._segments)
        return self._segments[start, stop]

    def macs_before(self) -> tuple[int, ...]:
        """The MACs before each cut."""
        if "macs" not in self.facts:
            totals = [0]
            for unit in self.units:
                needed = (self.ops[op].macs_per_row * self.tensors[self.ops[op].outputs[0]].rows for op in unit)
                totals.append(totals[-1] + sum(needed))
            self.facts["macs"] = tuple(totals)
        return self.facts["macs"]

    def least_macs_before(self) -> tuple[int, ...]:
        """The MACs before each cut that no plan can leave out: those of rows and columns that are read. They are fewer
        than `macs_before` if a stride skips rows, which strips may skip too. The MACs of a plan beyond these are
        redundant, for every method."""
        if "least" not in self.facts:
            rows = _read_rows(self)
            columns = None if self.across is None else _read_rows(self.across)
            totals = [0]
            for unit in self.units:
                least = 0
                for op in unit:
                    needed = self.ops[op].macs_per_row * rows[op]
                    if self.across is not None and columns is not None:
                        needed = needed * columns[op] // self.across.tensors[self.across.ops[op].outputs[0]].rows
                    least += needed
                totals.append(totals[-1] + least)
            self.facts["least"] = tuple(totals)
        return self.facts["least"]

    def cut_bytes(self) -> tuple[int, ...]:
        """The bytes of all tensors that cross each cut; at the ends those of the network's inputs and outputs."""
        if "bytes" not in self.facts:
            self.facts["bytes"] = tuple(
                sum(self.tensors[tensor].nbytes for tensor in self.crossing(cut)) for cut in range(self.cuts + 1)
            )
        return self.facts["bytes"]

    def crossing(self, cut: int) -> tuple[int, ...]:
        """The tensors made before a cut (or given to the network) that are read after it or are outputs."""
        if cut not in self._crossing:
            self._crossing[cut] = self._crossed(cut)
        return self._crossing[cut]

    def _crossed(self, cut: int) -> tuple[int, ...]:
        before = {op for unit in self.units[:cut] for op in unit}
        after = {op for unit in self.units[cut:] for op in unit}
        made_before = {tensor for op in before for tensor in self.ops[op].outputs}
        made_after = {tensor for op in after for tensor in self.ops[op].outputs}
        read_after = {tensor for op in after for tensor in self.ops[op].inputs}
        return tuple(sorted((read_after - made_after) | (self.kept & made_before)))

    def covered(self, start: int, stop: int) -> tuple[int, ...]:
        """The graph's operators of units [start, stop)."""
        if (start, stop) not in self._covered:
            ops = [op for unit in self.units[start:stop] for op in unit]
            stands_for = self.source_ops or [(op,) for op in range(len(self.ops))]
            self._covered[start, stop] = tuple(sorted(source for op in ops for source in stands_for[op]))
        return self._covered[start, stop]

    def sinks(self, start: int, stop: int) -> frozenset[int]:
        """The tensors that units [start, stop) make and that are read later, are outputs, or that nothing reads."""
        if (start, stop) not in self._sinks:
            inside = [op for unit in self.units[start:stop] for op in unit]
            later = {t for unit in self.units[stop:] for op in unit for t in self.ops[op].inputs} | self.kept
            read = {tensor for op in inside for tensor in self.ops[op].inputs}
            results = {tensor for op in inside for tensor in self.ops[op].outputs}
            self._sinks[start, stop] = frozenset(results & later | results - read)
        return self._sinks[start, stop]

    def rows_of(self, tensor: int, *, of_all: bool) -> Mask:
        """All rows of a tensor, or none. Tensors of equal height share one mask, so it must not be changed."""
        key = (self.tensors[tensor].rows, of_all)
        if key not in self._masks:
            self._masks[key] = np.full(*key)
        return self._masks[key]

    def count(self, mask: Mask) -> int:
        """The number of rows in a mask."""
        if id(mask) not in self._counts:
            self._counts[id(mask)] = (mask, int(np.count_nonzero(mask)))
        return self._counts[id(mask)][1]

    def rows_read(self, first: Ints, last: Ints, output_mask: Mask, rows: int) -> Mask:
        """`read_rows` with a memory: operators of equal shapes share their tables and masks."""
        key = (id(first), id(last), id(output_mask), rows)
        if key not in self._rows_read:
            read = read_rows(first, last, np.flatnonzero(output_mask), rows)
            whole = self._masks.setdefault((rows, True), np.ones(rows, bool)) if read.all() else read
            self._rows_read[key] = (output_mask, whole)
        return self._rows_read[key][1]

    def turned(self) -> SplitProblem:
        if self.across is None:
            raise UnsupportedError("tiles need the columns of this network, which are not known; use row strips")
        return self.across

    def weight_bytes(self, start: int, stop: int) -> int:
        """The bytes of the constants that units [start, stop) read; each constant counts once."""
        if (start, stop) not in self._weights:
            seen: dict[int, int] = {}
            total, self._weights[start, start] = 0, 0
            for behind in range(start + 1, self.cuts + 1):
                for op in self.units[behind - 1]:
                    for tensor, nbytes in self.ops[op].weights:
                        total += 0 if tensor in seen else nbytes
                        seen[tensor] = nbytes
                self._weights[start, behind] = total
        return self._weights[start, stop]

    def strip_weight_bytes(self, start: int, stop: int) -> int:
        """The bytes of the constants that every strip of units [start, stop) reads. Operators that lead only to tensors
        without rows run in the last strip alone, so their constants are left out."""
        sinks = self.sinks(start, stop)
        if self.segment(start, stop).rows == 1 or all(self.tensors[tensor].rows > 1 for tensor in sinks):
            return self.weight_bytes(start, stop)
        wanted = {tensor for tensor in sinks if self.tensors[tensor].rows > 1}
        seen: dict[int, int] = {}
        for op in (op for unit in reversed(self.units[start:stop]) for op in reversed(unit)):
            if wanted & set(self.ops[op].outputs):
                wanted |= set(self.ops[op].inputs)
                seen.update(self.ops[op].weights)
        return sum(seen.values())


def _read_rows(problem: SplitProblem) -> dict[int, int]:
    """The number of rows of each operator that are read in the whole network."""
    read = {t: problem.rows_of(t, of_all=t in problem.kept) for op in problem.ops for t in op.outputs}
    inputs = {tensor for op in problem.ops for tensor in op.inputs}
    rows_of: dict[int, int] = {}
    for op in (op for unit in reversed(problem.units) for op in reversed(unit)):
        described = problem.ops[op]
        sink = inputs.isdisjoint(described.outputs)  # nothing reads it, but it is computed whole
        if sink or described.whole:
            of_all = sink or any(problem.count(read[t]) for t in described.outputs)
            rows = problem.rows_of(described.outputs[0], of_all=of_all)
        else:
            rows = either([read[tensor] for tensor in described.outputs])
        rows_of[op] = problem.count(rows)
        for tensor, first, last in zip(described.inputs, described.first, described.last, strict=True):
            if tensor in read:
                read[tensor] = either([read[tensor], problem.rows_read(first, last, rows, len(read[tensor]))])
    return rows_of


def joined(problem: SplitProblem, cuts: Sequence[int]) -> SplitProblem:
    """The same network with the units between consecutive `cuts` joined into one. `cuts` ascend from 0 to the end."""
    units = tuple(tuple(op for unit in problem.units[start:stop] for op in unit) for start, stop in pairwise(cuts))
    across = None if problem.across is None else joined(problem.across, cuts)
    return SplitProblem(problem.tensors, problem.ops, units, problem.kept, across, problem.source_ops, problem.axis)


def chain_problem(layers: Sequence[tuple[int, int, int, int]], *, rows: int, row_bytes: int) -> SplitProblem:
    """A chain of layers, each one unit: (MACs per output row, kernel, stride, bytes per output row). Pads keep the rows
    of a layer of stride 1. For tests and synthetic networks."""
    tensors, ops = [SplitTensor(rows, row_bytes)], []
    for macs_per_row, kernel, stride, out_row_bytes in layers:
        extent = tensors[-1].rows
        output_rows = max(1, -(-extent // stride))
        first, last = window_tables(output_rows, extent, kernel=kernel, stride=stride, pad=(kernel - 1) // 2)
        tensors.append(SplitTensor(output_rows, out_row_bytes))
        ops.append(SplitOp(macs_per_row, (len(tensors) - 2,), (len(tensors) - 1,), (first,), (last,)))
    units = tuple((op,) for op in range(len(ops)))
    return SplitProblem(tuple(tensors), tuple(ops), units, frozenset({len(tensors) - 1}))


def window_tables(output_rows: int, extent: int, *, kernel: int, stride: int, pad: int) -> tuple[Ints, Ints]:
    """The tables of a sliding window from `extent` input rows to `output_rows`, clipped at the borders."""
    rows = np.arange(output_rows + 1, dtype=np.int64)
    first = np.clip(rows * stride - pad, 0, extent - 1)
    last = np.clip((rows - 1) * stride - pad + kernel, 1, extent)
    return first, np.maximum(last, 1)
