"""A call of a stream, as a sequence of steps that compute, cut out and join pieces of tensors (`pieces`).

    kept rows 70-71 ──────────┐
    new rows  72-75 ─ joined: rows 70-75 ─┬─ conv ─ new rows of its result
                                          └─ cut: rows 74-75, kept for the next call

Complexity: O(edges of the network).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from downset.errors import UnsupportedError
from downset.partial.pieces import Piece, PieceWriter, StripStep, rows_read
from downset.partial.stream_rows import StreamRows

__all__ = ["KeptPieces", "StreamProgram", "stream_program"]


class KeptPieces(NamedTuple):
    """The piece of kept rows of a tensor that a call finds, and the piece of those that it leaves for a later call."""

    found: int
    left: int


@dataclass(frozen=True, slots=True)
class StreamProgram:
    """The steps of a call. `given`: the piece of the input's new rows. `kept`: by tensor. `results`: by output of the
    network, the piece that holds all of its rows."""

    pieces: tuple[Piece, ...]
    steps: tuple[StripStep, ...]
    given: int
    kept: dict[int, KeptPieces]
    results: tuple[int, ...]


def stream_program(rows: StreamRows) -> StreamProgram:
    """The steps of a call that computes and keeps these rows.

    Kept rows are read once, where they are joined to the new rows behind them; rows for later calls are cut out of
    that. Raises UnsupportedError as `given_rows` does, and where an output of the network is the input."""
    moving, graph = rows.moving, rows.moving.graph
    writer = PieceWriter(graph, moving.form)
    if moving.tensor in graph.outputs:
        raise UnsupportedError(f"the input {graph.tensors[moving.tensor].name!r} is an output too: it cannot be cut")
    read_pieces: dict[int, int] = {}
    left: dict[int, int] = {}
    joined: dict[int, int] = {}
    for tensor, kept in rows.kept.items():
        read_pieces[tensor] = writer.piece(tensor, (kept.first, kept.stop))
    given = writer.piece(moving.tensor, rows.computed[moving.tensor][0])
    for tensor in graph.inputs:
        writer.pieces_of[tensor] = [given if tensor == moving.tensor else writer.piece(tensor, _all(rows, tensor))]

    def join(tensor: int) -> None:
        if tensor in read_pieces:
            new = next(one for one in writer.pieces_of[tensor] if writer.pieces[one].rows[0] == rows.kept[tensor].stop)
            span = rows.kept[tensor].first, writer.pieces[new].rows[1]
            joined[tensor] = writer.step("concat", tensor, span, (read_pieces[tensor], new))
            writer.pieces_of[tensor].append(joined[tensor])

    join(moving.tensor)
    last = {tensor: index for index in _computing(rows) for tensor in _read(rows, index)}
    ends: dict[int, list[int]] = {}
    for tensor in read_pieces:
        ends.setdefault(last.get(tensor, len(graph.ops)), []).append(tensor)
    for index in _computing(rows):
        for strip, span in enumerate(rows.computed[moving.form.ops[index].outputs[0]]):
            writer.strip = strip
            read = rows_read(moving.form, index, span)
            writer.compute(index, span, tuple(writer.rows(tensor, one) for tensor, one in read.items()))
        for tensor in moving.form.ops[index].outputs:
            join(tensor)
        for tensor in ends.get(index, ()):
            left[tensor] = _cut(writer, rows, tensor, joined[tensor])
    results = tuple(writer.rows(tensor, _all(rows, tensor)) for tensor in graph.outputs)
    for tensor in ends.get(len(graph.ops), ()):
        left[tensor] = _cut(writer, rows, tensor, joined[tensor])
    states = {tensor: KeptPieces(read_pieces[tensor], left[tensor]) for tensor in sorted(read_pieces)}
    return StreamProgram(tuple(writer.pieces), writer.needed([*results, *left.values()]), given, states, results)


def _cut(writer: PieceWriter, rows: StreamRows, tensor: int, source: int) -> int:
    """Cut out the rows that a later call finds."""
    kept = rows.kept[tensor]
    return writer.step("slice", tensor, (kept.first + kept.shift, kept.stop + kept.shift), (source,))


def _all(rows: StreamRows, tensor: int) -> tuple[int, int]:
    return 0, rows.moving.form.rows[tensor]


def _computing(rows: StreamRows) -> Iterator[int]:
    """The operators of which a call computes rows."""
    for index, op in enumerate(rows.moving.form.ops):
        if op.outputs and op.outputs[0] in rows.computed:
            yield index


def _read(rows: StreamRows, index: int) -> list[int]:
    return [item.tensor for item in rows.moving.form.ops[index].inputs]
