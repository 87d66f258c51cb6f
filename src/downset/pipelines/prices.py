"""Prices of every strip between two cuts of a chain, and the figures of the chain that searches use again and again.

The rows of an earlier tensor that a strip [lo, hi) of the frame at cut j needs start at a row that depends on lo alone
and stop at a row that depends on hi alone (halos are intervals, and so are hulls of intervals). So the MACs and bytes
of every strip are A[hi] - B[lo] with two tables for each segment, and one backward sweep for each cut makes all tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.pipelines.problem import Ints, SplitOp, SplitProblem, SplitTensor, joined

__all__ = ["Mask", "PricedChain", "SegmentPrices", "either", "hull", "price", "quantities", "rows_of", "sweeps"]

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


_LATELY = 64
"""The most strips of blocks with leaders whose needs are remembered: the needs of one plan are used several times."""
_Spans = dict[int, tuple[int, int]]


class PricedChain:
    """A problem with its prices: `segment(i, j)` prices strips of units [i, j). A search makes one and passes it to its
    planners, so that each figure is computed once; nothing outlives the search."""

    def __init__(self, problem: SplitProblem) -> None:
        self.problem = problem
        self.tensors, self.ops, self.units, self.kept = problem.tensors, problem.ops, problem.units, problem.kept
        self.axis = problem.axis
        self.across = None if problem.across is None else PricedChain(problem.across)
        self.facts: dict[str, tuple[int, ...]] = {}
        """Figures of the problem by name."""
        self._coarse: PricedChain | None = None
        self._segments: dict[tuple[int, int], SegmentPrices] = {}
        self._needs: dict[tuple[int, ...], _Spans] = {}
        self._needs_lately: dict[tuple[int, ...], _Spans] = {}
        self._masks: dict[tuple[int, bool], Mask] = {}
        self._counts: dict[int, tuple[Mask, int]] = {}
        self._rows_read: dict[tuple[int, int, int, int], tuple[Mask, Mask]] = {}
        self._crossing: dict[int, tuple[int, ...]] = {}
        self._covered: dict[tuple[int, int], tuple[int, ...]] = {}
        self._weights: dict[tuple[int, int], int] = {}
        self._sinks: dict[tuple[int, int], frozenset[int]] = {}

    @property
    def cuts(self) -> int:
        """The number of units; cuts are 0 … cuts."""
        return len(self.units)

    def without_relays(self) -> tuple[PricedChain, tuple[int, ...]]:
        """The chain on which baselines plan, whose units are joined up to the problem's `baseline_cuts`, and the cuts
        of the whole chain that it has."""
        cuts = self.problem.baseline_cuts
        if cuts is None:
            return self, tuple(range(self.cuts + 1))
        if self._coarse is None:
            self._coarse = PricedChain(joined(self.problem, cuts))
        return self._coarse, cuts

    def segment(self, start: int, stop: int) -> SegmentPrices:
        if (start, stop) not in self._segments:
            for begin, sweep in sweeps(self.problem, stop):
                self._segments[begin, stop] = sweep.segment()
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
            stands_for = self.problem.source_ops or [(op,) for op in range(len(self.ops))]
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

    def mask(self, tensor: int, *, of_all: bool) -> Mask:
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

    def turned(self) -> PricedChain:
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

    def needs(self, start: int, stop: int, lo: int, hi: int, *, halo: bool) -> _Spans:
        """By tensor (inputs, inner tensors and outputs of units [start, stop)) the rows that the strip [lo, hi) needs;
        tensors of which it needs none are left out. `halo`: planners of halo exchange need the same few strips again
        and again, so these are all remembered."""
        key, cache = (start, stop, lo, hi), self._needs if halo else self._needs_lately
        if key not in cache:
            if not halo and len(cache) >= _LATELY:
                del cache[next(iter(cache))]
            cache[key] = self._needed(start, stop, lo, hi)
        return cache[key]

    def _needed(self, start: int, stop: int, lo: int, hi: int) -> _Spans:
        ops = [op for unit in self.units[start:stop] for op in unit]
        sinks, rows = self.sinks(start, stop), self.segment(start, stop).rows
        need: dict[int, tuple[int, int]] = {}
        for op in reversed(ops):
            described = self.ops[op]
            for tensor in described.outputs:
                if tensor in sinks:
                    own = rows_of(self.tensors[tensor], lo, hi, rows)
                    if own[0] < own[1]:
                        need[tensor] = hull(need.get(tensor), own)
            needs_of_outputs = [need[tensor] for tensor in described.outputs if tensor in need]
            if not needs_of_outputs:
                continue
            low, high = min(pair[0] for pair in needs_of_outputs), max(pair[1] for pair in needs_of_outputs)
            if described.whole:
                low, high = 0, self.tensors[described.outputs[0]].rows
            for tensor in described.outputs:
                need[tensor] = (0, self.tensors[tensor].rows) if described.whole else (low, high)
            for position, tensor in enumerate(described.inputs):
                pair = (int(described.first[position][low]), int(described.last[position][high]))
                need[tensor] = hull(need.get(tensor), pair)
        return need


def _read_rows(problem: PricedChain) -> dict[int, int]:
    """The number of rows of each operator that are read in the whole network."""
    read = {t: problem.mask(t, of_all=t in problem.kept) for op in problem.ops for t in op.outputs}
    inputs = {tensor for op in problem.ops for tensor in op.inputs}
    rows_of: dict[int, int] = {}
    for op in (op for unit in reversed(problem.units) for op in reversed(unit)):
        described = problem.ops[op]
        sink = inputs.isdisjoint(described.outputs)  # nothing reads it, but it is computed whole
        if sink or described.whole:
            of_all = sink or any(problem.count(read[t]) for t in described.outputs)
            rows = problem.mask(described.outputs[0], of_all=of_all)
        else:
            rows = either([read[tensor] for tensor in described.outputs])
        rows_of[op] = problem.count(rows)
        for tensor, first, last in zip(described.inputs, described.first, described.last, strict=True):
            if tensor in read:
                read[tensor] = either([read[tensor], problem.rows_read(first, last, rows, len(read[tensor]))])
    return rows_of


def hull(first: tuple[int, int] | None, second: tuple[int, int]) -> tuple[int, int]:
    return second if first is None else (min(first[0], second[0]), max(first[1], second[1]))


def rows_of(tensor: SplitTensor, lo: int, hi: int, rows: int) -> tuple[int, int]:
    return (lo * tensor.rows // rows, hi * tensor.rows // rows)
