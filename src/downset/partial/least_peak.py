"""A lower bound on the peak of every plan that computes segments in strips, whatever rows are kept or recomputed."""

from __future__ import annotations

from collections.abc import Sequence

from downset.graph.row_form import RowForm, RowOp, needed
from downset.memory.overlaps import geometry
from downset.partial.memory_form import takes_over
from downset.partial.price import Pricing
from downset.partial.segments import Segment

__all__ = ["least_peak"]


def least_peak(form: RowForm, pricing: Pricing, segments: Sequence[Segment]) -> int:
    """Bytes below which no sequence of these segments in strips, in the graph's order, has its peak. It is the path
    over cuts of least peak, where each segment needs the bytes of `_least`. O(operators + edges of all segments)."""
    ending: dict[int, list[tuple[int, int]]] = {}
    for segment in segments:
        ending.setdefault(segment.stop, []).append((segment.first, _least(form, pricing, segment)))
    peaks = [0]
    for stop, whole in enumerate(pricing.around.transient, start=1):
        ways = [max(peaks[stop - 1], whole), *(max(peaks[first], needed) for first, needed in ending.get(stop, ()))]
        peaks.append(min(ways))
    return peaks[-1]


def _least(form: RowForm, pricing: Pricing, segment: Segment) -> int:
    """Bytes that every way to compute a segment in two or more strips needs: the larger of two sums.

    At its begin: its inputs, and the least that is made next to them. That is one row of a result of an operator that
    reads only inputs, or, where only some rows of an input are read, a copy of these rows. At its end: inputs that are
    needed later, and the highest result twice, as parts and joined. The result counts once if it has one row, or if an
    operator inside reads it."""
    nbytes, beside = pricing.inputs(segment)
    outside = set(segment.inputs)
    begins = [
        0 if _overlaps(pricing, index) else _row(pricing, form.ops[index])
        for index in segment.operators
        if {item.tensor for item in form.ops[index].inputs} <= outside
    ]
    read = needed(form, segment.operators, {tensor: (0, form.rows[tensor]) for tensor in segment.results})
    for tensor in segment.inputs:
        rows = read.get(tensor, (0, 0))
        if rows != (0, form.rows[tensor]) and not pricing.stays(tensor, segment):
            begins.append(pricing.piece_bytes(tensor, rows))
    highest = max(segment.results, key=lambda tensor: form.rows[tensor])
    once = form.rows[highest] == 1 or any(
        item.tensor == highest for index in segment.operators for item in form.ops[index].inputs
    )
    output_bytes = pricing.piece_bytes(highest, (0, form.rows[highest])) if pricing.counts(highest) else 0
    stay = sum(size for size, tensor in zip(nbytes, segment.inputs, strict=True) if pricing.stays(tensor, segment))
    return max(beside + sum(nbytes) + min(begins, default=0), beside + stay + output_bytes * (1 if once else 2))


def _overlaps(pricing: Pricing, index: int) -> bool:
    """Whether the result of an operator may overlap an input."""
    op, model = pricing.graph.ops[index], pricing.model
    return bool(takes_over(op, model)) or (model.kernels is not None and geometry(pricing.graph, op) is not None)


def _row(pricing: Pricing, op: RowOp) -> int:
    return sum(pricing.piece_bytes(tensor, (0, 1)) for tensor in op.outputs if pricing.counts(tensor))
