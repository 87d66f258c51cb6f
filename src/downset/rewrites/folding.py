"""Constant folding before planning: values that exporters compute from sizes, where these sizes are not open.

Source: ours. ONNX Runtime folds what follows from weights and from shapes that are known as a whole; exporters take
single sizes out of shapes, of which another may be open.
Names: an *element* of a value is known, is the symbol of an open size, or is not known (None).
Complexity: linear in operators and in the bytes of the values, each of at most `LARGEST_BYTES`.
Deviations: none of the values depends on an open size. A Reshape whose shape holds open sizes keeps them: its constant
    copies a size of its input (0) where both have one symbol, or the only one that is left follows (-1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.graph.edit import Edit
from downset.graph.float_types import numpy_type
from downset.graph.kinds import kind_of

__all__ = ["LARGEST_BYTES", "Sizes", "folded", "folded_operators", "with_amounts"]

Array = npt.NDArray[np.generic]
"""A value. Its dtype is `object` where not every element is known: integers, symbols and None."""
Sizes = Sequence[int | str | None]
"""The sizes of a tensor: known, the symbol of an open one, or neither."""

LARGEST_BYTES = 1 << 16
"""The most bytes of a value that is folded: the file keeps it, and the operators made it only while it was needed."""
_VALUES = ("bool", "int32", "int64", "float32", "float64")
"""Element types in which every machine rounds the arithmetic below alike."""


def folded(graph: Graph, sizes: Mapping[str, Sizes]) -> Graph:
    """The network in which values that follow from weights and from sizes that are not open are constants, its
    operators in the same sequence. `sizes`: those of tensors by name, as far as they are known for all sizes of the
    inputs. A graph without such values is returned unchanged, and so is one that does not come from an .onnx file."""
    if graph.source.format != "onnx" or graph.source.rewritten:
        return graph
    values = _Values(graph, sizes)
    for op in graph.ops:
        values.learn(op)
    edit, changed = Edit(graph), False
    for index, op in enumerate(graph.ops):
        if values.folds(op):
            changed = True
            values.replace(edit, index)
        elif op.kind == "Reshape" and len(op.inputs) > 1 and (shape := values.reshape(op)) is not None:
            changed = True
            name = f"{graph.tensors[op.inputs[1]].name}/of {op.name}"
            like = graph.tensors[op.inputs[1]]
            constant = edit.add_tensor(name, shape.shape, like, role="constant", value=partial(np.array, shape))
            edit.replace(index, [Op(op.name, op.kind, (op.inputs[0], constant), op.outputs, op.attrs)])
            edit.stays(op.outputs[0])
    return edit.finish(as_placed=True) if changed else graph


def with_amounts(graph: Graph) -> Graph:
    """The network in which small values that follow from weights alone are constants: amounts of padding, bounds and
    sizes, as exporters compute them. A graph without such values is returned unchanged, and so is one that does not
    come from an .onnx file."""
    if graph.source.format != "onnx" or graph.source.rewritten:
        return graph
    sizes = {meta.name: meta.shape for meta in graph.tensors if meta.role == "constant"}
    values, edit, changed = _Values(graph, sizes), Edit(graph), False
    for index, op in enumerate(graph.ops):
        values.learn(op)
        if values.evaluated(op):
            changed = True
            values.replace(edit, index)
    return edit.finish(as_placed=True) if changed else graph


def folded_operators(graph: Graph, rewritten: Graph) -> list[str]:
    """The operators of a graph that a rewritten form does not have, since constants took the place of their results."""
    constant = {rewritten.tensors[tensor].name for tensor in rewritten.constants}
    results = {rewritten.tensors[tensor].name for op in rewritten.ops for tensor in op.outputs if tensor != ABSENT}
    results |= {part.of for part in rewritten.source.parts.values()} - constant
    of_ops = ((op, {graph.tensors[tensor].name for tensor in op.outputs if tensor != ABSENT}) for op in graph.ops)
    return [op.name for op, names in of_ops if names and not names & results]


class _Values:
    """The values of small tensors, as far as they are known before a run."""

    def __init__(self, graph: Graph, sizes: Mapping[str, Sizes]) -> None:
        self._graph, self._sizes = graph, sizes
        self._ends = frozenset(graph.outputs)
        self.known: dict[int, Array] = {}

    def of(self, tensor: int) -> Array | None:
        meta = self._graph.tensors[tensor]
        if tensor not in self.known and tensor in self._graph.constants and meta.nbytes <= LARGEST_BYTES:
            value = self._graph.constant(tensor)
            if value is not None and str(value.dtype) in _VALUES:
                self.known[tensor] = value
        return self.known.get(tensor)

    def sizes(self, tensor: int) -> Sizes | None:
        return self._sizes.get(self._graph.tensors[tensor].name)

    def learn(self, op: Op) -> None:
        """Note the results of an operator, as far as they are known."""
        if op.outputs[:1] == () or ABSENT in op.outputs or op.kind not in _MEANINGS:
            return
        metas = [self._graph.tensors[tensor] for tensor in op.outputs]
        if any(meta.nbytes > LARGEST_BYTES or meta.dtype not in _VALUES for meta in metas):
            return
        if op.kind in ("Shape", "Size"):
            sizes = self.sizes(op.inputs[0])
            inputs: list[Array | None] = [None if sizes is None else np.array(sizes, object)]
        else:
            inputs = [None if tensor == ABSENT else self.of(tensor) for tensor in op.inputs]
        if any(value is None and tensor != ABSENT for value, tensor in zip(inputs, op.inputs, strict=True)):
            return
        try:
            with np.errstate(all="ignore"):
                results = _MEANINGS[op.kind](op, inputs, metas)
        except (ArithmeticError, IndexError, KeyError, TypeError, ValueError):
            return  # an operator that does not evaluate raises in a run, if it is run at all
        for tensor, meta, result in zip(op.outputs, metas, results, strict=True):
            value = _typed(result, meta)
            if value is not None:
                self.known[tensor] = value

    def folds(self, op: Op) -> bool:
        """Whether the operator's results become constants. Those that follow from weights alone are constants in every
        plan as it is."""
        tensors = self._graph.tensors
        weights = all(tensors[tensor].role == "constant" for tensor in op.outputs)
        return self.evaluated(op) and not weights

    def evaluated(self, op: Op) -> bool:
        """Whether constants may take the operator's place: every element of its results is known in each run, and none
        is an output of the network."""
        if not op.outputs or op.after or kind_of(op.kind).draws != "never":
            return False
        return all(
            tensor in self.known and self.known[tensor].dtype != object and tensor not in self._ends
            for tensor in op.outputs
        )

    def replace(self, edit: Edit, index: int) -> None:
        """Let constants take the place of an operator."""
        edit.replace(index, [])
        for tensor in self._graph.ops[index].outputs:
            edit.fix(tensor, partial(np.array, self.known[tensor]))

    def reshape(self, op: Op) -> Array | None:
        """The constant that takes the place of a Reshape's shape, some of whose sizes are open; None where the shape is
        known, or cannot be stated so."""
        shape, read = self.known.get(op.inputs[1]), self.sizes(op.inputs[0])
        if shape is None or shape.dtype != object or shape.ndim != 1 or op.attrs.get("allowzero"):
            return None
        sizes = [*shape.tolist()]
        is_open = [place for place, size in enumerate(sizes) if not isinstance(size, int)]
        copied = [place for place in is_open if _same_symbol(read, place, sizes[place])]
        if len(copied) == len(is_open):
            sizes = [0 if place in copied else size for place, size in enumerate(sizes)]
        elif len(is_open) == 1 and not {0, -1} & {size for size in sizes if isinstance(size, int)}:
            sizes[is_open[0]] = -1  # next to a copied size, which may be 0, it would not follow
        else:
            return None
        return np.array(sizes, np.int64)


def _same_symbol(read: Sizes | None, place: int, size: object) -> bool:
    return read is not None and place < len(read) and isinstance(size, str) and read[place] == size


def _typed(result: Array, meta: Tensor) -> Array | None:
    """The value in the element type of its tensor; None where nothing is known of it, or it is not what a plan's sizes
    say."""
    if result.dtype == object and all(isinstance(one, (int, np.integer)) for one in result.flat):
        result = result.astype(np.int64)
    if result.dtype == object:
        fits = meta.dtype in ("int32", "int64") and result.shape == meta.shape
        return result if fits and any(one is not None for one in result.flat) else None
    if str(result.dtype) != meta.dtype or result.shape != meta.shape or not np.isfinite(result).all():
        return None
    return result


Meaning = Callable[[Op, Sequence[Array | None], Sequence[Tensor]], list[Array]]


def _numbers(inputs: Sequence[Array | None], position: int) -> list[int] | None:
    value = inputs[position] if position < len(inputs) else None
    if value is None:
        return None
    if value.dtype == object:
        raise ValueError("an open size")
    return [int(one) for one in value.reshape(-1)]


def _first(inputs: Sequence[Array | None]) -> Array:
    value = inputs[0]
    assert value is not None
    return value


def _shape(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
    del metas
    return [_first(inputs)[op.attrs.get("start", 0) : op.attrs.get("end")]]


def _size(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
    del op, metas
    sizes = _first(inputs).tolist()
    return [np.array(math.prod(sizes) if all(isinstance(one, int) for one in sizes) else None, object)]


def _gather(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
    del metas
    data, indices = _first(inputs), np.array(_numbers(inputs, 1), np.int64)
    assert inputs[1] is not None
    taken = np.take(data, indices.reshape(inputs[1].shape), axis=int(op.attrs.get("axis", 0)))
    return [np.asarray(taken, data.dtype)]


def _concat(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
    del metas
    values = [value for value in inputs if value is not None]
    mixed = any(value.dtype == object for value in values)
    return [np.concatenate([value.astype(object) if mixed else value for value in values], int(op.attrs["axis"]))]


def _slice(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
    del metas
    data = _first(inputs)
    if len(inputs) == 1:
        starts, ends, axes, steps = list(op.attrs["starts"]), list(op.attrs["ends"]), op.attrs.get("axes"), None
    else:
        starts, ends = _numbers(inputs, 1) or [], _numbers(inputs, 2) or []
        axes, steps = _numbers(inputs, 3), _numbers(inputs, 4)
    cut = [slice(None)] * data.ndim
    for place, axis in enumerate(range(len(starts)) if axes is None else axes):
        cut[axis] = slice(starts[place], ends[place], 1 if steps is None else steps[place])
    return [data[tuple(cut)]]


def _reshaped(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
    """Reshape, Flatten, Squeeze and Unsqueeze: what they read must be known; the result has the planned sizes."""
    if op.kind != "Flatten":
        _numbers(inputs, 1)
    return [_first(inputs).reshape(metas[0].shape)]


def _transpose(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
    del metas
    return [np.transpose(_first(inputs), op.attrs.get("perm"))]


def _expand(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
    del op
    if _numbers(inputs, 1) is None:
        raise ValueError("no sizes")
    return [np.broadcast_to(_first(inputs), metas[0].shape)]


def _filled(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
    return [np.full(_numbers(inputs, 0) or (), op.attrs["fill"], numpy_type(metas[0].dtype))]


def _cast(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
    del op
    data, dtype = _first(inputs), numpy_type(metas[0].dtype)
    if data.dtype == object:
        return [data]
    if np.issubdtype(dtype, np.integer) and np.abs(data.astype(np.float64)).max(initial=0) >= np.iinfo(dtype).max:
        raise ValueError("outside of the type")
    return [data.astype(dtype)]


def _range(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
    """A range of integers, also one in floats: runtimes add up the steps of others in different ways."""
    del op
    start, _, step = (
        int(value.item()) if value is not None and value.item() == int(value.item()) else None for value in inputs
    )
    if start is None or step is None:
        raise ValueError("steps that are rounded")
    (count,) = metas[0].shape
    return [(start + step * np.arange(count)).astype(numpy_type(metas[0].dtype))]


def _product(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
    """A ReduceProd over all elements, as exporters multiply sizes."""
    sizes = _numbers(inputs, 0)
    if sizes is None or metas[0].dtype not in ("int32", "int64") or math.prod(metas[0].shape) != 1:
        raise ValueError("not all elements")
    del op
    return [np.full(metas[0].shape, math.prod(sizes), numpy_type(metas[0].dtype))]


def _same(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
    del op, metas
    return [_first(inputs)]


def _where(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
    del op, metas
    condition, one, other = inputs
    assert condition is not None
    assert one is not None
    assert other is not None
    _numbers(inputs, 0)
    if object in (one.dtype, other.dtype):
        one, other = one.astype(object), other.astype(object)
    return [np.asarray(np.where(condition, one, other))]


def _elementwise(function: Callable[..., Any]) -> Meaning:
    """A meaning that is the same for each element; one of an open size is not known."""
    of_sizes = np.frompyfunc(lambda *sizes: function(*sizes) if _are_numbers(sizes) else None, 2, 1)

    def meaning(op: Op, inputs: Sequence[Array | None], metas: Sequence[Tensor]) -> list[Array]:
        values = [value for value in inputs if value is not None]
        if any(value.dtype == object for value in values):
            if op.kind not in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
                raise ValueError("an open size")
            values = [value.astype(object) for value in values]
            return [np.asarray(reduce(of_sizes, values), object)]
        result = np.asarray(reduce(function, values) if len(values) > 2 else function(*values))
        return [result.astype(numpy_type(metas[0].dtype)) if result.dtype == bool else result]

    return meaning


def _are_numbers(sizes: Sequence[object]) -> bool:
    return all(isinstance(size, (int, np.integer)) for size in sizes)


def _quotient(one: Any, other: Any) -> Any:
    """ONNX's quotient of integers is rounded toward 0, as numpy's is where neither is negative."""
    if np.issubdtype(np.asarray(one).dtype, np.floating):
        return np.divide(one, other)
    if (np.asarray(one) < 0).any() or (np.asarray(other) < 1).any():
        raise ValueError("a negative quotient")
    return np.floor_divide(one, other)


_MEANINGS: Mapping[str, Meaning] = {
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshaped),
    "Transpose": _transpose,
    "Expand": _expand,
    "ConstantOfShape": _filled,
    "Cast": _cast,
    "Range": _range,
    "ReduceProd": _product,
    "Where": _where,
    "Identity": _same,
    "Div": _elementwise(_quotient),
    **{
        kind: _elementwise(function)
        for kind, function in (
            ("Add", np.add),
            ("Sub", np.subtract),
            ("Mul", np.multiply),
            ("Max", np.maximum),
            ("Min", np.minimum),
            ("Equal", np.equal),
            ("Less", np.less),
            ("LessOrEqual", np.less_equal),
            ("Greater", np.greater),
            ("GreaterOrEqual", np.greater_equal),
            ("And", np.logical_and),
            ("Or", np.logical_or),
            ("Not", np.logical_not),
            ("Neg", np.negative),
            ("Floor", np.floor),
            ("Ceil", np.ceil),
            ("Sqrt", np.sqrt),
        )
    },
}
"""The kinds that are evaluated: those that move elements, and those whose arithmetic has one result everywhere."""
