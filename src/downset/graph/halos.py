"""Which rows (or columns) of its inputs an operator reads to make given rows of its output: the halo arithmetic.

Axis 0 is rows, axis 1 is columns; `row_axes` says which dimension of a tensor that is. A tensor without one counts as
one row, which is read whole. Intervals and maps are those of `row_form`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, assert_never

from downset.errors import UnsupportedError
from downset.graph.core import ABSENT, Graph, Op
from downset.graph.halo_maps import pad_map, position_map, resize_map, slice_map
from downset.graph.kinds import kind_of
from downset.graph.row_axes import carried, channels_last, extent, inner_elements, spatial_axis, window_axis
from downset.graph.row_form import SAME, AxisMap

__all__ = [
    "Window",
    "activation_maps",
    "begins_inside",
    "broadcast_axis",
    "channels_last",
    "extent",
    "input_map",
    "is_whole",
    "same_pads",
    "spatial_axis",
    "window",
]


class Window(NamedTuple):
    """A sliding window along one axis. `reach`: the positions from its first to its last row,
    dilation · (kernel - 1) + 1."""

    kernel: int
    stride: int
    dilation: int
    pad_begin: int
    pad_end: int

    @property
    def reach(self) -> int:
        return self.dilation * (self.kernel - 1) + 1


def window(graph: Graph, op: Op, axis: int) -> Window:
    """The window of a convolution or pool along rows (axis 0) or columns (axis 1), with the pads that `auto_pad` means.

    The window of a transposed convolution lies on its output, from which the pads are cut off. `auto_pad` of a
    transposed convolution must not be set."""
    last = channels_last(graph)
    if kind_of(op.kind).pools:
        kernel = op.attrs["kernel_shape"][axis]
    else:
        shape = graph.tensors[op.inputs[1]].shape
        kernel = shape[1 + axis] if last else shape[2 + axis]
    stride = (op.attrs.get("strides") or (1, 1))[axis]
    dilation = (op.attrs.get("dilations") or (1, 1))[axis]
    mode = op.attrs.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        size = extent(graph, op.inputs[0], axis)
        # ONNX Runtime ignores the dilation when it pads a pool.
        reach = kernel if kind_of(op.kind).pools else (kernel - 1) * dilation + 1
        total = max(_missing(size, reach, stride), 0)
        small, large = total // 2, total - total // 2
        return Window(kernel, stride, dilation, *((small, large) if mode == "SAME_UPPER" else (large, small)))
    pads = op.attrs.get("pads") if mode in ("NOTSET", "") else None
    begin, end = (pads[axis], pads[axis + len(pads) // 2]) if pads else (0, 0)
    return Window(kernel, stride, dilation, begin, end)


def _missing(size: int, reach: int, stride: int) -> int:
    """Rows to pad so that ceil(size / stride) windows fit; negative where rows are left over behind the last window."""
    return (-(-size // stride) - 1) * stride + reach - size


def same_pads(size: int, frame: Window) -> tuple[int, int]:
    """(begin, end) pads of TFLite's SAME along an axis of `size` positions; of an odd number one more is at the end."""
    total = max(_missing(size, frame.reach, frame.stride), 0)
    return total // 2, total - total // 2


def begins_inside(graph: Graph, op: Op) -> bool:
    """Whether a pool's first window may begin behind the first row or column. ONNX Runtime centres the windows of SAME
    even where they leave rows out; pads cannot express this."""
    if not kind_of(op.kind).pools or not op.attrs.get("auto_pad", "").startswith("SAME") or channels_last(graph):
        return False
    kernel, first = op.attrs["kernel_shape"], len(graph.tensors[op.inputs[0]].shape) - len(op.attrs["kernel_shape"])
    strides = op.attrs.get("strides") or [1] * len(kernel)
    sizes = graph.tensors[op.inputs[0]].shape[first:]
    return any(_missing(*item) < -1 for item in zip(sizes, kernel, strides, strict=True))


def broadcast_axis(graph: Graph, op: Op, position: int, axis: int = 0) -> int | None:
    """The dimension of an input without a map that must be cut to the rows (or columns) that are made; None where no
    cut is needed. Such an input is a constant with rows, or a tensor of lower rank that is broadcast."""
    tensor = op.inputs[position]
    dimension = spatial_axis(graph, op.outputs[0], axis)
    if tensor == ABSENT or dimension is None:
        return None
    meta, rank = graph.tensors[tensor], _rank(graph, op.outputs[0])
    cut = spatial_axis(graph, tensor, axis)
    if meta.role == "activation" and (
        len(meta.shape) == rank or (cut is not None and cut == dimension - rank + len(meta.shape))
    ):
        return None  # cut by its map
    row = kind_of(op.kind)
    if row.category == "quantiser" and position > 0 and len(meta.shape) == 1:
        place = 0 if int(op.attrs.get("axis", 1)) % rank == dimension else -1
    elif (
        (row.rows == "product" and position == row.adds)
        or (row.rows == "attention" and position > 2)
        or (row.further == "operands" and row.rows in ("same", "along axis", "from axis"))
    ):
        place = dimension - rank + len(meta.shape)
    else:
        return None
    return place if place >= 0 and meta.shape[place] == extent(graph, op.outputs[0], axis) > 1 else None


def is_whole(graph: Graph, op: Op, axis: int = 0, maps: Mapping[int, AxisMap | None] | None = None) -> bool:
    """Whether the operator must make all rows at once, from all of its inputs. `maps`: its `activation_maps`, if the
    caller has them.

    Raises UnsupportedError for a kind whose halo is not known.
    """
    if not op.outputs or op.outputs[0] == ABSENT:
        return True
    if maps is None:
        maps = activation_maps(graph, op, axis)
    if extent(graph, op.outputs[0], axis) == 1:
        return False
    if not maps or _reads_unlike(op, maps) or _mixes(graph, op, axis):
        return True
    return not _makes_rows(graph, op, axis, maps)


def _reads_unlike(op: Op, maps: Mapping[int, AxisMap | None]) -> bool:
    """Whether the operator reads one tensor in several ways, as attention does whose queries are its keys."""
    return len({(op.inputs[place], one) for place, one in maps.items()}) > len({op.inputs[place] for place in maps})


def _makes_rows(graph: Graph, op: Op, axis: int, maps: Mapping[int, AxisMap | None]) -> bool:
    """Whether the operator can make some rows from those of its mapped inputs and from all of the other inputs."""
    read_whole = [position for position, one in maps.items() if one is None]
    match kind_of(op.kind).rows:
        case "same":
            return all(_is_broadcast(graph, op, position, axis) for position in read_whole)
        case "product":
            added = [position for position in read_whole if position > 1]
            free = _free_operand(graph, op, axis)
            operands = (0, 1) if free is None else (free,)
            return (
                all(_is_broadcast(graph, op, position, axis) for position in added)
                and any(maps.get(position) is not None for position in operands)
                and all(
                    maps.get(position) is not None or (free is None and _is_broadcast(graph, op, position, axis))
                    for position in operands
                )
            )
        case "attention":  # rows of queries; batches and heads are not divided
            rows_are_queries = spatial_axis(graph, op.outputs[0], axis) == _rank(graph, op.outputs[0]) - 2
            masks = [position for position in read_whole if position > 2]
            return rows_are_queries and 0 not in read_whole and all(_is_broadcast(graph, op, p, axis) for p in masks)
        case "gather":
            return len(read_whole) < len(maps)
        case _:
            return not read_whole


def _free_operand(graph: Graph, op: Op, axis: int) -> int | None:
    """The operand of a product whose rows (0) or columns (1) are the rows of the result; None for a batch."""
    dimension, rank = spatial_axis(graph, op.outputs[0], axis), _rank(graph, op.outputs[0])
    return None if dimension is None or dimension < rank - 2 else dimension - rank + 2


def _is_broadcast(graph: Graph, op: Op, position: int, axis: int) -> bool:
    """Whether each row of the result reads all of an input, whose dimensions are aligned with those of the result."""
    shape, dimension = graph.tensors[op.inputs[position]].shape, spatial_axis(graph, op.outputs[0], axis)
    place = (dimension or 0) - _rank(graph, op.outputs[0]) + len(shape)
    return place < 0 or shape[place] == 1


def activation_maps(graph: Graph, op: Op, axis: int = 0) -> dict[int, AxisMap | None]:
    """By position of an input that is an activation: its `input_map`. Raises what `input_map` raises."""
    makes = bool(op.outputs) and op.outputs[0] != ABSENT
    return {
        position: input_map(graph, op, position, axis) if makes else None
        for position, tensor in enumerate(op.inputs)
        if tensor != ABSENT and graph.tensors[tensor].role == "activation"
    }


def _wanted(graph: Graph) -> frozenset[int]:
    """Tensors that an operator reads, and results of the network."""
    if "wanted" not in graph.facts:
        graph.facts["wanted"] = frozenset(tensor for op in graph.ops for tensor in op.inputs) | {*graph.outputs}
    wanted: frozenset[int] = graph.facts["wanted"]
    return wanted


def _mixes(graph: Graph, op: Op, axis: int) -> bool:
    """Whether an operator needs all rows because of its attributes or further outputs, although its kind does not."""
    more = [tensor for tensor in op.outputs[1:] if tensor != ABSENT and not graph.tensors[tensor].is_workspace]
    if op.kind == "MaxPool":  # its second output counts from the first element of its input
        return any(tensor in _wanted(graph) for tensor in more)
    if op.kind == "BatchNormalization":  # in training: statistics of all rows; not spatial: values for every position
        return bool(more) or bool(op.attrs.get("training_mode", 0)) or not op.attrs.get("spatial", 1)
    if op.kind == "Dropout" and len(op.inputs) > 2 and op.inputs[2] != ABSENT:
        training = graph.constant(op.inputs[2])
        return training is None or bool(training.any())
    if kind_of(op.kind).rows == "attention":
        return _sees_by_place(op)
    if kind_of(op.kind).category == "quantiser" and op.attrs.get("block_size", 0):
        rank = _rank(graph, op.outputs[0])
        return int(op.attrs.get("axis", 1)) % rank == spatial_axis(graph, op.outputs[0], axis)
    return False


def _sees_by_place(op: Op) -> bool:
    """Whether which keys a query sees follows from its place, or the attention draws numbers."""
    call = op.attrs.get("call")
    if call is None:  # a graph that was not read from a program says nothing of it
        return True
    named = (value for name, value in call["kwargs"].items() if name not in ("scale", "attn_mask", "enable_gqa"))
    return any(value not in (None, False, 0.0) for value in (*call["args"][4:6], *named))


def input_map(graph: Graph, op: Op, position: int, axis: int = 0) -> AxisMap | None:
    """The map from rows of the outputs to rows of input `position`; None: the input is read whole.

    Raises UnsupportedError for a kind whose halo is not known.
    """
    row = kind_of(op.kind)
    if row.rows == "unknown":
        raise _unknown(graph, op)
    tensor, result = op.inputs[position], op.outputs[0]
    dimension, cut = spatial_axis(graph, result, axis), spatial_axis(graph, tensor, axis)
    if dimension is None and cut is not None:
        return position_map(graph, op, position, cut)
    if dimension is None or cut is None or carried(graph, op, position, cut) != dimension:
        return None
    rows, output_rows = extent(graph, tensor, axis), extent(graph, result, axis)
    match row.rows:
        case "same" | "transpose" | "product" | "attention" | "gather":
            return SAME
        case "reshape":
            read, written = inner_elements(graph, op, cut, dimension)
            return AxisMap(
                written // math.gcd(read, written), read // math.gcd(read, written), 0, max(written // read, 1) - 1
            )
        case "along axis":
            return (
                None
                if int(op.attrs.get("axis", row.axis)) % _rank(graph, result) == dimension or rows != output_rows
                else SAME
            )
        case "from axis":
            return (
                None
                if int(op.attrs.get("axis", row.axis)) % _rank(graph, result) <= dimension or rows != output_rows
                else SAME
            )
        case "reduction":
            return SAME if rows == output_rows and rows > 1 else None
        case "pad":
            return pad_map(graph, op, position, dimension)
        case "slice":
            return slice_map(graph, op, position, cut)
        case _ if dimension != window_axis(graph, result, axis):
            return None
        case "window":
            return _window_map(graph, op, position, axis)
        case "transposed window":
            return _transposed_map(graph, op, position, axis)
        case "space to depth":
            block_size = int(op.attrs["blocksize"])
            return AxisMap(block_size, 1, 0, block_size - 1)
        case "depth to space":
            return AxisMap(1, int(op.attrs["blocksize"]), 0, 0)
        case "resize":
            return resize_map(graph, op, position, dimension, rows, output_rows)
        case "whole":
            return None
    assert_never(row.rows)


def _window_map(graph: Graph, op: Op, position: int, axis: int) -> AxisMap | None:
    """Weights that are activations are read whole; an input that is added to the result is read row by row."""
    if position > 0:
        return SAME if position == kind_of(op.kind).adds else None
    if begins_inside(graph, op):
        return None
    frame = window(graph, op, axis)
    return AxisMap(frame.stride, 1, -frame.pad_begin, frame.reach - 1 - frame.pad_begin)


def _transposed_map(graph: Graph, op: Op, position: int, axis: int) -> AxisMap | None:
    """Input row i adds to the `reach` output rows from stride · i - pad on. The input is read whole where the pads
    follow from a stated output size."""
    if position > 0 or op.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "") or "output_shape" in op.attrs:
        return None
    frame = window(graph, op, axis)
    # Where the stride is larger than the window some rows get nothing: they read the input row before them.
    low = frame.pad_begin - max(frame.reach - frame.stride, 0)
    return AxisMap(1, frame.stride, low, frame.pad_begin)


def _rank(graph: Graph, tensor: int) -> int:
    return len(graph.tensors[tensor].shape)


def _unknown(graph: Graph, op: Op) -> UnsupportedError:
    return UnsupportedError(
        f"{graph.name}: operator {op.name!r} of kind {op.kind} has no known halo; plan the network unsplit there"
    )
