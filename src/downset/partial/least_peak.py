"""A lower bound on the peak of every plan that computes segments in strips, whatever rows are kept or recomputed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf

from downset.graph.row_form import Interval, RowForm, RowOp, needed
from downset.memory.overlaps import geometry
from downset.partial.memory_form import takes_over
from downset.partial.price import Pricing
from downset.partial.segments import Cuts, Segment

__all__ = ["least_peak"]


def least_peak(form: RowForm, pricing: Pricing, segments: Sequence[Segment], cuts: Cuts) -> int:
    """Bytes below which no sequence of segments in strips between these cuts, in the graph's order, has its peak.

    It is the path over cuts of least peak, where each segment needs the bytes of `_SegmentBounds.least`. A segment of
    a long run, of which most are not listed, needs at least the bytes of its two ends. O(edges + segments)."""
    bounds = _SegmentBounds(form, pricing)
    ending: dict[int, list[tuple[int, int]]] = {}
    for segment in segments:
        ending.setdefault(segment.stop, []).append((segment.first, bounds.least(segment)))
    run_of = {position: number for number, run in enumerate(cuts.long_runs) for position in run}
    reached = dict.fromkeys(run_of.values(), inf)
    """By long run: the least peak of a path up to one of its cuts, with the bytes of a segment that begins there."""
    peaks = [0]
    for stop, whole in enumerate((0, *pricing.around.transient)):
        run = run_of.get(stop)
        if stop:
            ways = [max(peaks[stop - 1], whole), *(max(peaks[first], least) for first, least in ending.get(stop, ()))]
            if run is not None:
                ways.append(int(max(min(reached[run], max(ways)), bounds.end(cuts.crossing[stop]))))
            peaks.append(min(ways))
        if run is not None:
            reached[run] = min(reached[run], max(peaks[stop], bounds.begin(stop, cuts.crossing[stop])))
    return peaks[-1]


class _SegmentBounds:
    """Lower bounds of the peaks of segments of one network."""

    def __init__(self, form: RowForm, pricing: Pricing) -> None:
        self._form, self._pricing = form, pricing
        self._read_by: list[list[int]] = [[] for _ in form.rows]
        for index, op in enumerate(form.ops):
            for item in op.inputs:
                self._read_by[item.tensor].append(index)
        kept = set(form.outputs)
        partly = (
            not _reads_all(form, op) or any(not self._read_by[tensor] and tensor not in kept for tensor in op.outputs)
            for op in form.ops
        )
        self._partly = (0, *accumulate(map(int, partly)))
        """By position: the operators before it that may leave out rows of an input, or make a tensor for nobody."""
        self._sources = [index for index, op in enumerate(form.ops) if not op.inputs]

    def least(self, segment: Segment) -> int:
        """Bytes that every way to compute a segment in two or more strips needs: the larger of two sums.

        At its begin: its inputs, and the least that is made next to them. That is one row of a result of an operator
        that reads only inputs, or, where only some rows of an input are read, a copy of these rows. At its end: inputs
        that are needed later, and the highest result twice, as parts and joined. The result counts once if it has one
        row, or if an operator inside reads it."""
        form, pricing = self._form, self._pricing
        nbytes, beside = pricing.inputs(segment)
        begins = [self._made(index) for index in self._beginning(segment)]
        for tensor, rows in self._needed(segment).items():
            if rows != (0, form.rows[tensor]) and not pricing.stays(tensor, segment):
                begins.append(pricing.piece_bytes(tensor, rows))
        output_bytes = max(
            (form.rows[tensor], -place, self._ending(tensor, segment.stop))
            for place, tensor in enumerate(segment.results)
        )[2]
        stay = sum(size for size, tensor in zip(nbytes, segment.inputs, strict=True) if pricing.stays(tensor, segment))
        return max(beside + sum(nbytes) + min(begins, default=0), beside + stay + output_bytes)

    def begin(self, position: int, crossing: Sequence[int]) -> int:
        """Bytes that every segment from this cut on needs at its begin."""
        if self._sources:
            return self._pricing.around.live[position]
        readers = [self._made(index) for tensor in crossing for index in self._read_by[tensor] if index >= position]
        rows = [self._pricing.piece_bytes(tensor, (0, 1)) for tensor in crossing]
        return self._pricing.around.live[position] + min((*readers, *rows), default=0)

    def end(self, crossing: Sequence[int]) -> int:
        """Bytes that every segment up to a cut needs at its end. `crossing`: what crosses there."""
        return min((self._ending(tensor, len(self._form.ops)) for tensor in crossing), default=0)

    def _beginning(self, segment: Segment) -> Iterator[int]:
        """The operators of a segment that read nothing that is made inside."""
        outside = set(segment.inputs)
        yield from _within(self._sources, segment)
        for tensor in segment.inputs:
            for index in _within(self._read_by[tensor], segment):
                if {item.tensor for item in self._form.ops[index].inputs} <= outside:
                    yield index

    def _needed(self, segment: Segment) -> dict[int, Interval]:
        """The rows of inputs that a segment reads; none where it surely reads all."""
        if self._partly[segment.first] == self._partly[segment.stop]:
            return {}
        wanted = {tensor: (0, self._form.rows[tensor]) for tensor in segment.results}
        read = needed(self._form, segment.operators, wanted)
        return {tensor: read.get(tensor, (0, 0)) for tensor in segment.inputs}

    def _ending(self, result: int, stop: int) -> int:
        """Bytes of a result when a segment up to `stop` ends."""
        if not self._pricing.counts(result):
            return 0
        rows, readers = self._form.rows[result], self._read_by[result]
        once = rows == 1 or (bool(readers) and readers[0] < stop)
        return self._pricing.piece_bytes(result, (0, rows)) * (1 if once else 2)

    def _made(self, index: int) -> int:
        return 0 if _overlaps(self._pricing, index) else _row(self._pricing, self._form.ops[index])


def _within(indices: Sequence[int], segment: Segment) -> Sequence[int]:
    return indices[bisect_left(indices, segment.first) : bisect_left(indices, segment.stop)]


def _reads_all(form: RowForm, op: RowOp) -> bool:
    """Whether an operator that makes all its rows surely reads all rows of its inputs."""
    rows = 0, max((form.rows[tensor] for tensor in op.outputs), default=0)
    return bool(op.outputs) and all(
        item.map is None or item.map(rows, form.rows[item.tensor]) == (0, form.rows[item.tensor]) for item in op.inputs
    )


def _overlaps(pricing: Pricing, index: int) -> bool:
    """Whether the result of an operator may overlap an input."""
    op, model = pricing.graph.ops[index], pricing.model
    return bool(takes_over(op, model)) or (model.kernels is not None and geometry(pricing.graph, op) is not None)


def _row(pricing: Pricing, op: RowOp) -> int:
    return sum(pricing.piece_bytes(tensor, (0, 1)) for tensor in op.outputs if pricing.counts(tensor))
