"""Segments: parts of a network, between two positions of its order, that can be computed in strips of rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import NamedTuple

from downset.graph.core import ABSENT, Graph, Op
from downset.graph.halos import broadcast_axis
from downset.graph.kinds import kind_of
from downset.graph.row_form import Interval, RowForm

__all__ = [
    "EVERY_PAIR",
    "Cuts",
    "Segment",
    "computed_whole",
    "computing",
    "find_cuts",
    "find_segment",
    "find_segments",
]


class Segment(NamedTuple):
    """Operators [first, stop) in the graph's order. `inputs`: activations that they read and do not make. `results`:
    activations that they make and that are read later or are outputs of the graph. Both are ascending. `given`: by
    input that comes in pieces, the rows of these. `open_results`: results that stay in the pieces that strips make."""

    first: int
    stop: int
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    given: tuple[tuple[int, tuple[Interval, ...]], ...] = ()
    open_results: tuple[int, ...] = ()

    @property
    def operators(self) -> range:
        return range(self.first, self.stop)


def computing(graph: Graph, segment: Segment) -> list[int]:
    """The operators of the segment that strips replace. Others make constants from constants, such as those that widen
    weights of 16 bits; these run once, outside the strips."""
    return [index for index in segment.operators if not _makes_constants(graph.ops[index], graph)]


def _makes_constants(op: Op, graph: Graph) -> bool:
    return all(tensor == ABSENT or graph.tensors[tensor].role == "constant" for tensor in (*op.inputs, *op.outputs))


def _last_reads(graph: Graph) -> Sequence[int]:
    """By tensor: the last operator that reads it, the number of operators for an output, or -1."""
    if "last reads" not in graph.facts:
        last = [-1] * len(graph.tensors)
        for index, op in enumerate(graph.ops):
            for tensor in op.inputs:
                if tensor != ABSENT:
                    last[tensor] = index
        for tensor in graph.outputs:
            last[tensor] = len(graph.ops)
        graph.facts["last reads"] = tuple(last)
    last_reads: Sequence[int] = graph.facts["last reads"]
    return last_reads


def _crossing(graph: Graph, most: int) -> dict[int, tuple[int, ...]]:
    """By position, from 0 to the number of operators, where 1 to `most` activations cross: these, ascending. A tensor
    crosses if it exists before the operator at that position and that or a later one reads it, or if it is an output.
    O(operators + edges)."""
    last = _last_reads(graph)
    ending: list[list[int]] = [[] for _ in range(len(graph.ops) + 2)]
    there: set[int] = set()

    def begin(tensors: Iterable[int], position: int) -> None:
        for tensor in tensors:
            if tensor != ABSENT and last[tensor] >= position and graph.tensors[tensor].role == "activation":
                there.add(tensor)
                ending[last[tensor] + 1].append(tensor)

    begin(graph.inputs, 0)
    crossings = {}
    for position in range(len(graph.ops) + 1):
        there.difference_update(ending[position])
        if 0 < len(there) <= most:
            crossings[position] = tuple(sorted(there))
        if position < len(graph.ops):
            begin(graph.ops[position].outputs, position + 1)
    return crossings


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
    """The segment of the operators [first, stop). O(operators of the segment), after O(edges) once."""
    last, ops = _last_reads(graph), graph.ops[first:stop]
    results = {tensor for op in ops for tensor in op.outputs if tensor != ABSENT}
    inputs = {tensor for op in ops for tensor in op.inputs if tensor != ABSENT} - results
    return Segment(
        first,
        stop,
        tuple(sorted(tensor for tensor in inputs if graph.tensors[tensor].role == "activation")),
        tuple(sorted(t for t in results if last[t] >= stop and graph.tensors[t].role == "activation")),
    )


EVERY_PAIR = 128
"""The most cuts in a row between which every segment is listed."""
_NEAR = 32
"""Where there are more cuts, segments over at most so many of them are listed, and of longer ones a few."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Positions between which segments lie. `runs`: positions with no operator between them that is computed whole,
    ascending. `crossing`: by position, the activations that cross. `listed`: whether the segments of short runs were
    all listed; not where the time ended before."""

    runs: tuple[tuple[int, ...], ...]
    crossing: Mapping[int, tuple[int, ...]]
    listed: bool = True

    @property
    def long_runs(self) -> list[tuple[int, ...]]:
        """The runs between whose positions not every segment is listed."""
        return [run for run in self.runs if not self.listed or len(run) > EVERY_PAIR]


def find_cuts(graph: Graph, form: RowForm, *, most_crossing: int = 1) -> Cuts:
    """The positions at which 1 to `most_crossing` tensors cross, without those inside a row of operators that only make
    constants. O(operators + edges)."""
    whole, constants = computed_whole(graph, form), [True, *(_makes_constants(op, graph) for op in graph.ops), True]
    before = (0, *accumulate(int(index in whole) for index in range(len(graph.ops))))
    crosses = {
        position: tensors
        for position, tensors in _crossing(graph, most_crossing).items()
        if not (constants[position] and constants[position + 1])
    }
    return Cuts(tuple(tuple(run) for _, run in groupby(crosses, key=before.__getitem__)), crosses)


def find_segments(
    graph: Graph, form: RowForm, *, most_crossing: int = 1, cuts: Cuts | None = None, most_results: int | None = None
) -> Iterator[Segment]:
    """The segments between positions at which 1 to `most_crossing` tensors cross, shorter ones first.

    No operator inside is computed whole, and at least one tensor made inside has more than one row. Segments without a
    result are left out. So are those that begin or end with an operator that only makes constants, since the same
    segment without it is listed. In a run of more than `EVERY_PAIR` cuts most long segments are left out. So at most
    `EVERY_PAIR` / 2 segments are looked at for each cut. O(segments · log segments + edges). `cuts`: those of
    `find_cuts`, where they are known. `most_results`: segments with more results are left out.
    """
    cuts = cuts or find_cuts(graph, form, most_crossing=most_crossing)
    made_by, read_by = graph.producers(), graph.consumers()
    makes_constants = [_makes_constants(op, graph) for op in graph.ops]
    high = (any(form.rows[tensor] > 1 for tensor in op.outputs) for op in form.ops)
    higher = (0, *accumulate(map(int, high)))
    for first, stop in _pairs(cuts.runs):
        if makes_constants[first] or makes_constants[stop - 1] or higher[first] == higher[stop]:
            continue
        results = tuple(tensor for tensor in cuts.crossing[stop] if made_by[tensor] >= first)
        if results and (most_results is None or len(results) <= most_results):
            inputs = tuple(tensor for tensor in cuts.crossing[first] if _read_inside(read_by[tensor], first, stop))
            yield Segment(first, stop, inputs, results)


def _read_inside(readers: Sequence[int], first: int, stop: int) -> bool:
    place = bisect_left(readers, first)
    return place < len(readers) and readers[place] < stop


def _pairs(runs: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Pairs of positions of one run, those with few cuts between them first. In a long run these are all pairs over at
    most `_NEAR` cuts, pairs over each larger power of two of cuts that overlap by half, and the first and last cut."""
    pairs: list[tuple[int, int, int]] = []
    for run in runs:
        ends = len(run) - 1
        near = _NEAR if len(run) > EVERY_PAIR else ends
        pairs += [
            (over, run[place], run[place + over]) for over in range(1, near + 1) for place in range(ends + 1 - over)
        ]
        over = 2 * near
        while over < ends:
            pairs += [(over, run[place], run[place + over]) for place in range(0, ends + 1 - over, over // 2)]
            over *= 2
        if near < ends:
            pairs.append((ends, run[0], run[-1]))
    return [(first, stop) for _, first, stop in sorted(pairs)]
