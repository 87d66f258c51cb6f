"""What planners of pipelines see: a network as a chain of cuts, and the price of any strip between two of them.

A unit is a set of operators computed together; cut c lies behind unit c - 1, so that units [i, j) lie between cuts i and
j. What a strip [lo, hi) of the frame at cut j needs of an earlier tensor starts at a row that depends on lo alone and
stops at one that depends on hi alone (halos are intervals, hulls of intervals are too). So MACs and bytes of every strip
are A[hi] - B[lo] with two tables a segment, and all prices of a network are built in one backward sweep for each cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError

__all__ = ["Segment", "SplitOp", "SplitProblem", "SplitTensor", "chain_problem", "price", "window_tables"]

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
        return sum(self.ops[op].weight_bytes for unit in self.units[start:stop] for op in unit)


def price(segment: Segment, lo: int, hi: int) -> tuple[int, int, int]:
    """(MACs, bytes in, bytes out) of the strip [lo, hi); nothing for an empty one."""
    if hi <= lo:
        return (0, 0, 0)
    column = segment.final[:, lo] if hi == segment.rows else segment.upper[:, hi] - segment.lower[:, lo]
    macs, in_bytes, out_bytes = column.tolist()
    return (macs, in_bytes, out_bytes)


def _sweep(problem: SplitProblem, stop: int) -> None:
    """Price all segments that end at cut `stop`, one unit further back each time."""
    tensors = problem.tensors
    inside = {op for unit in problem.units[:stop] for op in unit}
    made_by = {tensor: op for op in inside for tensor in problem.ops[op].outputs}
    read_later = {t for unit in problem.units[stop:] for op in unit for t in problem.ops[op].inputs} | problem.kept
    for start in range(stop - 1, -1, -1):
        # The frame depends on which sinks lie inside the segment, so each start has tables of its own.
        ops = [op for unit in problem.units[start:stop] for op in unit]
        problem._segments[start, stop] = _segment(problem, ops, made_by, read_later, tensors)


def _segment(
    problem: SplitProblem, ops: Sequence[int], made_by: dict[int, int], read_later: frozenset[int] | set[int],
    tensors: Sequence[SplitTensor],
) -> Segment:  # fmt: skip
    members = set(ops)
    read_inside = {tensor for op in ops for tensor in problem.ops[op].inputs}
    sinks = [t for op in ops for t in problem.ops[op].outputs if t in read_later or t not in read_inside]
    rows = min((tensors[sink].rows for sink in sinks if tensors[sink].rows > 1), default=1)
    frame = np.arange(rows + 1, dtype=np.int64)
    need: dict[int, tuple[Ints, Ints]] = {}
    whole: dict[int, Ints] = {}  # first row needed by a strip that reaches the end
    out_upper, out_lower = np.zeros(rows + 1, np.int64), np.zeros(rows + 1, np.int64)
    out_final = np.zeros(rows + 1, np.int64)
    for sink in sinks:
        extent, row_bytes = tensors[sink].rows, tensors[sink].row_bytes
        if extent > 1:
            at = frame * extent // rows
            need[sink] = (at, at)
            whole[sink] = at
            out_upper, out_lower = out_upper + at * row_bytes, out_lower + at * row_bytes
            out_final = out_final + (extent - at) * row_bytes
        else:
            whole[sink] = np.zeros(rows + 1, np.int64)
            out_final = out_final + row_bytes
    macs = [np.zeros(rows + 1, np.int64) for _ in range(3)]
    for op in reversed(ops):
        described = problem.ops[op]
        made = [tensor for tensor in described.outputs if tensor in whole]
        if not made:
            continue
        extent = tensors[made[0]].rows
        first = np.minimum.reduce([whole[tensor] for tensor in made])
        if described.whole:
            first = np.zeros_like(first)
        macs[2] = macs[2] + (extent - first) * described.macs_per_row
        strips = [need[tensor] for tensor in made if tensor in need]
        low = np.minimum.reduce([pair[0] for pair in strips]) if strips else None
        high = np.maximum.reduce([pair[1] for pair in strips]) if strips else None
        if low is not None and high is not None:
            if described.whole:
                low, high = np.zeros_like(low), np.full_like(high, extent)
            macs[0] = macs[0] + high * described.macs_per_row
            macs[1] = macs[1] + low * described.macs_per_row
        for position, tensor in enumerate(described.inputs):
            # Row `rows` starts no strip and row 0 ends none: those entries are never read.
            begins = described.first[position][np.minimum(first, extent - 1)]
            whole[tensor] = np.minimum(whole[tensor], begins) if tensor in whole else begins
            if low is None or high is None:
                continue
            pair = (described.first[position][np.minimum(low, extent - 1)], described.last[position][high])
            if tensor in need:
                pair = (np.minimum(need[tensor][0], pair[0]), np.maximum(need[tensor][1], pair[1]))
            need[tensor] = pair
    upper, lower, final = (np.zeros((3, rows + 1), np.int64) for _ in range(3))
    upper[0], lower[0], final[0] = macs
    upper[2], lower[2], final[2] = out_upper, out_lower, out_final
    for tensor, begins in whole.items():
        if made_by.get(tensor) in members:
            continue
        row_bytes = tensors[tensor].row_bytes
        final[1] += (tensors[tensor].rows - begins) * row_bytes
        if tensor in need:
            lower[1] += need[tensor][0] * row_bytes
            upper[1] += need[tensor][1] * row_bytes
    return Segment(rows, upper, lower, final)


def chain_problem(
    layers: Sequence[tuple[int, int, int, int]], *, rows: int, row_bytes: int
) -> SplitProblem:
    """A chain of layers, each (MACs per output row, kernel, stride, bytes per output row) with pads that keep a layer of
    stride 1 at its rows; for tests and synthetic networks. Each layer is a unit."""
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
