"""Which dimension of each tensor is its rows, and how operators carry a dimension of an input to one of their result.

Windows fix the rows of the tensors that they read and make. From these, rows spread to other tensors through all
operators that carry them: a reshape of rows and columns to tokens, a transposition, the split into heads, the product
of queries and keys. Where no window fixes them, rows are the tokens of matrix products: their last dimension but one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from downset.graph.core import ABSENT, Graph, Op
from downset.graph.kinds import kind_of

__all__ = [
    "carried",
    "channels_last",
    "extent",
    "inner_elements",
    "kept_dimension",
    "rows_spread_from",
    "spatial_axis",
    "window_axis",
]

_FIXED = frozenset({"window", "transposed window", "resize", "space to depth", "depth to space"})
"""Rules of kinds whose geometry is stated along fixed dimensions."""


def channels_last(graph: Graph) -> bool:
    """Whether the graph's tensors of rank 4 are NHWC."""
    if graph.source.format in ("onnx", "torch"):
        return False
    if "channels_last" not in graph.facts:
        graph.facts["channels_last"] = _says_channels_last(graph)
    return bool(graph.facts["channels_last"])


def _says_channels_last(graph: Graph) -> bool:
    for op in graph.ops:
        # A matrix product may state NHWC to mean "over the last axis", in channels-first graphs too.
        if op.attrs.get("layout") == "NHWC" and kind_of(op.kind).category != "matrix product":
            return True
        if kind_of(op.kind).rows == "window":
            return False  # a window of a channels-last graph always states NHWC
    return False


def spatial_axis(graph: Graph, tensor: int, axis: int) -> int | None:
    """The dimension of a tensor that is its rows (axis 0) or columns (axis 1); None where it has none."""
    key = ("spatial axes", axis)
    if key not in graph.facts:
        graph.facts[key] = tuple(_Spread(graph).dimensions() if axis == 0 else _by_rank(graph, axis))
    axes: tuple[int | None, ...] = graph.facts[key]
    return axes[tensor]


def rows_spread_from(graph: Graph, tensor: int, dimension: int, axis: int) -> Graph:
    """The same network, whose rows (axis 0) or columns (axis 1) are this dimension of a tensor and what operators carry
    of it forward. Other tensors have none. Windows slide along the rows where these lie in the `axis`-th of their
    dimensions. O(edges)."""
    alone = replace(graph)
    alone.facts["spatial axes", axis] = tuple(_Spread(graph).forward(tensor, dimension))
    return alone


def extent(graph: Graph, tensor: int, axis: int = 0) -> int:
    """How many rows (or columns) a tensor has; 1 for a tensor that has none."""
    dimension = spatial_axis(graph, tensor, axis)
    return 1 if dimension is None else graph.tensors[tensor].shape[dimension]


def window_axis(graph: Graph, tensor: int, axis: int) -> int | None:
    """The dimension along which windows slide for rows (axis 0) or columns (axis 1), by the tensor's rank alone."""
    rank = len(graph.tensors[tensor].shape)
    if rank == 4 or (rank == 3 and axis == 0 and _has_lengths(graph)):
        return axis + (1 if channels_last(graph) else 2)
    return None


def _by_rank(graph: Graph, axis: int) -> list[int | None]:
    return [window_axis(graph, tensor, axis) for tensor in range(len(graph.tensors))]


def _has_lengths(graph: Graph) -> bool:
    """Whether windows slide along tensors of rank 3. In other networks no window fixes the rows of such a tensor."""
    if "lengths" not in graph.facts:
        graph.facts["lengths"] = any(
            kind_of(op.kind).rows in ("window", "transposed window") and len(graph.tensors[op.inputs[0]].shape) == 3
            for op in graph.ops
        )
    return bool(graph.facts["lengths"])


def carried(graph: Graph, op: Op, position: int, dimension: int) -> int | None:
    """The dimension of the results along which slices follow from slices of input `position` along its `dimension`;
    None where there is none. Inputs that must be read whole or cut alike are not looked at."""
    kind, tensor = kind_of(op.kind), op.inputs[position]
    shape, result_shape = graph.tensors[tensor].shape, graph.tensors[op.outputs[0]].shape
    place: int | None = dimension
    match kind.rows:
        case "unknown" | "whole":
            return None
        case "same":
            place = dimension - len(shape) + len(result_shape)
        case "product":
            place = _of_product(graph, op, position, dimension)
        case "attention":  # heads are as many as those of the keys
            place = dimension - len(shape) + len(result_shape) if position in (0, 3) else None
            place = place if place is not None and place < len(result_shape) - 1 else None
        case "reshape":
            return None if position or not _states_shape(graph, op) else _reshaped(shape, result_shape, dimension)
        case "transpose":
            order = _order(graph, op)
            place = order.index(dimension) if position == 0 and dimension in order else None
        case "gather":
            place = _gathered(graph, op, position, dimension)
        case "reduction":
            return kept_dimension(graph, op, dimension) if position == 0 else None
        case "slice" if "shrinkAxisMask" in op.attrs:
            return _sliced(op, dimension, len(result_shape)) if position == 0 else None
        case _:
            return dimension if len(shape) == len(result_shape) else None
    return (
        place
        if place is not None and 0 <= place < len(result_shape) and result_shape[place] == shape[dimension]
        else None
    )


def _sliced(op: Op, dimension: int, rank: int) -> int | None:
    """The dimension of the result of TFLite's STRIDED_SLICE that is this one of its input; None where it takes one
    position of it, and where it adds dimensions."""
    gone = op.attrs["shrinkAxisMask"]
    if op.attrs["newAxisMask"] or op.attrs["ellipsisMask"] or gone >> dimension & 1:
        return None
    place = dimension - (gone & (1 << dimension) - 1).bit_count()
    return place if place < rank else None


def _states_shape(graph: Graph, op: Op) -> bool:
    """Whether a reshape states the sizes or axes of its result in a constant or an attribute, for any number of
    rows."""
    if op.kind == "Flatten":
        return True
    if len(op.inputs) > 1 and op.inputs[1] != ABSENT:
        return graph.constant(op.inputs[1]) is not None
    if op.kind == "Reshape":
        return graph.source.format in ("tflite", "torch")  # the options, or the sizes of the result
    return bool(op.attrs.get("axes"))


def _order(graph: Graph, op: Op) -> list[int]:
    """The dimensions of a transposition's input in the sequence of its result; empty where they are not known."""
    rank = len(graph.tensors[op.inputs[0]].shape)
    order = op.attrs.get("perm") or range(rank)[::-1]
    if len(op.inputs) > 1 and op.inputs[1] != ABSENT:  # TFLite
        value = graph.constant(op.inputs[1])
        order = [] if value is None else value.reshape(-1).tolist()
    return [int(one) % rank for one in order]


def _groups(shape: Sequence[int], result_shape: Sequence[int]) -> Iterator[tuple[range, range]]:
    """The smallest runs of dimensions of two shapes with equal numbers of elements."""
    first = second = 0
    while first < len(shape) and second < len(result_shape):
        begin, other = first, second
        one, two = shape[first], result_shape[second]
        first, second = first + 1, second + 1
        while one != two:
            if one < two and first < len(shape):
                one, first = one * shape[first], first + 1
            elif two < one and second < len(result_shape):
                two, second = two * result_shape[second], second + 1
            else:
                return
        yield range(begin, first), range(other, second)


def _reshaped(shape: Sequence[int], result_shape: Sequence[int], dimension: int) -> int | None:
    """Rows stay together where they are outermost among the dimensions that a reshape joins or divides, and where rows
    of one shape are a whole number of rows of the other."""
    if 0 in shape or math.prod(shape) != math.prod(result_shape):
        return None
    for before, behind in _groups(shape, result_shape):
        if dimension in before:
            if math.prod(shape[before.start : dimension]) != 1:
                return None
            place = next((place for place in behind if result_shape[place] != 1), None)
            if place is None:
                return None
            one, two = math.prod(shape[dimension + 1 : before.stop]), math.prod(result_shape[place + 1 : behind.stop])
            return place if one % two == 0 or two % one == 0 else None
    return None


def inner_elements(graph: Graph, op: Op, dimension: int, place: int) -> tuple[int, int]:
    """How many elements that a reshape keeps together one row of its input has along `dimension`, and one row of its
    result along `place`."""
    shape, result_shape = graph.tensors[op.inputs[0]].shape, graph.tensors[op.outputs[0]].shape
    for before, behind in _groups(shape, result_shape):
        if dimension in before:
            return math.prod(shape[dimension + 1 : before.stop]), math.prod(result_shape[place + 1 : behind.stop])
    raise ValueError(dimension)


def _of_product(graph: Graph, op: Op, position: int, dimension: int) -> int | None:
    """Rows of the first operand, columns of the second, or a batch; what is added is broadcast."""
    rank, result_shape = len(graph.tensors[op.inputs[position]].shape), len(graph.tensors[op.outputs[0]].shape)
    behind = dimension - rank
    if position == kind_of(op.kind).adds:
        return result_shape + behind
    shapes = [graph.tensors[tensor].shape for tensor in op.inputs[:2]]
    operands = [len(shape) for shape in shapes]
    if position > 1 or min(operands) < 2 or op.attrs.get("transBatchA") or op.attrs.get("transBatchB"):
        return None
    if behind < -2:
        return result_shape + behind if result_shape == max(operands) else None
    if "keep_dims" in op.attrs and (result_shape != rank or shapes[0][-1] != shapes[1][-1]):
        return None  # TFLite's product joins dimensions
    flipped = bool(op.attrs.get("transB" if position else "transA"))
    free = -2 if flipped == bool(position) else -1  # the dimension over which the product does not sum
    return result_shape - 2 + position if behind == free else None


def _gathered(graph: Graph, op: Op, position: int, dimension: int) -> int | None:
    rank = len(graph.tensors[op.inputs[0]].shape)
    if op.attrs.get("batch_dims"):
        return None
    axis, indices = int(op.attrs.get("axis", 0)) % max(rank, 1), len(graph.tensors[op.inputs[1]].shape)
    if position == 1:
        return axis + dimension
    return None if dimension == axis else dimension if dimension < axis else dimension - 1 + indices


def kept_dimension(graph: Graph, op: Op, dimension: int) -> int | None:
    """The dimension of a reduction's result that is this one of its input; None where it is reduced, or not known."""
    axes = op.attrs.get("axes")
    if len(op.inputs) > 1 and op.inputs[1] != ABSENT:
        value = graph.constant(op.inputs[1])
        axes = None if value is None else value.reshape(-1).tolist()
    if axes is None:
        return None
    reduced = {int(one) % max(len(graph.tensors[op.inputs[0]].shape), 1) for one in axes}
    if dimension in reduced:
        return None
    return dimension if op.attrs.get("keepdims", 1) else dimension - sum(one < dimension for one in reduced)


class _Spread:
    """Spreads rows from the tensors whose rows are fixed. O(edges)."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._rows: list[int | None] = [None] * len(graph.tensors)
        self._read_by, self._made_by = graph.consumers(), graph.producers()
        self._waiting: deque[int] = deque()

    def dimensions(self) -> list[int | None]:
        graph = self._graph
        by_rank = _by_rank(graph, 0)
        for op in graph.ops:
            if kind_of(op.kind).rows in _FIXED:
                for tensor in (*op.inputs[:1], *op.outputs[:1]):
                    if tensor != ABSENT and by_rank[tensor] is not None:
                        self._rows[tensor] = by_rank[tensor]
                        self._waiting.append(tensor)
        self._through()
        products = [
            op for op in graph.ops if kind_of(op.kind).rows == "product" and op.outputs[:1] not in ((), (ABSENT,))
        ]
        for op in products:
            self._columns(op)
        for op in products:
            self._fix(op.outputs[0], len(graph.tensors[op.outputs[0]].shape) - 2)
            self._through()
            self._columns(op)
        return [one if one is not None else two for one, two in zip(self._rows, by_rank, strict=True)]

    def forward(self, tensor: int, dimension: int) -> list[int | None]:
        """The rows that spread from this dimension of a tensor to all that is computed from it."""
        self._rows[tensor] = dimension
        for op in self._graph.ops:
            for read in dict.fromkeys(op.inputs):
                if read != ABSENT and self._rows[read] is not None:
                    self._forward(op, read, back=False)
        return self._rows

    def _columns(self, op: Op) -> None:
        """Take the columns of the second operand as rows of a product that has no others."""
        dimension = self._rows[op.inputs[1]]
        if self._rows[op.outputs[0]] is None and dimension is not None:
            place = carried(self._graph, op, 1, dimension)
            if place is not None:
                self._fix(op.outputs[0], place)
                self._through()

    def _fix(self, tensor: int, dimension: int, *, least: int = 2) -> None:
        """Take a dimension of at least so many rows as those of a tensor that has none. One row is one of a slice."""
        meta = self._graph.tensors[tensor]
        is_fixed = self._rows[tensor] is not None or meta.role != "activation"
        if not is_fixed and 0 <= dimension < len(meta.shape) and meta.shape[dimension] >= least:
            self._rows[tensor] = dimension
            self._waiting.append(tensor)

    def _through(self) -> None:
        while self._waiting:
            tensor = self._waiting.popleft()
            for index in self._read_by[tensor]:
                self._forward(self._graph.ops[index], tensor)
            if self._made_by[tensor] >= 0:
                self._backward(self._graph.ops[self._made_by[tensor]], tensor)

    def _forward(self, op: Op, tensor: int, *, back: bool = True) -> None:
        dimension = self._rows[tensor]
        if dimension is None or not op.outputs or op.outputs[0] == ABSENT:
            return
        rank = len(self._graph.tensors[op.outputs[0]].shape)
        for position, operand in enumerate(op.inputs):
            place = carried(self._graph, op, position, dimension) if operand == tensor else None
            # Rows of a product are those of its first operand; `_columns` looks at the second one.
            if place is None or (kind_of(op.kind).rows == "product" and position == 1 and place == rank - 1):
                continue
            for result in op.outputs:
                if result != ABSENT and len(self._graph.tensors[result].shape) == rank:
                    self._fix(result, place, least=1 if kind_of(op.kind).rows == "slice" else 2)
                    if back:
                        self._backward(op, result)

    def _backward(self, op: Op, result: int) -> None:
        place = self._rows[result]
        if place is None or op.outputs[0] == ABSENT:
            return
        if len(self._graph.tensors[op.outputs[0]].shape) != len(self._graph.tensors[result].shape):
            return
        for position, operand in enumerate(op.inputs):
            if (
                operand == ABSENT
                or self._rows[operand] is not None
                or self._graph.tensors[operand].role != "activation"
            ):
                continue
            for dimension in range(len(self._graph.tensors[operand].shape)):
                if carried(self._graph, op, position, dimension) == place:
                    self._fix(operand, dimension)
