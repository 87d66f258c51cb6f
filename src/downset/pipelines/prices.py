"""A problem with its prices, and the figures of the chain that searches use again and again."""

from __future__ import annotations

import numpy as np

from downset.errors import UnsupportedError
from downset.pipelines.drafts import StageDrafts
from downset.pipelines.problem import Ints, SplitProblem, joined
from downset.pipelines.segment_prices import Mask, SegmentPrices, either, read_rows, rows_of, sweeps

__all__ = ["PricedChain", "hull"]

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
        self.beginnings: tuple[StageDrafts, ...] | None = None
        """Plans to begin with on a further chain (`chains`); None on the first one, on which alone the other methods
        plan."""
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
