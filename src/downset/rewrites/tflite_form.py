"""A rewritten network of a .tflite file, in operators that such a file can state and TFLite Micro runs.

Source: ours.
Names: a *window* is a convolution or pool. SAME and VALID are the two paddings that the format has.
Complexity: linear in operators and their inputs.
Deviations: rewrites make ONNX operators, whose windows have four pads. Here a window whose pads are neither those of
    SAME nor zero gets a Pad before it. The Pad fills in the value that the kernel uses for padding: the zero point for
    a convolution, the lowest value for a MaxPool. An AveragePool divides by the number of positions that are not
    padding, so it cannot use a Pad: it runs with SAME, and rows that are wrong at a cut are cut off. Cuts become SLICE.
    A concatenation of more than ten tensors, which TFLite Micro refuses, becomes a tree.
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

__all__ = ["CONCAT_INPUTS", "IN_PLACE", "InPlace", "tflite_form", "tflite_forms", "writable_rows"]

InPlace = Literal["nothing", "cuts", "joins inside", "all joins"]
"""Which copies are made in place; each choice includes those before it. `cuts`: rows that are cut out. `joins inside`:
new rows that are joined to kept ones; the bytes of the result are then live as soon as the first of its rows are made.
`all joins`: the strips of a tensor of the file; its bytes are then live from the first strip on. Without that, the
strips have separate places, and strips and result are live together while they are joined."""
IN_PLACE: tuple[InPlace, ...] = get_args(InPlace)

CONCAT_INPUTS = 10
"""The most tensors that TFLite Micro's CONCATENATION reads."""

Sides = tuple[int, int, int, int]
"""(top, left, bottom, right), as ONNX lists pads."""


def writable_rows(graph: Graph, form: RowForm, *, cut_off: Collection[int] = ()) -> RowForm:
    """The row form, with operators marked as whole whose strips a .tflite file cannot state bit for bit. Graphs of
    other formats keep their form.

    Computed whole are operators with float inputs and integer weights, whose kernels round all of the input by its
    largest value; resizes by a factor that is not a power of two, since the format's fixed-point scale would be
    rounded; and padded AveragePools with a stride above 1 along the rows, since SAME may not align with the rows of a
    strip. Some of the operators `cut_off` (see `tflite_form`) with a stride of 2 read one row more, with which SAME
    begins at the right row. These are operators whose columns are padded as SAME does; others do not use SAME.
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
    """Whether strips need an even number of rows, so that SAME puts as many pads before the first as are needed: SAME
    puts half of `reach - 1` or of `reach - 2` there."""
    rows, columns = (window(graph, op, axis) for axis in (0, 1))
    pads = columns.pad_begin, columns.pad_end
    same = any(pads) and pads == same_pads(graph.tensors[op.inputs[0]].shape[2], columns)
    return same and rows.stride == 2 and rows.reach % 4 == 3


def _with_a_row(item: RowInput) -> RowInput:
    return item if item.map is None else replace(item, map=item.map._replace(high=item.map.high + 1))


def _keeps_values(graph: Graph, op: Op) -> bool:
    if _is_hybrid(graph, op):
        return False
    if kind_of(op.kind).rows == "resize":
        source, result = (graph.tensors[tensor].shape for tensor in (op.inputs[0], op.outputs[0]))
        factors = [out // size for size, out in zip(source[1:3], result[1:3], strict=True)]
        return len(source) == 4 and factors[0] & (factors[0] - 1) == 0
    if op.kind == "AveragePool":
        rows, columns = (window(graph, op, axis) for axis in (0, 1))
        return rows.stride == 1 or (columns.pad_begin, columns.pad_end) == (0, 0) == (rows.pad_begin, rows.pad_end)
    return True


def _is_hybrid(graph: Graph, op: Op) -> bool:
    """Whether a layer multiplies floats by integer weights: its kernel scales its whole input by the largest value."""
    if len(op.inputs) < 2 or kind_of(op.kind).macs == "none":
        return False
    source, weights = (graph.tensors[tensor] for tensor in op.inputs[:2])
    return source.dtype == "float32" and weights.role == "constant" and "int" in weights.dtype


def tflite_form(graph: Graph, *, cut_off: Collection[int] = (), in_place: InPlace = "joins inside") -> Graph:
    """The same network, with every operator that a rewrite made in a form that a .tflite file can state.

    A convolution or MaxPool whose pads differ from those of SAME has its input padded. The operators `cut_off`, by
    their index in the file, instead run with SAME where that makes all their rows and more; the surplus rows are cut
    off. This needs more arithmetic, but no copy of the input.

    Where the runtime follows offsets, copies that are `in_place` need no second place (`memory.storages`). Which choice
    takes the fewest bytes is known only when the tensors are placed. Plan and export the returned graph, whose
    operators are written one by one. A graph of another format, or one that was not rewritten, is returned unchanged.
    Raises UnsupportedError, naming the operator, where the format cannot state it, and UsageError for an unknown
    `in_place`.
    """
    if in_place not in IN_PLACE:
        raise UsageError(f"in_place is {' or '.join(map(repr, IN_PLACE))}, not {in_place!r}")
    whole = _all_in_place(graph, cut_off)
    return graph if whole is graph else _with_copies(whole, in_place)


def tflite_forms(graph: Graph) -> list[Graph]:
    """`tflite_form` for each choice of copies in place. They share all but the attributes of operators. The graph alone
    where `tflite_form` returns it unchanged."""
    whole = _all_in_place(graph, ())
    return [graph] if whole is graph else [_with_copies(whole, in_place) for in_place in IN_PLACE]


def _all_in_place(graph: Graph, cut_off: Collection[int]) -> Graph:
    """The form in which all copies are made in place, with the attribute `_FROM`; the graph itself where it has no
    other form."""
    if graph.source.format != "tflite" or not graph.source.rewritten:
        return graph
    forms = _Forms(graph, frozenset(cut_off))
    for index, op in enumerate(graph.ops):
        if graph.source.op_index[index] < 0:
            forms.state(index, op)
    return forms.edit.finish(as_placed=True)


def _with_copies(graph: Graph, in_place: InPlace) -> Graph:
    """The graph of `_all_in_place` in which only these copies are made in place."""
    choices = IN_PLACE[: IN_PLACE.index(in_place) + 1]
    ops = tuple(_with_copy(op, op.attrs[_FROM] in choices) if _FROM in op.attrs else op for op in graph.ops)
    return replace(graph, ops=ops)


def _with_copy(op: Op, in_place: bool) -> Op:
    dropped = {_FROM} if in_place else {_FROM, *_COPIES}
    return replace(op, attrs={name: value for name, value in op.attrs.items() if name not in dropped})


_COPIES = ("lies_at", "in_place")
"""The attributes that state copies in place."""
_FROM = "in_place_from"
"""The attribute, while forms are made, that names the first choice in which the copy is made in place."""


@dataclass(slots=True)
class _Forms:
    graph: Graph
    cut_off: frozenset[int]
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
            case _ if op.kind == "Identity":
                self._copy(index, op)
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
        """Put a Pad before the operator. Operators that read the same tensor with the same pads share one."""
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
        """The part that a padded tensor holds; its box reaches beyond the original tensor by the padding."""
        meta = self.graph.tensors[tensor]
        top, left, bottom, right = sides
        return Part(meta.name, ((1, -top, meta.shape[1] + bottom), (2, -left, meta.shape[2] + right)))

    def _lowest(self, meta: Tensor) -> int:
        lowest = np.finfo(meta.dtype).min if meta.dtype.startswith("float") else np.iinfo(meta.dtype).min
        return self._constant("lowest", np.array([lowest], meta.dtype), meta)

    def _cut_off(self, index: int, op: Op, same: Sequence[int], rows: tuple[int, int]) -> None:
        """Run the operator with SAME, which makes `rows[1]` rows, and cut out the wanted ones, from row `rows[0]`
        on."""
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
        # The cut stays in place in a tensor of the file, which other strips read too, and in one that only this
        # operator reads. Otherwise a copy of the kept rows lets the tensor of the strip be freed.
        looks = self.graph.source.tensor_index[source] >= 0 or len(self._read_by[source]) == 1
        attrs = self._lies_at(meta, axis, start) if looks else {}
        inputs = (source, *self._box(meta, axis, start))
        self.edit.replace(index, [replace(op, kind="tflite::SLICE", inputs=inputs, attrs=attrs)])

    def _copy(self, index: int, op: Op) -> None:
        shape = self._numbers(self.graph.tensors[op.outputs[0]].shape)
        self.edit.replace(index, [replace(op, kind="Reshape", inputs=(op.inputs[0], shape))])

    def _lies_at(self, meta: Tensor, axis: int, start: int) -> dict[str, Any]:
        """The attribute that states at which byte of its source a piece begins; none where its bytes are not contiguous
        there."""
        if any(extent != 1 for extent in meta.shape[:axis]) or not meta.shape[axis]:
            return {}
        return _copied("cuts", lies_at=meta.nbytes // meta.shape[axis] * start)

    def _box(self, meta: Tensor, axis: int, start: int) -> tuple[int, int]:
        """The two constants of a SLICE: the begin of the box, which is `start` along `axis`, and its sizes."""
        begin = [0] * len(meta.shape)
        begin[axis] = start
        return self._numbers(begin), self._numbers(meta.shape)

    def _resize(self, index: int, op: Op) -> None:
        """State the size of the result, as the format does."""
        sizes = self._numbers(self.graph.tensors[op.outputs[0]].shape[1:3])
        self.edit.replace(index, [replace(op, inputs=(op.inputs[0], sizes))], settings_of=[index])

    def _tree(self, index: int, op: Op) -> None:
        """Join groups of up to ten neighbours until at most ten tensors are left."""
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
        """Join these parts, of which the first begins at `offset` in the result of `op`; return the tensor."""
        like = self.graph.tensors[op.outputs[0]]
        axis, extent = self._axis(op), sum(self._extent(op, part) for part in group)
        shape = (*like.shape[:axis], extent, *like.shape[axis + 1 :])
        name = f"{op.name}/joined"
        piece = self.edit.add_tensor(name, shape, like, part=along(like.name, axis, offset, offset + extent))
        ops.append(self._marked(replace(op, name=name, inputs=tuple(group), outputs=(piece,)), op.outputs[0]))
        return piece

    def _marked(self, op: Op, result: int) -> Op:
        """The operator with the attribute `in_place`: the positions of parts that may be made in place. Inside a
        segment this is the last part only: kept rows are live before it, and would take the bytes of the whole result
        so long."""
        last = len(op.inputs) - 1
        if self.graph.source.tensor_index[result] >= 0:
            copied = _copied("all joins", in_place=tuple(range(last + 1)))
        elif op.inputs[last] not in self._cut:
            copied = _copied("joins inside", in_place=(last,))
        else:
            return op
        return replace(op, attrs={**op.attrs, **copied})

    def _axis(self, op: Op) -> int:
        return int(op.attrs["axis"]) % len(self.graph.tensors[op.outputs[0]].shape)

    def _extent(self, op: Op, tensor: int) -> int:
        return self.edit.tensors[tensor].shape[self._axis(op)]

    def _numbers(self, values: Iterable[Any]) -> int:
        array = np.array(list(values), np.int32)
        return self._constant("numbers", array, Tensor("", (), "int32", 0))

    def _constant(self, name: str, value: npt.NDArray[Any], like: Tensor) -> int:
        """The tensor of a constant; equal constants share one."""
        scales = repr(like.quantization)
        key = (name, value.dtype.str, value.shape, value.tobytes(), scales)
        if key not in self._constants:
            self._constants[key] = self.edit.add_tensor(
                f"strips/{name}", value.shape, like, role="constant", value=lambda: value
            )
        return self._constants[key]


def _copied(since: InPlace, **stated: Any) -> dict[str, Any]:
    """Attributes of an operator whose copy is made in place since that choice."""
    return {_FROM: since, **stated}


def _evenly(parts: Sequence[int], count: int) -> list[list[int]]:
    """Divide the parts into `count` groups of neighbours whose sizes differ by one at most."""
    left, walk = len(parts), iter(parts)
    groups = []
    for number in range(count, 0, -1):
        size = -(-left // number)
        groups.append(list(islice(walk, size)))
        left -= size
    return groups
