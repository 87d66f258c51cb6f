"""A strip or tile of a block as a separate graph, whose inputs and outputs are rows of the network's tensors.

A tile is cut in two steps: first a strip of rows, and then from that graph a strip along the other axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.graph.cost import row_form
from downset.graph.edit import Edit
from downset.graph.halos import spatial_axis
from downset.graph.row_form import Interval, RowForm, needed
from downset.results.pipelines import Rows
from downset.rewrites.strips import Held, StripOps

__all__ = ["Cutter", "FrameTile"]


@dataclass(frozen=True, slots=True)
class FrameTile:
    """Frame rows [start, stop) of `frame_rows`, and columns of `frame_columns` where the block is cut into tiles. A
    tensor of H rows is cut at floor(row · H / frame_rows). `halos`: rows made beyond those are outputs, too."""

    start: int
    stop: int
    frame_rows: int
    columns: Interval | None = None
    frame_columns: int = 0
    halos: bool = False


@dataclass(frozen=True, slots=True)
class StripGraph:
    """A strip as a graph. `reads` and `makes`: rows of the network's tensors, in the order of its inputs and outputs,
    which have those tensors' names."""

    graph: Graph
    reads: tuple[Rows, ...]
    makes: tuple[Rows, ...]


class Cutter:
    """Cuts one network along one axis (0: rows, 1: columns)."""

    def __init__(self, graph: Graph, axis: int) -> None:
        self.graph, self.axis = graph, axis
        self._form = row_form(graph, axis=axis, halos_required=False)
        self._across = row_form(graph, axis=1 - axis, halos_required=False)
        self._read = {tensor for op in graph.ops for tensor in op.inputs}

    def part(self, ops: Sequence[int], tile: FrameTile) -> StripGraph | None:
        """The operators' strip; None where it makes nothing."""
        sinks = self._sinks(ops)
        sink_rows = _shares(self._form, sinks, (tile.start, tile.stop), tile.frame_rows)
        side: dict[int, Interval] = {}
        if tile.columns is not None:
            side = _shares(self._across, sinks, tile.columns, tile.frame_columns)
            sink_rows = {tensor: rows for tensor, rows in sink_rows.items() if tensor in side}
        if not sink_rows:
            return None
        if tile.halos:
            needed_rows = needed(self._form, ops, sink_rows)
            sink_rows = {tensor: needed_rows[tensor] for tensor in sinks if tensor in needed_rows}
        strip, reads = _strip(self.graph, self._form, ops, sink_rows, suffix="/strip")
        rows = {**reads, **sink_rows}
        if tile.columns is None:
            return StripGraph(strip, _rows(reads), _rows(sink_rows))
        number = {meta.name: index for index, meta in enumerate(self.graph.tensors)}
        of = [number.get(meta.name, -1) for meta in strip.tensors]  # the network's tensor, of inputs and outputs
        form = row_form(strip, axis=1 - self.axis, halos_required=False)
        across = {tensor: side[of[tensor]] for tensor in strip.outputs}
        cut, columns = _strip(strip, form, range(len(strip.ops)), across, suffix="/tile")
        return StripGraph(
            cut,
            tuple(Rows(of[tensor], *rows[of[tensor]], span) for tensor, span in columns.items()),
            tuple(Rows(of[tensor], *rows[of[tensor]], span) for tensor, span in across.items()),
        )

    def _sinks(self, ops: Sequence[int]) -> list[int]:
        """Tensors that the operators make and that other shards or the user read, or that nothing reads."""
        inside, graph = set(ops), self.graph
        read_later = {t for op in range(len(graph.ops)) if op not in inside for t in graph.ops[op].inputs}
        return [
            tensor
            for op in sorted(inside)
            for tensor in graph.ops[op].outputs
            if tensor != ABSENT
            and graph.tensors[tensor].role == "activation"
            and (tensor in read_later or tensor in graph.outputs or not self._read.intersection(graph.ops[op].outputs))
        ]


def _shares(form: RowForm, tensors: Iterable[int], strip: Interval, frame: int) -> dict[int, Interval]:
    """The tensors' rows that belong to a strip of the frame, those without any left out."""
    shares = {t: (strip[0] * form.rows[t] // frame, strip[1] * form.rows[t] // frame) for t in tensors}
    return {tensor: rows for tensor, rows in shares.items() if rows[0] < rows[1]}


def _rows(spans: Mapping[int, Interval]) -> tuple[Rows, ...]:
    return tuple(Rows(tensor, *span) for tensor, span in spans.items())


def _strip(
    graph: Graph, form: RowForm, ops: Sequence[int], sink_rows: Mapping[int, Interval], *, suffix: str
) -> tuple[Graph, dict[int, Interval]]:
    """(the strip as a graph, rows of its inputs by the graph's tensor)."""
    edit = Edit(graph)
    computed = {tensor for op in ops for tensor in graph.ops[op].outputs}
    slices: dict[int, Held] = {}
    for tensor, rows in needed(form, ops, sink_rows).items():
        if tensor not in computed:
            slices[tensor] = (_given(edit, graph, tensor, rows, form.axis), rows)
    strip = StripOps(graph, form, edit.add_tensor, suffix=suffix, slices=slices)
    results = strip.segment(ops, sink_rows)
    slice_of = {tensor: index for tensor, (index, _) in slices.items()}
    part = _named(graph, edit, _with_constants(graph, strip.ops), slice_of, results)
    return part, {tensor: rows for tensor, (_, rows) in slices.items()}


def _with_constants(graph: Graph, ops: Sequence[Op]) -> list[Op]:
    """The operators behind those that compute their constants, where a constant's value is not in the file."""
    made_by = graph.producers()
    needed_ops: set[int] = set()
    waiting = [tensor for op in ops for tensor in op.inputs]
    while waiting:
        tensor = waiting.pop()
        kept = tensor == ABSENT or tensor >= len(graph.tensors) or tensor in graph.constants
        if not kept and graph.tensors[tensor].role == "constant" and made_by[tensor] not in needed_ops:
            needed_ops.add(made_by[tensor])
            waiting += graph.ops[made_by[tensor]].inputs
    return [*(graph.ops[index] for index in sorted(needed_ops)), *ops]


def _given(edit: Edit, graph: Graph, tensor: int, rows: Interval, axis: int) -> int:
    meta = graph.tensors[tensor]
    shape = list(meta.shape)
    dimension = spatial_axis(graph, tensor, axis)
    if dimension is not None:
        shape[dimension] = rows[1] - rows[0]
    return edit.add_tensor(meta.name, shape, meta)


def _named(graph: Graph, edit: Edit, ops: list[Op], slice_of: dict[int, int], results: dict[int, int]) -> Graph:
    """The strip with compact indices; what it is given and makes has the names of the network's tensors."""
    used = sorted(
        {*slice_of.values(), *results.values(), *(t for op in ops for t in (*op.inputs, *op.outputs))} - {ABSENT}
    )
    number = {old: new for new, old in enumerate(used)} | {ABSENT: ABSENT}
    names = {index: graph.tensors[tensor].name for side in (slice_of, results) for tensor, index in side.items()}
    tensors = []
    for old in used:
        meta = edit.tensors[old]
        tensors.append(Tensor(names.get(old, meta.name), meta.shape, meta.dtype, meta.nbytes, meta.role))
    renumbered = tuple(
        Op(op.name, op.kind, tuple(number[t] for t in op.inputs), tuple(number[t] for t in op.outputs), op.attrs)
        for op in ops
    )
    constants = {number[old]: read for old, read in edit.constants.items() if old in number}
    inputs, outputs = (tuple(number[t] for t in items) for items in (slice_of.values(), results.values()))
    return Graph(f"{graph.name} strip", tuple(tensors), renumbered, inputs, outputs, constants).check()
