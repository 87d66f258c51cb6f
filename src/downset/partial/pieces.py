"""Pieces of tensors along rows, and the steps that compute, cut out and join them.

Strips within one run (`strip_program`) and streams, whose rows are kept from one run to the next (`stream_program`),
are made of the same steps. `rewrite` makes one operator of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from downset.graph.core import Graph
from downset.graph.row_form import Interval, RowForm
from downset.rewrites.strips import given_rows

__all__ = ["Piece", "PieceWriter", "StripStep", "rows_read"]


class Piece(NamedTuple):
    """A tensor that holds some rows of a tensor of the network."""

    tensor: int
    rows: Interval


class StripStep(NamedTuple):
    """A step. `compute`: operator `op` makes the rows `made`. `slice`: the rows `made` are cut out of one piece.
    `concat`: pieces are joined along rows. `reads` and `writes` are pieces; of a computed operator they are in the
    sequence of its different activations and of its results."""

    kind: Literal["compute", "slice", "concat"]
    strip: int
    op: int
    made: Interval
    reads: tuple[int, ...]
    writes: tuple[int, ...]


def rows_read(form: RowForm, index: int, output_rows: Interval) -> dict[int, Interval]:
    """By activation: the rows that an operator reads to make `output_rows`."""
    return {
        item.tensor: (0, form.rows[item.tensor]) if item.map is None else item.map(output_rows, form.rows[item.tensor])
        for item in form.ops[index].inputs
    }


@dataclass(slots=True)
class PieceWriter:
    """Writes steps. `pieces_of`: by tensor, the pieces that may be read, in the sequence in which they were made.
    `strip`: the number that the next steps get."""

    graph: Graph
    form: RowForm
    pieces: list[Piece] = field(default_factory=list)
    steps: list[StripStep] = field(default_factory=list)
    pieces_of: dict[int, list[int]] = field(default_factory=dict)
    strip: int = 0

    def piece(self, tensor: int, rows: Interval) -> int:
        """A new piece, which no step has made yet."""
        self.pieces.append(Piece(tensor, rows))
        return len(self.pieces) - 1

    def step(self, kind: Literal["slice", "concat"], tensor: int, rows: Interval, reads: tuple[int, ...]) -> int:
        piece = self.piece(tensor, rows)
        self.steps.append(StripStep(kind, self.strip, -1, rows, reads, (piece,)))
        return piece

    def compute(self, index: int, output_rows: Interval, reads: tuple[int, ...]) -> list[tuple[int, int]]:
        """(tensor, piece) of each result."""
        op = self.form.ops[index]
        output = given_rows(self.graph, self.form, index, output_rows, rows_read(self.form, index, output_rows))
        heights = [self.form.rows[tensor] for tensor in op.outputs]  # unequal ones are made whole, by a Split of rows
        spans = [output if rows == op.rows else (0, rows) for rows in heights]
        writes = tuple(self.piece(tensor, rows) for tensor, rows in zip(op.outputs, spans, strict=True))
        self.steps.append(StripStep("compute", self.strip, index, output_rows, reads, writes))
        reads_of = []
        for tensor, piece in zip(op.outputs, writes, strict=True):
            exact = piece
            if output != output_rows and self.form.rows[tensor] == op.rows:
                exact = self.step("slice", tensor, output_rows, (piece,))
            self.pieces_of[tensor] = [*self.pieces_of.get(tensor, []), exact]
            reads_of.append((tensor, exact))
        return reads_of

    def rows(self, tensor: int, rows: Interval) -> int:
        """The piece that holds exactly these rows; it is cut out or joined where there is none."""
        own = self.pieces_of[tensor]
        piece = self.within(tensor, rows)
        if piece is None:
            parts = [self.rows(tensor, part) for part in self.chain(tensor, rows)]
            piece = self.step("concat", tensor, rows, tuple(parts))
            own.append(piece)
        return piece

    def within(self, tensor: int, rows: Interval) -> int | None:
        """The piece that holds exactly these rows, cut out of the smallest piece that has them if need be; None where
        no piece has all of them."""
        own = self.pieces_of[tensor]
        around = [piece for piece in own if _covers(self.pieces[piece].rows, rows)]
        if not around:
            return None
        least = min(around, key=lambda piece: _length(self.pieces[piece].rows))
        if self.pieces[least].rows != rows:
            least = self.step("slice", tensor, rows, (least,))
            own.append(least)
        return least

    def chain(self, tensor: int, rows: Interval) -> list[Interval]:
        """The rows divided into as few consecutive parts as possible, each within one piece."""
        parts, row = [], rows[0]
        while row < rows[1]:
            ends = [self.pieces[piece].rows for piece in self.pieces_of[tensor]]
            stop = min(max(stop for start, stop in ends if start <= row < stop), rows[1])
            parts.append((row, stop))
            row = stop
        return parts

    def needed(self, results: Sequence[int]) -> tuple[StripStep, ...]:
        """The steps that these pieces need. Kept operators may make rows between needed ones that no operator reads."""
        read, needed = set(results), []
        for step in reversed(self.steps):
            if not read.isdisjoint(step.writes):
                read.update(step.reads)
                needed.append(step)
        return tuple(reversed(needed))


def _covers(outer: Interval, inner: Interval) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _length(rows: Interval) -> int:
    return rows[1] - rows[0]
