"""A rewritten network of a .tflite file in operators that such a file can state and TFLite Micro runs.

Source: ours.
Names: a *window* is a convolution or pool. SAME and VALID are the two paddings that the format has.
Complexity: linear in operators and their inputs.
Deviations: rewrites speak ONNX, where windows have four pads of their own. Here a window whose pads are neither those
    of SAME nor none gets a Pad before it, with what its kernel takes for padding: the zero point in a convolution, the
    lowest value in a MaxPool. An AveragePool divides by the positions that are not padding, so it keeps its own: it
    runs with SAME, and rows that come out wrong at a cut are cut off. Cuts become SLICE, and a concatenation of
    more than ten tensors, which TFLite Micro refuses, becomes a tree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError, UsageError
from downset.graph.core import Graph, Op, Tensor
from downset.graph.edit import Edit
from downset.graph.halos import same_pads, window
from downset.graph.kinds import kind_of
from downset.graph.parts import Part, along
from downset.graph.row_form import RowForm, RowInput

__all__ = ["CONCAT_INPUTS", "IN_PLACE", "InPlace", "tflite_form", "writable_rows"]

InPlace = Literal["nothing", "cuts", "joins inside", "all joins"]
"""Which copies are made in place; each holds those before it. `cuts`: rows that are cut out. `joins inside`: new rows
that are joined to kept ones, whose bytes are taken as soon as the first are made. `all joins`: the strips of a tensor
of the file, whose bytes are taken from the first strip on; else they have places of their own, and both are there for
a moment."""
IN_PLACE: tuple[InPlace, ...] = get_args(InPlace)

CONCAT_INPUTS = 10
"""TFLite Micro's CONCATENATION reads so many tensors at most."""

Sides = tuple[int, int, int, int]
"""(top, left, bottom, right), as ONNX lists pads."""


def writable_rows(graph: Graph, form: RowForm, *, cut_off: Collection[int] = ()) -> RowForm:
    """The row form of what a .tflite file can state bit for bit.

    Computed whole are resizes by a factor that is not a power of two, for which the format's fixed-point scale is
    rounded, and AveragePools whose padded columns force SAME where no alignment of SAME meets the strip's rows. The
    operators `cut_off` (see `tflite_form`) with a stride of two read a row more where SAME begins at the right row only
    then: not those whose columns are not padded, or not as SAME does, which need no SAME or cannot have it.
    """
    if graph.source.format != "tflite":
        return form
    ops = list(form.ops)
    for index, op in enumerate(graph.ops):
        if ops[index].rows > 1 and not _keeps_values(graph, op):
            ops[index] = replace(ops[index], whole=True)
        elif index in cut_off and kind_of(op.kind).rows == "window" and _reads_more(graph, op):
            ops[index] = replace(ops[index], inputs=tuple(_with_a_row(item) for item in ops[index].inputs))
    return replace(form, ops=tuple(ops))


def _reads_more(graph: Graph, op: Op) -> bool:
    """Whether strips need an even number of rows: SAME puts half of `reach - 1` or `reach - 2` before the first."""
    rows, columns = (window(graph, op, axis) for axis in (0, 1))
    pads = columns.pad_begin, columns.pad_end
    same = any(pads) and pads == same_pads(graph.tensors[op.inputs[0]].shape[2], columns)
    return same and rows.stride == 2 and rows.reach % 4 == 3


def _with_a_row(item: RowInput) -> RowInput:
    return item if item.map is None else replace(item, map=item.map._replace(high=item.map.high + 1))


def _keeps_values(graph: Graph, op: Op) -> bool:
    if kind_of(op.kind).rows == "resize":
        source, result = (graph.tensors[tensor].shape for tensor in (op.inputs[0], op.outputs[0]))
        factors = [out // size for size, out in zip(source[1:3], result[1:3], strict=True)]
        return len(source) == 4 and factors[0] & (factors[0] - 1) == 0
    if op.kind == "AveragePool":
        rows, columns = (window(graph, op, axis) for axis in (0, 1))
        return rows.stride == 1 or (columns.pad_begin, columns.pad_end) == (0, 0) == (rows.pad_begin, rows.pad_end)
    return True


def tflite_form(graph: Graph, *, cut_off: Collection[int] = (), in_place: InPlace = "joins inside") -> Graph:
    """The same network with every operator that a rewrite made in a form that a .tflite file can state.

    A convolution or MaxPool whose pads differ from those of SAME has its input padded. The operators `cut_off`, by
    their place in the file, run with SAME where that makes all their rows and more, and those are cut off: more
    arithmetic, and no copy of the input.

    Where offsets are in force, what is `in_place` needs no second place (`memory.storages`); which of these takes least
    is known when it is placed. Plan and export what is returned: its operators are written one by one. A graph
    of another format is returned as it is. Raises UnsupportedError, naming the operator, where the format has no form
    for it.
    """
    if in_place not in IN_PLACE:
        raise UsageError(f"in_place is {' or '.join(map(repr, IN_PLACE))}, not {in_place!r}")
    if graph.source.format != "tflite" or not graph.source.rewritten:
        return graph
    forms = _Forms(graph, frozenset(cut_off), IN_PLACE.index(in_place))
    for index, op in enumerate(graph.ops):
        if graph.source.op_index[index] < 0:
            forms.state(index, op)
    return forms.edit.finish(as_placed=True)


@dataclass(slots=True)
class _Forms:
    graph: Graph
    cut_off: frozenset[int]
    in_place: int
    edit: Edit = field(init=False)
    _cut: frozenset[int] = field(init=False)
    _read_by: tuple[tuple[int, ...], ...] = field(init=False)
    _constants: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _padded: dict[tuple[int, Sides, bool], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.edit = Edit(self.graph)
        self._read_by = self.graph.consumers()
        self._cut = frozenset(tensor for op in self.graph.ops if op.kind == "Slice" for tensor in op.outputs)

    def state(self, index: int, op: Op) -> None:
        match kind_of(op.kind).rows:
            case "window":
                self._window(index, op)
            case "slice" if op.kind == "Slice":
                self._slice(index, op)
            case "resize":
                self._resize(index, op)
            case _ if op.kind == "Concat":
                self._tree(index, op)

    def _window(self, index: int, op: Op) -> None:
        graph = self.graph
        frames = [window(graph, op, axis) for axis in (0, 1)]
        sizes = graph.tensors[op.inputs[0]].shape[1:3]
        begin, end = zip(*(same_pads(size, one) for size, one in zip(sizes, frames, strict=True)), strict=True)
        pads, same = tuple(op.attrs["pads"]), (*begin, *end)
        if pads in (same, (0, 0, 0, 0)):
            return
        rows = graph.tensors[op.outputs[0]].shape[1]
        skipped, misaligned = divmod(begin[0] - pads[0], frames[0].stride)
        extent = -(-sizes[0] // frames[0].stride)
        fits = (begin[1], end[1]) == (pads[1], pads[3]) and not misaligned and 0 <= skipped <= extent - rows
        if op.kind == "AveragePool" and not fits:
            raise UnsupportedError(
                f"{graph.name}: AveragePool {op.name!r} divides by the positions that are not padding: these rows of "
                "it cannot be written to a .tflite file; compute it whole"
            )
        if fits and (op.kind == "AveragePool" or self.graph.source.settings_of[index] in self.cut_off):
            self._cut_off(index, op, same, (skipped, extent))
        else:
            self._pad(index, op, (pads[0], pads[1], pads[2], pads[3]))

    def _pad(self, index: int, op: Op, sides: Sides) -> None:
        """Operators that read the same tensor with the same pads share one Pad."""
        lowest = op.kind == "MaxPool"
        ops: list[Op] = []
        key = (op.inputs[0], sides, lowest)
        if key not in self._padded:
            meta = self.graph.tensors[op.inputs[0]]
            top, left, bottom, right = sides
            pairs = ((0, 0), (top, bottom), (left, right), (0, 0))
            shape = tuple(size + sum(pair) for size, pair in zip(meta.shape, pairs, strict=True))
            inputs = [op.inputs[0], self._numbers(pairs)]
            if lowest:
                inputs.append(self._lowest(meta))
            padded = self.edit.add_tensor(
                f"{meta.name}/padded", shape, meta, part=self._padded_part(op.inputs[0], sides)
            )
            ops.append(Op(f"{meta.name}/padded", "Pad", tuple(inputs), (padded,)))
            self._padded[key] = padded
        attrs = {**op.attrs, "pads": [0, 0, 0, 0]}
        ops.append(replace(op, inputs=(self._padded[key], *op.inputs[1:]), attrs=attrs))
        self.edit.replace(index, ops, settings_of=[-1] * (len(ops) - 1) + [index])

    def _padded_part(self, tensor: int, sides: Sides) -> Part:
        """The part that a padded tensor holds: beyond the original tensor lies its padding."""
        meta = self.graph.tensors[tensor]
        top, left, bottom, right = sides
        return Part(meta.name, ((1, -top, meta.shape[1] + bottom), (2, -left, meta.shape[2] + right)))

    def _lowest(self, meta: Tensor) -> int:
        lowest = np.finfo(meta.dtype).min if meta.dtype.startswith("float") else np.iinfo(meta.dtype).min
        return self._constant("lowest", np.array([lowest], meta.dtype), meta)

    def _cut_off(self, index: int, op: Op, same: Sequence[int], rows: tuple[int, int]) -> None:
        """SAME, which makes `rows[1]` rows, without those before row `rows[0]` and those behind what is wanted."""
        meta = self.graph.tensors[op.outputs[0]]
        begins, result_rows = rows
        shape, part = (meta.shape[0], result_rows, *meta.shape[2:]), along(meta.name, 1, -begins, result_rows - begins)
        whole = self.edit.add_tensor(f"{meta.name}/same", shape, meta, part=part)
        attrs = {**op.attrs, "pads": list(same)}
        lies = self._lies_at(meta, 1, begins)
        cut = Op(f"{op.name}/cut", "tflite::SLICE", (whole, *self._box(meta, 1, begins)), op.outputs, lies)
        self.edit.replace(index, [replace(op, outputs=(whole,), attrs=attrs), cut], settings_of=[index, -1])

    def _slice(self, index: int, op: Op) -> None:
        starts, ends, axes = (self.graph.constant(tensor) for tensor in op.inputs[1:4])
        meta = self.graph.tensors[op.outputs[0]]
        if starts is None or ends is None or axes is None or len(op.inputs) > 4 or len(axes) != 1:
            raise UnsupportedError(f"{self.graph.name}: Slice {op.name!r} cannot be written to a .tflite file")
        source, axis, start = op.inputs[0], int(axes[0]), int(starts[0])
        # The file's own tensors are there for other strips too, and what only this operator reads for nobody; else what
        # a strip made is freed by a copy of what is kept.
        looks = self.graph.source.tensor_index[source] >= 0 or len(self._read_by[source]) == 1
        attrs = self._lies_at(meta, axis, start) if looks else {}
        inputs = (source, *self._box(meta, axis, start))
        self.edit.replace(index, [replace(op, kind="tflite::SLICE", inputs=inputs, attrs=attrs)])

    def _lies_at(self, meta: Tensor, axis: int, start: int) -> dict[str, int]:
        """Where in its source a piece begins, in bytes; nothing where its bytes are not one stretch there."""
        if not self.in_place or any(extent != 1 for extent in meta.shape[:axis]) or not meta.shape[axis]:
            return {}
        return {"lies_at": meta.nbytes // meta.shape[axis] * start}

    def _box(self, meta: Tensor, axis: int, start: int) -> tuple[int, int]:
        """SLICE's numbers: where the box begins along an axis, and its sizes."""
        begin = [0] * len(meta.shape)
        begin[axis] = start
        return self._numbers(begin), self._numbers(meta.shape)

    def _resize(self, index: int, op: Op) -> None:
        """The format states the size of the result."""
        sizes = self._numbers(self.graph.tensors[op.outputs[0]].shape[1:3])
        self.edit.replace(index, [replace(op, inputs=(op.inputs[0], sizes))], settings_of=[index])

    def _tree(self, index: int, op: Op) -> None:
        """Neighbours are joined, ten at most, until ten are left."""
        ops: list[Op] = []
        parts = list(op.inputs)
        while len(parts) > CONCAT_INPUTS:
            offset, joined = 0, []
            for group in _evenly(parts, -(-len(parts) // CONCAT_INPUTS)):
                joined.append(group[0] if len(group) == 1 else self._join(op, group, offset, ops))
                offset += self._extent(op, joined[-1])
            parts = joined
        ops.append(self._marked(replace(op, inputs=tuple(parts)), op.outputs[0]))
        self.edit.replace(index, ops)

    def _join(self, op: Op, group: Sequence[int], offset: int, ops: list[Op]) -> int:
        """These parts, of which the first begins at `offset` in what is joined in the end."""
        like = self.graph.tensors[op.outputs[0]]
        axis, extent = self._axis(op), sum(self._extent(op, part) for part in group)
        shape = (*like.shape[:axis], extent, *like.shape[axis + 1 :])
        name = f"{op.name}/joined"
        piece = self.edit.add_tensor(name, shape, like, part=along(like.name, axis, offset, offset + extent))
        ops.append(self._marked(replace(op, name=name, inputs=tuple(group), outputs=(piece,)), op.outputs[0]))
        return piece

    def _marked(self, op: Op, result: int) -> Op:
        """Which parts may be made in place. Inside a segment that is the last one: rows kept for this strip wait for
        it, and would take the bytes of all that they are joined to."""
        last = len(op.inputs) - 1
        if self.graph.source.tensor_index[result] < 0:
            places: tuple[int, ...] = (last,) if self.in_place >= 2 and op.inputs[last] not in self._cut else ()
        else:
            places = tuple(range(last + 1)) if self.in_place == 3 else ()
        return replace(op, attrs={**op.attrs, "in_place": places}) if places else op

    def _axis(self, op: Op) -> int:
        return int(op.attrs["axis"]) % len(self.graph.tensors[op.outputs[0]].shape)

    def _extent(self, op: Op, tensor: int) -> int:
        return self.edit.tensors[tensor].shape[self._axis(op)]

    def _numbers(self, values: Iterable[Any]) -> int:
        array = np.array(list(values), np.int32)
        return self._constant("numbers", array, Tensor("", (), "int32", 0))

    def _constant(self, name: str, value: npt.NDArray[Any], like: Tensor) -> int:
        """Equal constants are one tensor."""
        scales = repr(like.quantization)
        key = (name, value.dtype.str, value.shape, value.tobytes(), scales)
        if key not in self._constants:
            self._constants[key] = self.edit.add_tensor(
                f"strips/{name}", value.shape, like, role="constant", value=lambda: value
            )
        return self._constants[key]


def _evenly(parts: Sequence[int], count: int) -> list[list[int]]:
    """Divide the parts into `count` groups of neighbours whose sizes differ by one at most."""
    left, walk = len(parts), iter(parts)
    groups = []
    for number in range(count, 0, -1):
        size = -(-left // number)
        groups.append(list(islice(walk, size)))
        left -= size
    return groups
