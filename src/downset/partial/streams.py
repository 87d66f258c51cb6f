"""The network of a stream: the window's network on new rows, with kept rows as further inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass

from downset.errors import UnsupportedError
from downset.graph.core import ABSENT, Graph, Op
from downset.graph.edit import Edit
from downset.graph.halos import spatial_axis
from downset.graph.kinds import kind_of
from downset.graph.parts import Part, along
from downset.partial.rewrite import step_operators
from downset.partial.stream_program import StreamProgram, stream_program
from downset.partial.stream_rows import StreamRows
from downset.results.streams import State, StreamForm, StreamRecord

__all__ = ["Stream", "check_streamable", "stream_of"]


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream. `graph`: one call; its states are the last inputs and outputs, in the sequence of the record's
    states."""

    graph: Graph
    record: StreamRecord


def check_streamable(graph: Graph) -> None:
    """Raise UnsupportedError where operators run graphs of their own or keep values from one run to the next, naming
    the first."""
    if graph.states:
        state = graph.states[0].name
        raise UnsupportedError(
            f"{graph.name} keeps its states in place: the file is a stream already (state {state!r})"
        )
    waited_for = {earlier for op in graph.ops for earlier in op.after}
    for index, op in enumerate(graph.ops):
        tensors = [graph.tensors[tensor] for tensor in (*op.inputs, *op.outputs) if tensor != ABSENT]
        if kind_of(op.kind).category == "control flow":
            raise UnsupportedError(f"{op.kind} {op.name!r} runs graphs of its own: no stream is made of such a network")
        if op.after or index in waited_for or any(tensor.role == "state" for tensor in tensors):
            raise UnsupportedError(
                f"{op.kind} {op.name!r} keeps a state from run to run: the file is a stream already, or no window"
            )
        if kind_of(op.kind).draws == "always":
            raise UnsupportedError(f"{op.kind} {op.name!r} draws at random: no two runs compute the same rows")


def stream_of(rows: StreamRows, form: StreamForm) -> Stream:
    """The stream that computes and keeps these rows. Raises UnsupportedError as `stream_program` does."""
    graph, moving = rows.moving.graph, rows.moving
    program, edit = stream_program(rows), Edit(rows.moving.graph)
    given = program.pieces[program.given]
    place = {index: piece.tensor for index, piece in enumerate(program.pieces) if _is_whole(rows, piece.rows, piece[0])}
    place |= dict(zip(program.results, graph.outputs, strict=True))
    place[program.given] = moving.tensor
    edit.cut(moving.tensor, _shape(rows, moving.tensor, hop_rows(rows)), _part(rows, moving.tensor, given.rows))
    states, inputs, outputs, ops = _states(rows, program, edit, place)
    more, settings = step_operators(edit, moving.form, program, place, word="hop")
    *others, last = [index for index, op in enumerate(graph.ops) if _computes(graph, op)]
    for index in others:
        edit.replace(index, [])
    edit.replace(last, [*more, *ops], settings_of=[*settings, *[-1] * len(ops)])
    edit.add_ends(inputs, outputs)
    record = StreamRecord(
        window=moving.window,
        hop=rows.hop,
        input=graph.tensors[moving.tensor].name,
        axis=moving.dimension,
        form=form,
        first_exact=-(-moving.window // rows.hop) - 1,
        states=tuple(states),
    )
    return Stream(edit.finish(as_placed=True), record)


def hop_rows(rows: StreamRows) -> tuple[int, int]:
    """The rows of the window that are new in a call."""
    return rows.moving.window - rows.hop, rows.moving.window


def _states(
    rows: StreamRows, program: StreamProgram, edit: Edit, place: dict[int, int]
) -> tuple[list[State], list[int], list[int], list[Op]]:
    """The states, their inputs and outputs, and the operators that move states of a queue on. Each state of a queue
    but the last becomes that of the next age."""
    states: list[State] = []
    inputs: list[int] = []
    outputs: list[int] = []
    ops: list[Op] = []
    graph = rows.moving.graph
    for tensor, pieces in program.kept.items():
        meta, kept = graph.tensors[tensor], rows.kept[tensor]
        span, left = (kept.first, kept.stop), (kept.first + kept.shift, kept.stop + kept.shift)
        axis = spatial_axis(graph, tensor, rows.moving.form.axis)
        assert axis is not None
        for age in range(kept.hops):
            name, shape = meta.name + (f"/{age}" if age else ""), _shape(rows, tensor, span)
            part = None if age else _part(rows, tensor, span)
            inputs.append(edit.add_tensor(f"state/{name}", shape, meta, part=part))
            part = None if age < kept.hops - 1 else _part(rows, tensor, left)
            outputs.append(edit.add_tensor(f"next/{name}", shape, meta, part=part))
            state_name, next_name = (edit.tensors[one].name for one in (inputs[-1], outputs[-1]))
            if age:
                ops.append(Op(f"{next_name}/moved", "Identity", (inputs[-1],), (outputs[-2],)))
            states.append(State(state_name, meta.name, axis, span, kept.shift, next_name, age))
        place[pieces.found], place[pieces.left] = inputs[-kept.hops], outputs[-1]
    return states, inputs, outputs, ops


def _is_whole(rows: StreamRows, span: tuple[int, int], tensor: int) -> bool:
    return span == (0, rows.moving.form.rows[tensor]) and tensor != rows.moving.tensor


def _shape(rows: StreamRows, tensor: int, span: tuple[int, int]) -> tuple[int, ...]:
    axis = spatial_axis(rows.moving.graph, tensor, rows.moving.form.axis)
    assert axis is not None
    shape = rows.moving.graph.tensors[tensor].shape
    return (*shape[:axis], span[1] - span[0], *shape[axis + 1 :])


def _part(rows: StreamRows, tensor: int, span: tuple[int, int]) -> Part:
    axis = spatial_axis(rows.moving.graph, tensor, rows.moving.form.axis)
    assert axis is not None
    return along(rows.moving.graph.tensors[tensor].name, axis, *span)


def _computes(graph: Graph, op: Op) -> bool:
    return any(graph.tensors[tensor].role != "constant" for tensor in (*op.inputs, *op.outputs) if tensor != ABSENT)
