"""What planners of pipelines see: a network as a chain of cuts, and the price of any strip between two of them.

A unit is a set of operators computed together; cut c lies behind unit c - 1, so that units [i, j) lie between cuts i
and j. What a strip [lo, hi) of the frame at cut j needs of an earlier tensor starts at a row that depends on lo alone
and stops at one that depends on hi alone (halos are intervals, hulls of intervals are too). So MACs and bytes of every
strip are A[hi] - B[lo] with two tables a segment, and all prices are built in one backward sweep for each cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError

__all__ = ["Segment", "SplitOp", "SplitProblem", "SplitTensor", "chain_problem", "joined", "price", "window_tables"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SplitTensor:
    """`rows` that can be cut (1: it cannot be), and the bytes of one row."""

    rows: int
    row_bytes: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class SplitOp:
    """`first[k][lo]` and `last[k][hi]`: to compute output rows [lo, hi), non-empty, input k is needed on rows
    [first[k][lo], last[k][hi]). Both never fall. `weight_bytes` are constants that every device running it holds."""

    macs_per_row: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    first: tuple[Ints, ...]
    last: tuple[Ints, ...]
    weight_bytes: int = 0
    whole: bool = False
    """It makes all its rows or none."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Prices of strips of units [i, j): quantity(lo, hi) = upper[q, hi] - lower[q, lo] for hi < rows, and
    final[q, lo] for hi = rows: the last strip also makes what cannot be cut. q: 0 MACs, 1 bytes in, 2 bytes out."""

    rows: int
    upper: Ints
    lower: Ints
    final: Ints


@dataclass(frozen=True)
class SplitProblem:
    """A network as a chain of `len(units)` units over `ops`; `segment(i, j)` prices strips of units [i, j)."""

    tensors: tuple[SplitTensor, ...]
    ops: tuple[SplitOp, ...]
    units: tuple[tuple[int, ...], ...]
    """By unit: its operators, in an order that may be run. All units together: every operator once."""
    kept: frozenset[int] = frozenset()
    """Tensors that are outputs of the network."""
    across: SplitProblem | None = None
    """The same network with columns in the place of rows, for tiles; None where columns are not known."""
    source_ops: tuple[tuple[int, ...], ...] = ()
    """By operator of `ops`: the graph's operators that it stands for; empty: itself."""
    _segments: dict[tuple[int, int], Segment] = field(default_factory=dict, compare=False, repr=False)
    _facts: dict[str, tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def cuts(self) -> int:
        """How many units there are; cuts are 0 … cuts."""
        return len(self.units)

    def segment(self, start: int, stop: int) -> Segment:
        if (start, stop) not in self._segments:
            _sweep(self, stop)
        return self._segments[start, stop]

    def macs_before(self) -> tuple[int, ...]:
        """By cut: the MACs needed before it."""
        if "macs" not in self._facts:
            totals = [0]
            for unit in self.units:
                needed = (self.ops[op].macs_per_row * self.tensors[self.ops[op].outputs[0]].rows for op in unit)
                totals.append(totals[-1] + sum(needed))
            self._facts["macs"] = tuple(totals)
        return self._facts["macs"]

    def least_macs_before(self) -> tuple[int, ...]:
        """By cut: MACs before it that no plan can leave out, those of rows and columns that somebody reads. Fewer than
        `macs_before` where a stride passes some over: strips, too, may pass them over. What a plan computes above this
        is redundant, for every method."""
        if "least" not in self._facts:
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
            self._facts["least"] = tuple(totals)
        return self._facts["least"]

    def cut_bytes(self) -> tuple[int, ...]:
        """By cut: the bytes of all tensors that cross it; at the ends those of the network's inputs and outputs."""
        if "bytes" not in self._facts:
            self._facts["bytes"] = tuple(
                sum(self.tensors[tensor].nbytes for tensor in self.crossing(cut)) for cut in range(self.cuts + 1)
            )
        return self._facts["bytes"]

    def crossing(self, cut: int) -> tuple[int, ...]:
        """Tensors made before a cut (or given) and read after it, or kept."""
        before = {op for unit in self.units[:cut] for op in unit}
        after = {op for unit in self.units[cut:] for op in unit}
        made_before = {tensor for op in before for tensor in self.ops[op].outputs}
        made_after = {tensor for op in after for tensor in self.ops[op].outputs}
        read_after = {tensor for op in after for tensor in self.ops[op].inputs}
        return tuple(sorted((read_after - made_after) | (self.kept & made_before)))

    def turned(self) -> SplitProblem:
        if self.across is None:
            raise UnsupportedError("tiles need the columns of this network, which are not known; use row strips")
        return self.across

    def weight_bytes(self, start: int, stop: int) -> int:
        """Constants that a device running units [start, stop) holds."""
        if "weights" not in self._facts:
            totals = [0]
            for unit in self.units:
                totals.append(totals[-1] + sum(self.ops[op].weight_bytes for op in unit))
            self._facts["weights"] = tuple(totals)
        return self._facts["weights"][stop] - self._facts["weights"][start]


def price(segment: Segment, lo: int, hi: int) -> tuple[int, int, int]:
    """(MACs, bytes in, bytes out) of the strip [lo, hi); nothing for an empty one."""
    if hi <= lo:
        return (0, 0, 0)
    column = segment.final[:, lo] if hi == segment.rows else segment.upper[:, hi] - segment.lower[:, lo]
    macs, in_bytes, out_bytes = column.tolist()
    return (macs, in_bytes, out_bytes)


def _read_rows(problem: SplitProblem) -> dict[int, int]:
    """By operator: how many of its rows somebody reads, in the whole network."""
    read = {t: np.full(problem.tensors[t].rows, t in problem.kept) for op in problem.ops for t in op.outputs}
    inputs = {tensor for op in problem.ops for tensor in op.inputs}
    found: dict[int, int] = {}
    for op in (op for unit in reversed(problem.units) for op in reversed(unit)):
        described = problem.ops[op]
        sink = not inputs & set(described.outputs)  # nobody reads it: it is computed whole all the same
        if sink or described.whole:
            rows = np.full(
                problem.tensors[described.outputs[0]].rows, sink or any(read[t].any() for t in described.outputs)
            )
        else:
            rows = np.logical_or.reduce([read[tensor] for tensor in described.outputs])
        found[op] = int(rows.sum())
        at = np.flatnonzero(rows)
        for tensor, first, last in zip(described.inputs, described.first, described.last, strict=True):
            if tensor in read:
                for low, high in zip(first[at].tolist(), last[at + 1].tolist(), strict=True):
                    read[tensor][low:high] = True
    return found


def _sweep(problem: SplitProblem, stop: int) -> None:
    """Price all segments that end at cut `stop`, one unit further back each time."""
    read_later = {t for unit in problem.units[stop:] for op in unit for t in problem.ops[op].inputs} | problem.kept
    read_inside: set[int] = set()
    sinks: list[int] = []
    sweep: _Sweep | None = None
    for start in range(stop - 1, -1, -1):
        ops = problem.units[start]
        read_inside |= {tensor for op in ops for tensor in problem.ops[op].inputs}
        made = [tensor for op in ops for tensor in problem.ops[op].outputs]
        fresh = [tensor for tensor in made if tensor in read_later or tensor not in read_inside]
        sinks += fresh
        if sweep is None or fresh:  # other sinks, another frame: from the cut again
            sweep = _Sweep(problem, sinks)
            for unit in range(stop - 1, start, -1):
                sweep.add(problem.units[unit])
        sweep.add(ops)
        problem._segments[start, stop] = sweep.segment()


class _Sweep:
    """Rows needed of every tensor, by the first and last row of a strip, growing backwards from the sinks."""

    def __init__(self, problem: SplitProblem, sinks: Sequence[int]) -> None:
        self.problem = problem
        tensors = problem.tensors
        self.rows = rows = min((tensors[sink].rows for sink in sinks if tensors[sink].rows > 1), default=1)
        frame = np.arange(rows + 1, dtype=np.int64)
        self.need: dict[int, tuple[Ints, Ints]] = {}
        self.whole: dict[int, Ints] = {}  # first row needed by a strip that reaches the end
        self.ends: dict[int, int] = {}  # and the row behind the last
        self.made: set[int] = set()
        self.macs, self.out = np.zeros((3, rows + 1), np.int64), np.zeros((3, rows + 1), np.int64)
        for sink in sinks:
            extent, row_bytes = tensors[sink].rows, tensors[sink].row_bytes
            self.ends[sink] = extent
            if extent == 1:
                self.whole[sink] = np.zeros(rows + 1, np.int64)
                self.out[2] += row_bytes
                continue
            at = frame * extent // rows
            self.need[sink], self.whole[sink] = (at, at), at
            self.out += np.stack([at, at, extent - at]) * row_bytes

    def add(self, ops: Sequence[int]) -> None:
        for op in reversed(ops):
            described = self.problem.ops[op]
            self.made.update(described.outputs)
            made = [tensor for tensor in described.outputs if tensor in self.whole]
            if not made:
                continue
            extent = self.problem.tensors[made[0]].rows
            first, end = self.whole[made[0]], max(self.ends[tensor] for tensor in made)
            for tensor in made[1:]:
                first = np.minimum(first, self.whole[tensor])
            strips = [self.need[tensor] for tensor in made if tensor in self.need]
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
            for position, tensor in enumerate(described.inputs):
                self.ends[tensor] = max(self.ends.get(tensor, 0), int(described.last[position][end]))
                self._read(tensor, described.first[position], described.last[position], first, low, high)

    def _read(self, tensor: int, starts: Ints, stops: Ints, first: Ints, low: Ints | None, high: Ints | None) -> None:
        # Row `rows` starts no strip and row 0 ends none: what the tables say there is never read.
        begins = starts[first]
        self.whole[tensor] = np.minimum(self.whole[tensor], begins) if tensor in self.whole else begins
        if low is None or high is None:
            return
        pair = (starts[low], stops[high])
        if tensor in self.need:
            pair = (np.minimum(self.need[tensor][0], pair[0]), np.maximum(self.need[tensor][1], pair[1]))
        self.need[tensor] = pair

    def segment(self) -> Segment:
        tables = np.zeros((3, 3, self.rows + 1), np.int64)
        tables[:, 0], tables[:, 2] = self.macs, self.out
        for tensor, begins in self.whole.items():
            if tensor in self.made:
                continue
            described = self.problem.tensors[tensor]
            tables[2, 1] += (self.ends[tensor] - begins) * described.row_bytes
            if tensor in self.need:
                tables[1, 1] += self.need[tensor][0] * described.row_bytes
                tables[0, 1] += self.need[tensor][1] * described.row_bytes
        return Segment(self.rows, tables[0], tables[1], tables[2])


def joined(problem: SplitProblem, cuts: Sequence[int]) -> SplitProblem:
    """The same network with the units between consecutive `cuts` (ascending, from 0 to the end) made one."""
    units = tuple(tuple(op for unit in problem.units[start:stop] for op in unit) for start, stop in pairwise(cuts))
    across = None if problem.across is None else joined(problem.across, cuts)
    return SplitProblem(problem.tensors, problem.ops, units, problem.kept, across, problem.source_ops)


def chain_problem(layers: Sequence[tuple[int, int, int, int]], *, rows: int, row_bytes: int) -> SplitProblem:
    """A chain of layers, each (MACs per output row, kernel, stride, bytes per output row) with pads that keep a layer
    of stride 1 at its rows; for tests and synthetic networks. Each layer is a unit."""
    tensors, ops = [SplitTensor(rows, row_bytes)], []
    for macs_per_row, kernel, stride, out_row_bytes in layers:
        extent = tensors[-1].rows
        made = max(1, -(-extent // stride))
        first, last = window_tables(made, extent, kernel=kernel, stride=stride, pad=(kernel - 1) // 2)
        tensors.append(SplitTensor(made, out_row_bytes))
        ops.append(SplitOp(macs_per_row, (len(tensors) - 2,), (len(tensors) - 1,), (first,), (last,)))
    units = tuple((op,) for op in range(len(ops)))
    return SplitProblem(tuple(tensors), tuple(ops), units, frozenset({len(tensors) - 1}))


def window_tables(made: int, extent: int, *, kernel: int, stride: int, pad: int) -> tuple[Ints, Ints]:
    """The tables of a sliding window from `extent` input rows to `made` output rows, clipped at the borders."""
    at = np.arange(made + 1, dtype=np.int64)
    first = np.clip(at * stride - pad, 0, extent - 1)
    last = np.clip((at - 1) * stride - pad + kernel, 1, extent)
    return first, np.maximum(last, 1)
