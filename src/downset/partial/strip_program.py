"""A segment in strips, as a sequence of steps that compute, cut out and join pieces of tensors (`pieces`).

`price` counts the bytes of these steps. Each strip makes some rows of the results, and before these the rows that it
needs of every tensor inside. An operator is *kept* or *recomputed*. A kept operator computes each row once, from the
first that is needed, and rows that later strips read again stay in memory. Of a recomputed one each strip computes all
rows that it reads, and no rows stay.

    strip 0   input rows 0-4 ─ conv ─ rows 0-3 ─ conv ─ result rows 0-2
                                      rows 2-3 stay
    strip 1   input rows 4-7 ─ conv ─ rows 4-6 ─ joined: rows 2-6 ─ conv ─ result rows 3-5

Source: ours; keeping rows between patches is StreamNet's (NeurIPS 2023), recomputing them MCUNetV2's (NeurIPS 2021).
Complexity: O(strips · edges of the segment).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from downset.errors import UnsupportedError
from downset.graph.core import Graph
from downset.graph.row_form import Interval, RowForm, equal_strips, hull, needed
from downset.partial.pieces import Piece, PieceWriter, StripStep, rows_read
from downset.partial.segments import Segment

__all__ = [
    "MOST_JOINED",
    "StripProgram",
    "check_strips",
    "first_read_later",
    "most_strips",
    "rows_of_strips",
    "strip_program",
]

MOST_JOINED = 10
"""The most parts that one concatenation joins, as in TFLite Micro. More parts are joined by several."""

_NONE: Interval = (0, 0)


@dataclass(frozen=True, slots=True)
class StripProgram:
    """The steps that compute a segment in strips. The first pieces are the inputs of the segment, whole or in the
    pieces that are given; `results[i]` are the pieces that hold the rows of `segment.results[i]`: one, or all that
    strips made of a result that is not joined."""

    segment: Segment
    pieces: tuple[Piece, ...]
    steps: tuple[StripStep, ...]
    results: tuple[tuple[int, ...], ...]


def strip_program(
    graph: Graph,
    form: RowForm,
    segment: Segment,
    strips: int,
    *,
    recomputed: Collection[int] = (),
    even: bool = False,
) -> StripProgram:
    """The steps of a segment in `strips` strips, where the operators `recomputed` keep no rows.

    The strips make equal numbers of rows of the results, up to one. The first rows of a result need more rows of the
    tensors before it than later ones do, so the first strip is the largest. With `even` all tensors advance at the pace
    of the results instead: some strips come before the first rows of the results, and there may be more strips than
    rows of the results. Operators that make a result always keep its rows. Raises UnsupportedError for more strips than
    `most_strips`, and as `given_rows` does for a strip of padding alone.
    """
    check_strips(graph, form, segment, strips, even=even)
    makers = {index for index in segment.operators if not set(form.ops[index].outputs).isdisjoint(segment.results)}
    free = frozenset(recomputed) - makers
    paces = _paces(form, segment, strips) if even else [{} for _ in range(strips)]
    new = _new_rows(form, segment, strips, free, paces)
    return _ProgramBuilder(PieceWriter(graph, form), segment, new, free).program()


def check_strips(graph: Graph, form: RowForm, segment: Segment, strips: int, *, even: bool) -> None:
    """Raise UnsupportedError where there are more strips than `most_strips`."""
    most = most_strips(form, segment, even=even)
    if not 1 <= strips <= most:
        named = max(_paced(form, segment, even=even), key=lambda tensor: form.rows[tensor])
        raise UnsupportedError(f"{graph.tensors[named].name!r} has {most} rows: not enough for {strips} strips")


def most_strips(form: RowForm, segment: Segment, *, even: bool) -> int:
    """The number of rows of the highest result, or with `even` of the highest tensor that is made inside."""
    return max((form.rows[tensor] for tensor in _paced(form, segment, even=even)), default=0)


def _paced(form: RowForm, segment: Segment, *, even: bool) -> Sequence[int]:
    results = [tensor for index in segment.operators for tensor in form.ops[index].outputs]
    return results if even else segment.results


def _paces(form: RowForm, segment: Segment, strips: int) -> list[dict[int, int]]:
    """By strip and tensor: the row up to which the tensor is computed where all tensors advance at the pace of the
    results. Strips before the first rows of the results advance only the tensors before these."""
    paces: list[dict[int, int]] = []
    number = strips
    while number > 0 or any(paces[-1].values()):
        paces.append(_pace(form, segment, strips, number))
        number -= 1
    return paces[-2::-1] if not any(paces[-1].values()) else paces[::-1]


def _pace(form: RowForm, segment: Segment, strips: int, number: int) -> dict[int, int]:
    """By tensor: the rows computed when the results have the share `number` / `strips` of theirs. Rows are counted in
    fractions of 1 / `strips`, and may be negative before the first. A tensor that is read whole is complete as soon as
    one row is made from it, and the tensors before it do not advance earlier."""
    ends = {tensor: number * form.rows[tensor] for tensor in segment.results}
    for index in reversed(segment.operators):
        op = form.ops[index]
        end = max((ends[tensor] for tensor in op.outputs if tensor in ends), default=None)
        if end is None:
            continue
        for item in op.inputs:
            if item.map is not None:
                scale, per, _, high = item.map
                behind = (scale * (end - strips) + high * strips) // per + strips
            elif end > 0:
                behind = form.rows[item.tensor] * strips
            else:
                continue
            ends[item.tensor] = max(ends.get(item.tensor, behind), behind)
    return {tensor: min(max(end // strips, 0), form.rows[tensor]) for tensor, end in ends.items()}


def _new_rows(
    form: RowForm, segment: Segment, strips: int, recomputed: frozenset[int], paces: Sequence[Mapping[int, int]]
) -> tuple[dict[int, Interval], ...]:
    """By strip and operator: the rows that the operator computes in the strip, if any. `paces`: by strip and tensor,
    the row up to which kept operators compute at least."""
    parts = {tensor: equal_strips(form.rows[tensor], strips) for tensor in segment.results}
    made_before = _first_rows(form, segment)
    new_rows = []
    for number, pace in enumerate(paces):
        strip = number - len(paces) + strips
        wanted = {tensor: rows[strip] for tensor, rows in parts.items()} if strip >= 0 else {}
        new: dict[int, Interval] = {}
        for index in reversed(segment.operators):
            op = form.ops[index]
            output_rows = _NONE
            for tensor in op.outputs:
                output_rows = hull(output_rows, wanted.get(tensor, _NONE))
            if index not in recomputed:
                stop = max(output_rows[1], *(pace.get(tensor, 0) for tensor in op.outputs), 0)
                output_rows = made_before[index], stop  # earlier rows were kept
                made_before[index] = max(output_rows)
            if output_rows[0] >= output_rows[1]:
                continue
            new[index] = output_rows
            for tensor, rows in rows_read(form, index, output_rows).items():
                wanted[tensor] = hull(wanted.get(tensor, _NONE), rows)
        new_rows.append(new)
    return tuple(new_rows)


def _first_rows(form: RowForm, segment: Segment) -> dict[int, int]:
    """By operator: the first row of its results that rows of the segment's results are made from."""
    touched = needed(form, segment.operators, {tensor: (0, form.rows[tensor]) for tensor in segment.results})
    return {
        index: min((touched[tensor][0] for tensor in form.ops[index].outputs if tensor in touched), default=0)
        for index in segment.operators
    }


def rows_of_strips(form: RowForm, segment: Segment, strips: int) -> tuple[dict[int, Interval], ...]:
    """By strip and operator: the rows that the operator computes in the strip where nothing is recomputed."""
    return _new_rows(form, segment, strips, frozenset(), [{} for _ in range(strips)])


def first_read_later(form: RowForm, new: Sequence[Mapping[int, Interval]]) -> list[dict[int, int]]:
    """By strip: the first row of each tensor that later strips read; tensors that none reads are left out."""
    later: list[dict[int, int]] = [{}]
    for strip in reversed(new[1:]):
        reads = dict(later[-1])
        for index, computed in strip.items():
            for tensor, rows in rows_read(form, index, computed).items():
                reads[tensor] = min(reads.get(tensor, rows[0]), rows[0])
        later.append(reads)
    return later[::-1]


@dataclass(slots=True)
class _ProgramBuilder:
    """Writes the steps of all strips. The pieces that the writer may read are those that are live."""

    writer: PieceWriter
    segment: Segment
    new: Sequence[Mapping[int, Interval]]
    recomputed: frozenset[int]

    def program(self) -> StripProgram:
        writer, form = self.writer, self.writer.form
        pieces_of = writer.pieces_of
        given = dict(self.segment.given)
        for tensor in self.segment.inputs:
            pieces_of[tensor] = [writer.piece(tensor, rows) for rows in given.get(tensor, [(0, form.rows[tensor])])]
        whole = {tensor: list(pieces) for tensor, pieces in pieces_of.items()}
        joins = {tensor: _Join(writer, tensor) for tensor in self.segment.results}
        later = first_read_later(form, self.new)
        for strip, new in enumerate(self.new):
            writer.strip = strip
            last = {tensor: index for index in sorted(new) for tensor in rows_read(form, index, new[index])}
            for index in sorted(new):
                read = rows_read(form, index, new[index])
                reads = tuple(writer.rows(tensor, rows) for tensor, rows in read.items())
                # Rows that stay are cut out first, so that the piece from which they are cut can be freed.
                for tensor in read:
                    if last[tensor] == index:
                        self._keep(tensor, later[strip].get(tensor), whole.get(tensor))
                for tensor, piece in writer.compute(index, new[index], reads):
                    if tensor in self.segment.open_results:
                        joins[tensor].parts.append(piece)
                    elif tensor in joins:
                        joins[tensor].add(piece, is_last=writer.pieces[piece].rows[1] == form.rows[tensor])
                    if tensor not in last:
                        self._keep(tensor, later[strip].get(tensor), None)
        results = tuple(
            tuple(joins[tensor].parts) if tensor in self.segment.open_results else (joins[tensor].finish(),)
            for tensor in self.segment.results
        )
        return StripProgram(self.segment, tuple(writer.pieces), writer.needed(sum(results, ())), results)

    def _keep(self, tensor: int, first: int | None, whole: list[int] | None) -> None:
        """After the last read in a strip: keep only the rows from `first` on (None: no rows), cut out if the piece has
        more. `whole`: the pieces of an input of the segment, which stay."""
        writer, pieces_of = self.writer, self.writer.pieces_of
        if whole is not None:
            pieces_of[tensor] = list(whole)
            return
        stop = max(writer.pieces[piece].rows[1] for piece in pieces_of[tensor])
        if first is None or first >= stop or self._recomputes(tensor):
            pieces_of[tensor] = []
        elif (piece := writer.within(tensor, (first, stop))) is not None:
            pieces_of[tensor] = [piece]
        else:
            chain = writer.chain(tensor, (first, stop))
            pieces_of[tensor] = [writer.rows(tensor, part) for part in chain]

    def _recomputes(self, tensor: int) -> bool:
        return any(tensor in self.writer.form.ops[index].outputs for index in self.recomputed)


@dataclass(slots=True)
class _Join:
    """Collects the parts of a result, and joins them as soon as there are `MOST_JOINED`."""

    writer: PieceWriter
    tensor: int
    levels: list[list[int]] = field(default_factory=lambda: [[]])
    parts: list[int] = field(default_factory=list)
    """Those of a result that stays in pieces."""

    def add(self, piece: int, *, is_last: bool) -> None:
        self.levels[0].append(piece)
        for level, pieces in enumerate(self.levels):
            if len(pieces) < MOST_JOINED or is_last:
                break
            if level + 1 == len(self.levels):
                self.levels.append([])
            self.levels[level + 1].append(self._joined(pieces))
            self.levels[level] = []

    def finish(self) -> int:
        """The piece that holds the whole tensor."""
        for level, pieces in enumerate(self.levels):
            left = sum(map(len, self.levels))
            if left > MOST_JOINED and len(pieces) > 1 and level + 1 < len(self.levels):
                self.levels[level + 1].append(self._joined(pieces))
                self.levels[level] = []
        return self._joined([piece for pieces in reversed(self.levels) for piece in pieces])

    def _joined(self, pieces: Sequence[int]) -> int:
        all_pieces = self.writer.pieces
        rows = all_pieces[pieces[0]].rows[0], all_pieces[pieces[-1]].rows[1]
        if len(pieces) == 1:
            return pieces[0]
        return self.writer.step("concat", self.tensor, rows, tuple(pieces))
