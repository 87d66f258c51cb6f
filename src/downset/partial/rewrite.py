"""Segments in strips as a network: a graph with operators for each strip, and Slices and Concats along rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Protocol

from downset.errors import UsageError
from downset.graph.core import Graph, Op
from downset.graph.cost import row_form
from downset.graph.edit import Edit
from downset.graph.halo_maps import counts_from_end
from downset.graph.halos import channels_last, spatial_axis
from downset.graph.kinds import kind_of
from downset.graph.parts import along
from downset.graph.row_form import Interval, RowForm
from downset.partial.pieces import Piece, StripStep
from downset.partial.segments import Segment, computed_whole, computing, find_segment
from downset.partial.strip_program import strip_program
from downset.rewrites.strips import OpenRows, StripOps

__all__ = ["InStrips", "in_strips", "reordered", "step_operators"]


class Program(Protocol):
    """Steps, and the pieces that they read and write."""

    @property
    def pieces(self) -> Sequence[Piece]: ...
    @property
    def steps(self) -> Sequence[StripStep]: ...


@dataclass(frozen=True, slots=True)
class InStrips:
    """Operators [first, stop) of a graph, in `strips` strips. The operators `recomputed` compute rows that several
    strips read in each of these; the others keep them. `even`: all tensors advance at the pace of the results (see
    `strip_program`)."""

    first: int
    stop: int
    strips: int
    recomputed: frozenset[int] = frozenset()
    even: bool = False


def in_strips(graph: Graph, segments: Sequence[InStrips], *, form: RowForm | None = None, joined: bool = True) -> Graph:
    """The network with these segments computed in strips, with its operators in the sequence in which they must run.

    Each row is computed from the same values as before. Layouts and kinds do not change. New are `Slice` operators
    (starts, ends and axes as constants) and `Concat` operators of at most `MOST_JOINED` inputs, both along rows, and a
    suffix of names. `joined`: every result is one tensor; else a result that only the next segment reads stays in the
    pieces that strips made, and the next one reads these. Raises UsageError where segments overlap or hold an operator
    that is computed whole, and UnsupportedError as `strip_program` does.
    """
    form = form or row_form(graph, halos_required=False)
    whole = computed_whole(graph, form)
    edit = Edit(graph)
    done = 0
    handed: dict[int, list[tuple[Interval, int]]] = {}
    """By result that stays in pieces: the rows of each, and its tensor."""
    ordered = sorted(segments, key=lambda item: item.first)
    for part, following in zip_longest(ordered, ordered[1:]):
        if not done <= part.first < part.stop <= len(graph.ops):
            raise UsageError(f"operators {part.first} to {part.stop} overlap another segment, or do not exist")
        named = next((index for index in range(part.first, part.stop) if index in whole), None)
        if named is not None:
            raise UsageError(f"operator {graph.ops[named].name!r} is computed whole: {whole[named]}")
        done = part.stop
        segment = find_segment(graph, part.first, part.stop)
        opened = () if joined or following is None else _read_by_next(graph, segment, following)
        given = {tensor: tuple(rows for rows, _ in handed[tensor]) for tensor in segment.inputs if tensor in handed}
        segment = segment._replace(given=tuple(given.items()), open_results=opened)
        program = strip_program(graph, form, segment, part.strips, recomputed=part.recomputed, even=part.even)
        inputs = [place for tensor in segment.inputs for _, place in handed.get(tensor, [(_ALL, tensor)])]
        place = dict(enumerate(inputs))
        results = dict(zip(segment.results, program.results, strict=True))
        place |= {pieces[0]: tensor for tensor, pieces in results.items() if tensor not in opened}
        ops, settings = step_operators(edit, form, program, place, word="strip")
        for tensor in opened:
            handed[tensor] = [(program.pieces[piece].rows, place[piece]) for piece in results[tensor]]
        *others, last = computing(graph, segment)
        for index in others:
            edit.replace(index, [])
        edit.replace(last, ops, settings_of=settings)
    return edit.finish(as_placed=True)


_ALL: Interval = (0, 0)
"""Stands for the rows of a whole tensor."""


def _read_by_next(graph: Graph, segment: Segment, following: InStrips) -> tuple[int, ...]:
    """The results of a segment that only the operators of the following one read."""
    readers = graph.consumers()
    return tuple(
        tensor
        for tensor in segment.results
        if tensor not in graph.outputs and all(following.first <= reader < following.stop for reader in readers[tensor])
    )


def step_operators(
    edit: Edit, form: RowForm, program: Program, place: dict[int, int], *, word: str
) -> tuple[list[Op], list[int]]:
    """(the operators of a program; for each, the operator of the graph whose settings it keeps, or -1). `place`: the
    tensors of pieces that exist or are named before; those of all others are added. Names end in `word` and the
    strip."""
    ops: list[Op] = []
    settings: list[int] = []
    open_rows: OpenRows = "rest" if word == "strip" and edit.graph.source.format == "onnx" else ""
    if open_rows and _takes_last_rows(edit.graph, form, program):
        open_rows = "last"
    for step in program.steps:
        strip = StripOps(edit.graph, form, edit.add_tensor, suffix=f"/{word}{step.strip}", open_rows=open_rows)
        if step.kind == "compute":
            _computed(edit.graph, strip, program, step, place)
        else:
            tensor, rows = program.pieces[step.writes[0]]
            name = f"{edit.graph.tensors[tensor].name}/{word}{step.strip}/rows{rows[0]}to{rows[1]}"
            if step.kind == "slice":
                _cut(strip, program, step, place, name)
            else:
                strip.ops.append(_joined(edit, form, program, step, place, name))
        ops += strip.ops
        settings += [step.op if op.kind == edit.graph.ops[step.op].kind else -1 for op in strip.ops]
    return ops, settings


def _takes_last_rows(graph: Graph, form: RowForm, program: Program) -> bool:
    """Whether one strip makes what a slice takes that counts from the last row, where this is."""
    if any(step.strip for step in program.steps):
        return False
    computed = (graph.ops[step.op] for step in program.steps if step.kind == "compute")
    taking = [op for op in computed if kind_of(op.kind).rows in ("slice", "gather")]
    axes = [spatial_axis(graph, op.inputs[0], form.axis) for op in taking]
    return any(axis is not None and counts_from_end(graph, op, axis) for op, axis in zip(taking, axes, strict=True))


def _computed(graph: Graph, strip: StripOps, program: Program, step: StripStep, place: dict[int, int]) -> None:
    pieces = [program.pieces[piece] for piece in step.reads]
    tensor_of = {piece.tensor: place[piece_index] for piece_index, piece in zip(step.reads, pieces, strict=True)}
    read = {piece.tensor: piece.rows for piece in pieces}
    op = graph.ops[step.op]
    result, _ = strip.apply(step.op, step.made, tuple(tensor_of.get(tensor, tensor) for tensor in op.inputs), read)
    results = [tensor for tensor in op.outputs if tensor >= 0]
    for tensor, piece in zip([tensor for tensor in result if tensor >= 0], step.writes, strict=True):
        if piece in place:  # the piece is a whole result, as in a segment of one strip
            strip.ops[-1] = _writing(strip.ops[-1], tensor, place[piece])
        else:
            place[piece] = tensor
    assert len(results) == len(step.writes)


def _writing(op: Op, old: int, new: int) -> Op:
    return replace(op, outputs=tuple(new if tensor == old else tensor for tensor in op.outputs))


def _cut(strip: StripOps, program: Program, step: StripStep, place: dict[int, int], name: str) -> None:
    (source,), (result,) = step.reads, step.writes
    tensor, rows = program.pieces[result]
    cropped = strip.crop(place[source], tensor, program.pieces[source].rows[0], rows, name)
    if result in place:
        strip.ops[-1] = _writing(strip.ops[-1], cropped, place[result])
    else:
        place[result] = cropped


def _joined(edit: Edit, form: RowForm, program: Program, step: StripStep, place: dict[int, int], name: str) -> Op:
    (result,) = step.writes
    tensor, rows = program.pieces[result]
    meta = edit.graph.tensors[tensor]
    dimension = spatial_axis(edit.graph, tensor, form.axis)
    assert dimension is not None
    if result not in place:
        shape = (*meta.shape[:dimension], rows[1] - rows[0], *meta.shape[dimension + 1 :])
        place[result] = edit.add_tensor(name, shape, meta, part=along(meta.name, dimension, *rows))
    attrs = {"axis": dimension, "layout": "NHWC"} if channels_last(edit.graph) else {"axis": dimension}
    return Op(name, "Concat", tuple(place[piece] for piece in step.reads), (place[result],), attrs)


def reordered(graph: Graph, steps: Sequence[int]) -> Graph:
    """The same network with its operators in the order `steps`. Raises LoadError where that is not topological."""
    number = {old: new for new, old in enumerate(steps)}
    ops = tuple(replace(graph.ops[old], after=tuple(number[a] for a in graph.ops[old].after)) for old in steps)
    source = graph.source
    op_index = tuple(source.op_index[old] for old in steps) if source.op_index else ()
    settings = tuple(source.settings_of[old] for old in steps) if source.settings_of else ()
    return replace(graph, ops=ops, source=replace(source, op_index=op_index, settings_of=settings)).check()
