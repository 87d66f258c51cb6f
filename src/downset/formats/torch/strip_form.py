"""A rewritten network of a `.pt2` file, in calls that PyTorch has.

Rewrites make ONNX operators, whose windows have a pad at each end. PyTorch's have equal pads at both ends. A window of
other pads gets a Pad before it, which fills in what its kernel uses for padding. A transposed convolution makes the
rows beyond, which are cut off. Causal attention gets a mask of its rows, as their place in the strip is another one.
What a call does besides is copied from the file, so operators are computed in strips whose call may be copied with
another input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.formats.torch.archive import Archive
from downset.formats.torch.effects import writes_outside
from downset.formats.torch.new_calls import ONES, TRIANGLE
from downset.formats.torch.program import TorchProgram, TorchValue
from downset.formats.torch.read import archive_program
from downset.graph.core import Graph, Op, Tensor
from downset.graph.edit import Edit
from downset.graph.halos import is_whole
from downset.graph.kinds import kind_of
from downset.graph.parts import Part, along
from downset.graph.row_form import RowForm, RowOp

__all__ = ["runs_again", "strip_form", "strip_rows"]


def strip_rows(graph: Graph, form: RowForm) -> RowForm:
    """The row form of a `.pt2` file's network, with operators marked as whole of which a strip cannot be stated: pools
    that round up, averages that leave padding out, resizes but by a power of two, and calls that write into an input or
    a weight of the program."""
    outside = _writes_outside(graph)
    ops = [
        replace(row_op, whole=_is_whole(graph, op, row_op, form.axis) or place in outside)
        for op, row_op, place in zip(graph.ops, form.ops, graph.source.op_index, strict=True)
    ]
    return replace(form, ops=tuple(ops))


def _is_whole(graph: Graph, op: Op, row_op: RowOp, axis: int) -> bool:
    if row_op.whole and _is_causal(op):
        call = op.attrs["call"]
        args, named = call["args"][:5], {name: value for name, value in call["kwargs"].items() if name != "is_causal"}
        return is_whole(graph, replace(op, attrs={"call": {"args": args, "kwargs": named}}), axis)
    return row_op.whole or not _can_be_stated(graph, op)


def _is_causal(op: Op) -> bool:
    """Whether a query sees the keys up to its own place alone."""
    if kind_of(op.kind).rows != "attention":
        return False
    call = op.attrs["call"]
    return bool((call["args"][5:6] or [call["kwargs"].get("is_causal")])[0])


def runs_again(graph: Graph) -> bool:
    """Whether operators may run again later: none writes into what another one reads or the caller holds."""
    return not _writes_outside(graph) and not any(op.after for op in graph.ops)


def _writes_outside(graph: Graph) -> frozenset[int]:
    if "writes outside" not in graph.facts:
        graph.facts["writes outside"] = writes_outside(_file_program(graph))
    outside: frozenset[int] = graph.facts["writes outside"]
    return outside


def _file_program(graph: Graph) -> TorchProgram:
    return archive_program(Archive(Path(graph.source.path)))


def _can_be_stated(graph: Graph, op: Op) -> bool:
    if kind_of(op.kind).rows == "resize":  # PyTorch multiplies places by a float
        before, behind = (graph.tensors[tensor].shape[2:] for tensor in (op.inputs[0], op.outputs[0]))
        return all(out % size == 0 and (out // size).bit_count() == 1 for size, out in zip(before, behind, strict=True))
    if op.kind in ("aten::slice.Tensor", "aten::select.int"):
        return "starts" in op.attrs
    if op.kind in ("aten::contiguous.default", "aten::clone.default"):  # without another layout
        return not op.attrs["call"]["args"][1:] and not op.attrs["call"]["kwargs"]
    left_out = any(op.attrs.get("pads", ())) and not op.attrs.get("count_include_pad", 1)
    return not (kind_of(op.kind).pools and (op.attrs.get("ceil_mode") or left_out))


def strip_form(graph: Graph) -> Graph:
    """The same network, with every operator that a rewrite made as a call of PyTorch's can state it. A graph that was
    not rewritten is returned unchanged."""
    if not graph.source.rewritten:
        return graph
    edit, weights = Edit(graph), _Weights(graph)
    for index, op in enumerate(graph.ops):
        rows = kind_of(op.kind).rows
        if any(tensor in graph.constants and tensor in graph.source.parts for tensor in op.inputs):
            cuts, inputs = weights.cut(edit, op)
            edit.replace(index, [*cuts, replace(op, inputs=inputs)], settings_of=[*[-1] * len(cuts), index])
            continue
        if graph.source.op_index[index] >= 0:
            continue
        if rows == "attention" and _is_causal(op):
            _mask(edit, index, op)
        if rows not in ("window", "transposed window"):
            continue
        pads = list(op.attrs["pads"])
        uneven = [axis for axis in range(len(pads) // 2) if pads[axis] != pads[axis + len(pads) // 2]]
        if uneven and rows == "window":
            _pad(edit, index, op, pads, uneven)
        elif uneven:
            _cut_off(edit, index, op, pads, uneven)
    return edit.finish(as_placed=True)


class _Weights:
    """The weights of the file of which strips read some rows."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._number = {graph.tensors[tensor].name: tensor for tensor in graph.constants}

    def cut(self, edit: Edit, op: Op) -> tuple[list[Op], tuple[int, ...]]:
        """(operators that cut rows out of weights or give them other sizes, the inputs of the operator with these)."""
        graph, cuts, inputs = self._graph, [], list(op.inputs)
        for position, tensor in enumerate(op.inputs):
            part = graph.source.parts.get(tensor)
            if part is None or tensor not in graph.constants:
                continue
            meta = graph.tensors[tensor]
            rows = edit.add_tensor(f"{meta.name}/cut", meta.shape, meta, role="constant", part=part)
            bounds = [bound for axis, start, stop in part.box for bound in _bounds(edit, meta, start, stop, axis)]
            kind = "Slice" if bounds else "Reshape"
            cuts.append(Op(f"{op.name}/cut{position}", kind, (self._whole(edit, part.of), *bounds), (rows,)))
            inputs[position] = rows
        return cuts, tuple(inputs)

    @cached_property
    def _in_file(self) -> Mapping[str, tuple[TorchValue, Callable[[], npt.NDArray[Any]]]]:
        return {value.name: (value, read) for value, read in _file_program(self._graph).constants}

    def _whole(self, edit: Edit, name: str) -> int:
        if name not in self._number:  # no operator reads all of it any more
            value, read = self._in_file[name]
            like = Tensor(name, (), value.dtype, 0)
            self._number[name] = edit.add_tensor(name, value.shape or (), like, role="constant", value=read)
        return self._number[name]


def _bounds(edit: Edit, like: Tensor, start: int, stop: int, axis: int) -> list[int]:
    """The constants of a Slice."""
    int64 = replace(like, dtype="int64", quantization=None)
    return [
        edit.add_tensor(f"{like.name}/{name}", (1,), int64, role="constant", value=_constant(value))
        for name, value in (("starts", start), ("ends", stop), ("axes", axis))
    ]


def _pad(edit: Edit, index: int, op: Op, pads: list[int], uneven: Sequence[int]) -> None:
    """Put a Pad before the operator, along the dimensions whose pads are uneven."""
    meta, half = edit.graph.tensors[op.inputs[0]], len(pads) // 2
    around = [(0, 0)] * len(meta.shape)
    for axis in uneven:
        around[2 + axis] = pads[axis], pads[axis + half]
        pads[axis] = pads[axis + half] = 0
    shape = tuple(size + before + behind for size, (before, behind) in zip(meta.shape, around, strict=True))
    box = tuple(
        (axis, -before, meta.shape[axis] + behind) for axis, (before, behind) in enumerate(around) if before or behind
    )
    padded = edit.add_tensor(f"{meta.name}/padded", shape, meta, part=Part(meta.name, box))
    sides = [pair[end] for end in (0, 1) for pair in around]
    fill = 0.0 if op.kind != "MaxPool" else _lowest(meta.dtype)
    pad = Op(f"{op.name}/pad", "Pad", op.inputs[:1], (padded,), {"pads": sides, "fill": fill})
    window = replace(op, inputs=(padded, *op.inputs[1:]), attrs={**op.attrs, "pads": pads})
    edit.replace(index, [pad, window], settings_of=[-1, index])


def _mask(edit: Edit, index: int, op: Op) -> None:
    """Put a mask of the rows of a strip behind the inputs of causal attention, where they are not the first."""
    graph = edit.graph
    rank, part = len(graph.tensors[op.outputs[0]].shape), graph.source.parts[op.outputs[0]]
    first = next((start for axis, start, _ in part.box if axis == rank - 2), 0)
    if not first:
        return
    shape = tuple(graph.tensors[tensor].shape[-2] for tensor in op.inputs[:2])
    like, whole = Tensor("", (), "bool", 0), Part(part.of)
    ones, seen = (edit.add_tensor(f"{op.name}/{what}", shape, like, part=whole) for what in ("ones", "seen"))
    cut = Op(f"{op.name}/seen", TRIANGLE, (ones,), (seen,), {"diagonal": first})
    ops = [Op(f"{op.name}/ones", ONES, op.inputs[:1], (ones,)), cut, replace(op, inputs=(*op.inputs, seen))]
    edit.replace(index, ops, settings_of=[-1, -1, index])


def _lowest(dtype: str) -> float:
    return -np.inf if "float" in dtype else float(np.iinfo(dtype).min)


def _cut_off(edit: Edit, index: int, op: Op, pads: list[int], uneven: Sequence[int]) -> None:
    """Let a transposed convolution make what the larger pad of an uneven dimension cuts off, and cut it out behind."""
    meta, half = edit.graph.tensors[op.outputs[0]], len(pads) // 2
    (axis,) = uneven  # only rows are cut
    kept = min(pads[axis], pads[axis + half])
    before, behind = pads[axis] - kept, pads[axis + half] - kept
    pads[axis] = pads[axis + half] = kept
    rows = meta.shape[2 + axis]
    shape = [*meta.shape[: 2 + axis], before + rows + behind, *meta.shape[3 + axis :]]
    more = edit.add_tensor(f"{meta.name}/more", shape, meta, part=along(meta.name, 2 + axis, -before, rows + behind))
    bounds = _bounds(edit, meta, before, before + rows, 2 + axis)
    cut = Op(f"{op.name}/cut", "Slice", (more, *bounds), op.outputs[:1])
    edit.replace(
        index,
        [replace(op, outputs=(more, *op.outputs[1:]), attrs={**op.attrs, "pads": pads}), cut],
        settings_of=[index, -1],
    )


def _constant(value: int) -> Callable[[], npt.NDArray[Any]]:
    return lambda: np.array([value], np.int64)
