"""Segments: parts of a network, between two positions of its order, that can be computed in strips of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from downset.graph.core import ABSENT, Graph, Op
from downset.graph.halos import broadcast_axis
from downset.graph.kinds import kind_of
from downset.graph.row_form import RowForm

__all__ = ["Segment", "computed_whole", "computing", "crossing", "find_segment", "find_segments"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Operators [first, stop) in the graph's order. `inputs`: activations that they read and do not make. `results`:
    activations that they make and that are read later or are outputs of the graph. Both are ascending."""

    first: int
    stop: int
    inputs: tuple[int, ...]
    results: tuple[int, ...]

    @property
    def operators(self) -> range:
        return range(self.first, self.stop)


def computing(graph: Graph, segment: Segment) -> list[int]:
    """The operators of the segment that strips replace. Others make constants from constants, such as those that widen
    weights of 16 bits; these run once, outside the strips."""
    return [index for index in segment.operators if not _makes_constants(graph.ops[index], graph)]


def _makes_constants(op: Op, graph: Graph) -> bool:
    return all(tensor == ABSENT or graph.tensors[tensor].role == "constant" for tensor in (*op.inputs, *op.outputs))


def crossing(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """By position, from 0 to the number of operators: the activations, ascending, that exist before the operator at
    that position and that it or a later one reads, or that are outputs. O(operators · tensors that cross)."""
    last = {tensor: len(graph.ops) for tensor in graph.outputs}
    for index, op in enumerate(graph.ops):
        for tensor in op.inputs:
            last[tensor] = max(last.get(tensor, -1), index)
    there = {t for t in graph.inputs if graph.tensors[t].role == "activation"}
    crossings = []
    for position in range(len(graph.ops) + 1):
        there = {tensor for tensor in there if last.get(tensor, -1) >= position}
        crossings.append(tuple(sorted(there)))
        if position < len(graph.ops):
            results = (tensor for tensor in graph.ops[position].outputs if tensor != ABSENT)
            there |= {tensor for tensor in results if graph.tensors[tensor].role == "activation"}
    return tuple(crossings)


def computed_whole(graph: Graph, form: RowForm) -> dict[int, str]:
    """The operators that cannot be computed in strips, by index, each with a reason for users."""
    waited_for = {earlier for op in graph.ops for earlier in op.after}
    reasons: dict[int, str] = {}
    for index, op in enumerate(graph.ops):
        tensors = [graph.tensors[tensor] for tensor in (*op.inputs, *op.outputs) if tensor != ABSENT]
        cut = (
            position
            for position, tensor in enumerate(op.inputs)
            if tensor != ABSENT and graph.tensors[tensor].role == "activation"
            if broadcast_axis(graph, op, position, form.axis) is not None
        )
        if op.after or index in waited_for:
            reasons[index] = "it waits for others, or others for it"
        elif kind_of(op.kind).category == "control flow":
            reasons[index] = "it runs graphs of its own"
        elif any(tensor.role == "state" for tensor in tensors):
            reasons[index] = "it reads or writes a state"
        elif form.ops[index].whole and not _makes_constants(op, graph):
            reasons[index] = "it needs all rows for each"
        elif next(cut, None) is not None:
            reasons[index] = "it spreads a tensor of lower rank over rows"
    return reasons


def find_segment(graph: Graph, first: int, stop: int) -> Segment:
    """The segment of the operators [first, stop). O(operators)."""
    results = {tensor for op in graph.ops[first:stop] for tensor in op.outputs if tensor != ABSENT}
    read = {tensor for op in graph.ops[first:stop] for tensor in op.inputs if tensor != ABSENT}
    later = {tensor for op in graph.ops[stop:] for tensor in op.inputs} | set(graph.outputs)
    activations = {tensor for tensor in results | read if graph.tensors[tensor].role == "activation"}
    return Segment(
        first, stop, tuple(sorted((read - results) & activations)), tuple(sorted(results & later & activations))
    )


def find_segments(graph: Graph, form: RowForm, *, most_crossing: int = 1) -> Iterator[Segment]:
    """The segments between positions at which 1 to `most_crossing` tensors cross, shorter ones first.

    No operator inside is computed whole, and at least one tensor made inside has more than one row. Segments without a
    result are left out. So are those that begin or end with an operator that only makes constants, since the same
    segment without it is listed. O(segments · operators).
    """
    crosses = crossing(graph)
    whole = computed_whole(graph, form)
    before = (0, *accumulate(int(index in whole) for index in range(len(graph.ops))))
    cuts = [position for position, tensors in enumerate(crosses) if 0 < len(tensors) <= most_crossing]
    for first, stop in _pairs(cuts):
        ends = graph.ops[first], graph.ops[stop - 1]
        if before[first] == before[stop] and not any(_makes_constants(op, graph) for op in ends):
            segment = find_segment(graph, first, stop)
            results = (tensor for index in segment.operators for tensor in form.ops[index].outputs)
            if segment.results and any(form.rows[tensor] > 1 for tensor in results):
                yield segment


def _pairs(cuts: Sequence[int]) -> Iterator[tuple[int, int]]:
    for apart in range(1, len(cuts)):
        yield from zip(cuts, cuts[apart:], strict=False)
